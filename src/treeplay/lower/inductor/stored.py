"""Which artifact of an earlier process is a graph's: found before anything of the compiler is imported.

    graph, device, settings ─ key_of ─▶ key ─ find ─▶ Stored(key in Inductor's store, options) ─ load ─▶ artifact
                                               └ nothing ─▶ functional graph ─ Inductor ─▶ artifact ─ keep

Inductor keeps what it has compiled, and finds it again by the graph that it is given. To get there a graph is made functional
and goes through passes, which for a training step takes longer than all the rest. So the way from our graph to Inductor's key
is kept as well, in a small file beside Inductor's. What is missing, damaged or of another release is not there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.fx

from treeplay.lower.inductor.fingerprint import Indistinct, fingerprint_text, value_text
from treeplay.observe import counters
from treeplay.observe.events import log_event
from treeplay.torch_seam.kept_file import read_text, write_text

_COUNTED = "stored artifacts"


@dataclass(frozen=True, slots=True)
class Stored:
    """How an artifact is found again: by its `key` in Inductor's store, under the `options` that it was compiled with.

    `operators`: how many nodes its functional graph has."""

    key: str
    options: Mapping[str, Any]
    operators: int


def key_of(graph: torch.fx.Graph, device: torch.device, **asked: Any) -> str | None:
    """What tells this compile from others in any process; None where that cannot be told, which is counted as a bypass.

    `asked`: what else is asked of the compiler."""
    from treeplay.torch_seam import inductor_store

    if not inductor_store.is_in_use():
        return None
    try:
        if inductor_store.passes_of_the_users():
            raise Indistinct("a pass of the user's")
        graph_text, settings = fingerprint_text(graph), value_text(inductor_store.circumstances(device))
        text = "\n".join((_code_of_ours(), str(device), value_text(asked), settings, graph_text))
    except Indistinct as error:
        counters.add(_COUNTED, "bypass")
        log_event("recordings", f"what is compiled is not found again by a later process: it holds {error}")
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def find(key: str) -> Stored | None:
    """What `keep` was given for this key, by whatever process."""
    try:
        # Of null nothing can be taken: a TypeError below.
        kept = json.loads(read_text(_path(key)) or "null")
        found = Stored(**kept["stored"]) if kept["for"] == key else None
    except (ValueError, TypeError, KeyError):
        found = None
    if found is None:
        counters.add(_COUNTED, "miss")
    return found


def keep(key: str, stored: Stored) -> None:
    """Have later processes find it. A folder that cannot be written to is no error."""
    write_text(_path(key), json.dumps({"for": key, "stored": asdict(stored)}))


def load(stored: Stored) -> Callable[[list[torch.Tensor]], Sequence[torch.Tensor]] | None:
    """The artifact; None if Inductor has it no more, or it cannot be loaded, which is counted as a miss."""
    from treeplay.torch_seam import inductor_store

    try:
        artifact = inductor_store.stored_graph(stored.key, stored.options)
    except Exception as error:
        log_event("recordings", f"a stored artifact could not be loaded and is compiled anew: {error}")
        artifact = None
    counters.add(_COUNTED, "miss" if artifact is None else "hit")
    return artifact


def _path(key: str) -> str:
    return f"treeplay/{key[:2]}/{key}.json"


@cache
def _code_of_ours() -> str:
    """A hash of this package's code, any part of which may change what is compiled."""
    package = Path(__file__).parents[2]
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(path.relative_to(package).as_posix().encode())
        found.update(path.read_bytes())
    return found.hexdigest()
