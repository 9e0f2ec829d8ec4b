"""Moves tensors in an instantiated graph: addresses go in, words of its nodes change. What is in flight is not touched.

    patcher = build_patcher(graph, executable, table)
    move = patcher.mover(table.tensors[0])                  a function of one address: writes and issues at once
    move(tensor.data_ptr())
    move_all = patcher.mover(*table.tensors)                of several: a node that holds more than one is issued once
    patcher.move_many([(row, address), ...])                any of them, in a cold place

All memory that is written is the patcher's own: copies of the nodes' parameters, which the driver copies again when they are
issued. The graph must outlive the patcher, and a caller holds the recording's lock.

Issuing a node costs about a microsecond, so a mover is straight-line generated code:

    def move(address0):
        here.has_context
        word0.value = address0 + 256
        code = set3(executable, node3, params3)
        if code: raise failed('cuGraphExecKernelNodeSetParams_v2', code)

Where many nodes change, it is cheaper to change them in the graph and to update the whole executable from it. Then the graph
must know also what was issued to the executable alone before: `stale` are the nodes that it does not know of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from ctypes import addressof, byref, c_uint64
from dataclasses import dataclass, field
from functools import cache

import torch

from treeplay.codegen import Source, Writer, load_source, tuple_of
from treeplay.device.cuda.contexts import here
from treeplay.device.cuda.nodes.calls import UpdateResult, call, failed, function
from treeplay.device.cuda.nodes.own import OwnNode, own_node
from treeplay.device.cuda.nodes.reading import handles_of, param_sizes
from treeplay.relocate import Relocation, Row
from treeplay.relocate.policy import MEASURED, Costs, is_update_cheaper

Update = Callable[..., None]
WordPlace = tuple[int, int, int]  # of a word: node, buffer, byte


@dataclass(eq=False, slots=True)
class Patcher:
    """An instantiated graph whose tensors can be moved. Made by `build_patcher`; owns the memory that it writes."""

    graph: int
    executable: int
    table: Relocation
    nodes: dict[int, OwnNode]
    words: dict[WordPlace, c_uint64]
    costs: Costs = MEASURED
    stale: set[int] = field(default_factory=set)
    result: UpdateResult = field(default_factory=UpdateResult)
    _movers: dict[tuple[Row, ...], Update] = field(default_factory=dict)

    def mover(self, *rows: Row) -> Update:
        """A function that moves tensors or outputs to the addresses it is given, in the order of `rows`."""
        found = self._movers.get(rows)
        if found is None:
            found = self._movers[rows] = load_source(self.source(*rows))
        return found

    def move_many(self, moves: Iterable[tuple[Row, int]]) -> None:
        """Move several at once."""
        moves = list(moves)
        self.mover(*(row for row, _ in moves))(*(address for _, address in moves))

    def source(self, *rows: Row) -> Source:
        """The text of `mover`."""
        text = Writer(failed=failed, executable=self.executable, here=here)
        nodes = sorted({node for row in rows for node in row.nodes})
        with text.block(f"def move({', '.join(f'address{number}' for number in range(len(rows)))}):"):
            text.add("here.has_context")  # the thread that replays may be one that has never called CUDA
            self._writes(text, rows)
            if self._is_update(nodes):
                self._updates(text, nodes)
            else:
                self._issues(text, nodes)
        return text.source(f"mover of {len(rows)}", entry="move")

    def catch_up(self) -> None:
        """Tell the graph what was issued to the executable alone."""
        for index in sorted(self.stale):
            self.nodes[index].set_template()
        self.stale.clear()

    def _writes(self, text: Writer, rows: Sequence[Row]) -> None:
        for number, (argument, site) in enumerate((at, site) for at, row in enumerate(rows) for site in row.sites):
            word = text.use(f"word{number}", self.words[site.place])
            addend = f" + {site.addend}" if site.addend else ""
            text.add(f"{word}.value = address{argument}{addend}")

    def _issues(self, text: Writer, nodes: Sequence[int]) -> None:
        """Set nodes of the executable one by one."""
        for index in nodes:
            node = self.nodes[index]
            self._name(text, index, node.calls.set_executable)
            rest = "".join(f", {value:#x}" for value in node.calls.rest)
            text.add(f"code = set{index}(executable, node{index}, params{index}{rest})")
            text.add(f"if code: raise failed({node.calls.set_executable!r}, code)")
        if nodes and self._is_update(self.nodes):  # else the graph is never asked
            text.add(f"{text.use('stale', self.stale.update)}({tuple_of(map(str, nodes))})")

    def _updates(self, text: Writer, nodes: Sequence[int]) -> None:
        """Set nodes of the graph, and update the executable from it."""
        text.add(f"if {text.use('stale', self.stale)}: {text.use('catch_up', self.catch_up)}()")
        for index in nodes:
            name = self.nodes[index].calls.set_template
            self._name(text, index, name)
            text.add(f"code = set{index}(node{index}, params{index})", f"if code: raise failed({name!r}, code)")
        update, graph = text.use("update", function(_UPDATE)), text.use("graph", self.graph)
        text.add(f"code = {update}(executable, {graph}, {text.use('result', byref(self.result))})")
        text.add(f"if code: raise failed({_UPDATE!r}, code)")

    def _name(self, text: Writer, index: int, name: str) -> None:
        node = self.nodes[index]
        text.use(f"set{index}", function(name))
        text.use(f"node{index}", node.handle)
        text.use(f"params{index}", addressof(node.params))
        text.use(f"own{index}", node)  # its memory lives as long as what writes there

    def _is_update(self, nodes: Collection[int]) -> bool:
        return is_update_cheaper(len(nodes), self.table.nodes, self.costs)


_UPDATE = "cuGraphExecUpdate_v2"


def build_patcher(graph: int, executable: int, table: Relocation, *, costs: Costs = MEASURED) -> Patcher:
    """A patcher of an instantiated graph, by the raw handles of the graph and of what was instantiated from it.

    The graph must outlive it, both must be as they were captured, and their device must be current.
    """
    # The first launch would do that too. But a kernel that is set while the graph is not on the device yet is slower from then
    # on, by 0.1 to 0.2 us on an H100 (`benchmarks.gpu.set_nodes`).
    call("cuGraphUpload", executable, torch.cuda.current_stream().cuda_stream)
    nodes = own_nodes_of(graph, table)
    words = {site.place: nodes[site.node].word(site.buffer, site.offset) for row in table.rows for site in row.sites}
    return Patcher(graph, executable, table, nodes, words, costs)


def own_nodes_of(graph: int, table: Relocation) -> dict[int, OwnNode]:
    """The nodes that hold an address of the table, by index, each with a copy of its parameters."""
    handles, sizes_of = handles_of(graph), cache(param_sizes)
    return {
        index: own_node(handles[index], sizes_of) for index in sorted({at for row in table.rows for at in row.nodes})
    }
