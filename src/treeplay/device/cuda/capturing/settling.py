"""From the last capture to what can be instantiated: its outputs are let go, and its addresses get the memory that it needs.

outputs ─▶ what they are, and where those stay that cannot move
torch forgets the pool ─▶ memory behind the pages of scratch ─▶ copies and fills write to torch's memory
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from treeplay.device.cuda.capturing.decoys import unowned
from treeplay.device.cuda.capturing.rounds import Rounds
from treeplay.device.cuda.memory.pages import Span
from treeplay.device.cuda.nodes.patch import own_nodes_of
from treeplay.relocate import Row
from treeplay.values.nodes import Memcpy, Memset
from treeplay.values.spec import TensorSpec


@dataclass(frozen=True, slots=True)
class CapturedOutput:
    """An output of a capture, which is let go: what it is, how it moves, and where it stays if it does not."""

    spec: TensorSpec
    row: Row | None
    held: torch.Tensor | None


def outputs_of(captured: Rounds) -> list[CapturedOutput]:
    """The outputs of the capture to be replayed, none of which is kept alive in addresses of its own."""
    made, table = captured.made, captured.found.table
    rows = {row.index: row for row in table.outputs if row.is_patchable} if table is not None else {}
    found = []
    for at, output in enumerate(made.outputs):
        is_held = at not in rows and output.numel()
        is_inside = made.space is not None and output.untyped_storage().data_ptr() in made.space
        # Without a claim on its memory: torch forgets a pool only when no tensor of it is alive.
        held = unowned(output) if is_inside else output
        found.append(CapturedOutput(TensorSpec.of(output), rows.get(at), held if is_held else None))
    made.outputs.clear()  # what a result moves away from is nobody's
    return found


def settled(captured: Rounds, results: Sequence[CapturedOutput]) -> bool:
    """Put memory behind the addresses that the graph uses while it runs. False: somebody keeps a tensor that lies there."""
    made = captured.made
    if made.space is None:
        return True
    if made.captured is None or made.captured.blocks is None:
        return made.space.settle(None)
    blocks = made.captured.blocks
    # The last block at an address is the result's. What lay there before is scratch, and needs memory.
    newest = {block.address: at for at, block in enumerate(blocks)}
    moved = {newest.get(result.row.address) for result in results if result.row is not None}
    return made.space.settle(
        Span(block.address, block.end, life.begins, life.ends, life.stream)
        for at, (block, life) in enumerate(zip(blocks, made.lifetimes, strict=True))
        if at not in moved
    )


def place_copies(captured: Rounds, tensors: Sequence[torch.Tensor], results: Sequence[CapturedOutput]) -> None:
    """Have copies and fills of the graph write to memory of torch's before it is instantiated.

    An instantiated one keeps to the kind of memory that it had then, and tensors of later calls are torch's. For outputs any
    memory does: each launch moves them before it runs.
    """
    made, table = captured.made, captured.found.table
    if made.space is None or made.captured is None or table is None:
        return
    graph_nodes = made.captured.nodes
    rows = [row for row in (*table.tensors, *(result.row for result in results)) if row is not None]
    rows = [row for row in rows if row.address in made.space]
    sites = [(row, site) for row in rows for site in row.sites if isinstance(graph_nodes[site.node], (Memcpy, Memset))]
    if not sites:
        return
    largest = max((results[row.index].spec.nbytes for row, _ in sites if row.role == "output"), default=0)
    anywhere = torch.empty(largest, dtype=torch.uint8, device=tensors[0].device if tensors else torch.device("cuda"))
    nodes = own_nodes_of(made.graph.raw_cuda_graph(), table)
    for row, site in sites:
        memory = anywhere if row.role == "output" else tensors[row.index]
        nodes[site.node].word(site.buffer, site.offset).value = memory.data_ptr() + site.addend
    for index in {site.node for _, site in sites}:
        nodes[index].set_template()
