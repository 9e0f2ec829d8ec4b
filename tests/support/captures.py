"""Captures as JSON files, so that what a GPU captured can be looked at without one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from treeplay.values.nodes import Allocation, CaptureNotes, GraphNode, Kernel, Memcpy, Memset, Other, Placed

_KINDS: dict[str, type[GraphNode]] = {"Kernel": Kernel, "Memcpy": Memcpy, "Memset": Memset, "Other": Other}


def write_captures(path: Path, captures: Sequence[CaptureNotes]) -> None:
    """Write captures to a file."""
    path.write_text(json.dumps([_plain(capture) for capture in captures]))


def read_captures(path: Path) -> list[CaptureNotes]:
    """Read them again."""
    return [_captured(data) for data in json.loads(path.read_text())]


def _plain(capture: CaptureNotes) -> dict[str, Any]:
    return {
        "nodes": [{"is": type(node).__name__, **_with_text(asdict(node))} for node in capture.nodes],
        "tensors": [asdict(place) for place in capture.tensors],
        "outputs": [asdict(place) for place in capture.outputs],
        "blocks": None if capture.blocks is None else [[block.address, block.nbytes] for block in capture.blocks],
    }


def _with_text(fields: dict[str, Any]) -> dict[str, Any]:
    if "params" in fields:
        fields["params"] = [data.hex() for data in fields["params"]]
    if fields.get("content") is not None:
        fields["content"] = fields["content"].hex()
    return fields


def _captured(data: dict[str, Any]) -> CaptureNotes:
    blocks = data["blocks"]
    return CaptureNotes(
        tuple(_node(fields) for fields in data["nodes"]),
        tuple(Placed(**place) for place in data["tensors"]),
        tuple(Placed(**place) for place in data["outputs"]),
        None if blocks is None else tuple(Allocation(*block) for block in blocks),
    )


def _node(fields: dict[str, Any]) -> GraphNode:
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    kind = _KINDS[str(fields.pop("is"))]
    if "params" in fields:
        fields["params"] = tuple(bytes.fromhex(data) for data in fields["params"])
    if fields.get("content") is not None:
        fields["content"] = bytes.fromhex(fields["content"])
    return kind(**fields)
