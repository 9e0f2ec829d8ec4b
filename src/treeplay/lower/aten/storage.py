"""The storages of a traced graph: who makes each, how long it is needed, and where its memory comes from. Pure.

    in0 ── t ── mm ─▶ storage A ── view ── copy_ ─▶ storage B ─▶ output

Where a storage is copied into a new one of the same layout and not read again, both are one: the copy is *elided* and
does not happen. Above, `mm` makes the output itself.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import torch.fx

from treeplay.errors import LoweringError
from treeplay.lower.aten.ops import fill_value, is_pure, needs_only_memory
from treeplay.torch_seam.operators import OpOverload
from treeplay.torch_seam.schemas import COPIES, EMPTY, aten, is_inplace_view, written_arguments
from treeplay.trace.run.begins import BEGINS
from treeplay.values.arena import Buffer
from treeplay.values.overlap import overlaps_itself
from treeplay.values.spec import TensorSpec

Node = torch.fx.Node


class Home(Enum):
    """Where the memory of a storage comes from."""

    INPUT = auto()  # the caller
    OUTPUT = auto()  # a new allocation per replay, given to the caller
    CONSTANT = auto()  # made once: its contents never change
    ARENA = auto()  # shared scratch memory
    OWN = auto()  # the operator that makes it allocates it on each replay


@dataclass(eq=False, slots=True)
class Storage:
    """One storage: the node whose operator makes it, its tensors, the first and last step it is needed, its bytes."""

    maker: Node
    first: int
    last: int
    nodes: list[Node] = field(default_factory=list)
    nbytes: int = 0
    is_mutated: bool = False
    is_plain: bool = True  # the specs of its tensors say all: none is a lazy conjugate or negative
    home: Home = Home.OWN

    @property
    def birth(self) -> Node:
        """The first tensor in it."""
        return self.nodes[0]

    @property
    def buffer(self) -> Buffer:
        """When its memory is needed."""
        return Buffer(self.birth.meta["storage"], self.nbytes, self.first, self.last)


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """The storage of each node that is a tensor, and the copies that need not happen."""

    of: dict[Node, Storage]
    elided: dict[Node, Node]  # the copy -> the tensor that already holds the values

    @property
    def storages(self) -> list[Storage]:
        """Each storage once, in the order in which they are made."""
        return list(dict.fromkeys(self.of.values()))

    def bases_of(self, graph: torch.fx.Graph, ops: Iterable[Any]) -> set[Storage | None]:
        """The storages of the first arguments of these operators."""
        return {self.of.get(node.args[0]) for op in ops for node in graph.find_nodes(op="call_function", target=op)}

    def by_maker(self) -> dict[Node, list[Storage]]:
        """The storages that each operator makes."""
        return _by_maker(self.of.values())


def survey_storages(graph: torch.fx.Graph) -> StoragePlan:
    """Find the storages of a graph; raises `LoweringError` for a tensor that changes its shape or size in place."""
    steps = {node: step for step, node in enumerate(graph.nodes)}
    of = _storages(graph, steps)
    outputs = _tensors(graph.output_node().args[0])
    kept = {of[node] for node in outputs} | {of[node] for node in of if node.op == "placeholder"}
    constants = _constants(of, kept)
    layout = StoragePlan(of, _elide_copies(graph, steps, of, kept | constants))
    results = {of[node] for node in outputs}
    whole = layout.bases_of(graph, BEGINS - {aten.as_strided.default})  # they count from where all of the memory begins
    for makes in layout.by_maker().values():
        for storage in makes:
            home = _home(storage, makes, results, constants)
            storage.home = Home.OWN if home is Home.ARENA and not whole.isdisjoint(makes) else home
    return layout


def _by_maker(storages: Iterable[Storage]) -> dict[Node, list[Storage]]:
    found: dict[Node, list[Storage]] = {}
    for storage in dict.fromkeys(storages):
        found.setdefault(storage.maker, []).append(storage)
    return found


def maker_of(node: Node) -> Node:
    """The node that runs the operator which `node` is a result of, or is in a list of its results."""
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def written_nodes(node: Node) -> Iterator[Node]:
    """The nodes that the operator of `node` writes to."""
    if not isinstance(node.target, OpOverload):
        return
    yield from _tensors(written_arguments(node.target, node.args, node.kwargs))


def storages_written(nodes: Iterable[Node]) -> set[Any]:
    """The storages that operators write to."""
    return {target.meta["storage"] for node in nodes for target in written_nodes(node) if "storage" in target.meta}


def writes_folded(graph: torch.fx.Graph) -> bool:
    """Whether an operator writes to a tensor whose own elements overlap: what comes of it depends on the order."""
    return any(overlaps_itself(target.meta["spec"]) for node in graph.nodes for target in written_nodes(node))


def _tensors(value: Any) -> list[Node]:
    if isinstance(value, Node):
        return [value] if "spec" in value.meta else []
    return [node for item in value for node in _tensors(item)] if isinstance(value, (list, tuple)) else []


# --- lifetimes ----------------------------------------------------------------------------------------------


def _storages(graph: torch.fx.Graph, steps: dict[Node, int]) -> dict[Node, Storage]:
    known: dict[int, Storage] = {}
    of: dict[Node, Storage] = {}
    for node in graph.nodes:
        for argument in node.all_input_nodes:
            if argument in of:
                of[argument].last = steps[node]
        for target in written_nodes(node):
            of[target].is_mutated = True
            _check_shape(node, target)
        if "storage" in node.meta:
            of[node] = _note(node, known, steps)
    return of


def _note(node: Node, known: dict[int, Storage], steps: dict[Node, int]) -> Storage:
    maker = maker_of(node)
    storage = known.setdefault(node.meta["storage"], Storage(maker, steps[maker], steps[node]))
    spec: TensorSpec = node.meta["spec"]
    storage.nodes.append(node)
    storage.last = max(storage.last, steps[node])
    storage.is_plain &= not spec.dtype.is_complex and node.target is not aten._neg_view.default
    storage.nbytes = max(storage.nbytes, node.meta["offset"] * spec.dtype.itemsize + spec.nbytes)
    return storage


def _check_shape(node: Node, target: Node) -> None:
    """Refuse a tensor that changes its shape in place, as an operator may do to what it is told to write into."""
    before: TensorSpec = target.meta["spec"]
    after: TensorSpec = before if node.meta.get("storage") != target.meta["storage"] else node.meta["spec"]
    if is_inplace_view(node.target) or (before.shape, before.stride) != (after.shape, after.stride):
        where = node.meta.get("where")
        raise LoweringError(f"{node.target} resizes a tensor in place{f', at {where}' if where else ''}")


# --- what never changes -------------------------------------------------------------------------------------


def _constants(of: dict[Node, Storage], kept: set[Storage]) -> set[Storage]:
    """Storages that hold the same values in each replay: made from plain numbers only, and never written."""
    found: set[Storage] = set()
    for maker, makes in _by_maker(of.values()).items():
        is_fixed = isinstance(maker.target, OpOverload) and is_pure(maker.target)
        # A result is the caller's, who may write to it.
        is_fixed = is_fixed and not any(storage.is_mutated or storage in kept for storage in makes)
        if is_fixed and all(of.get(argument) in found for argument in _read_by(maker, of)):
            found |= set(makes)
    return found


def _read_by(node: Node, of: dict[Node, Storage]) -> list[Node]:
    # `ones_like(x)` takes the shape of `x` and never looks at its values.
    op: Any = node.target
    only_shapes = fill_value(op, node.args) is not None
    return [argument for argument in node.all_input_nodes if not (only_shapes and argument in of)]


# --- copies that need not happen ----------------------------------------------------------------------------


def _elide_copies(
    graph: torch.fx.Graph, steps: dict[Node, int], of: dict[Node, Storage], fixed: set[Storage]
) -> dict[Node, Node]:
    elided: dict[Node, Node] = {}
    for node in graph.nodes:
        pair = _copied(node, steps, of)
        if pair is None or of[pair[1]] in fixed or not _is_handover(node, *pair, steps, of):
            continue
        target, source = pair
        elided[node] = source
        if of[target] in fixed:  # an output: from now on its source is one, and not free to go elsewhere
            fixed.add(of[source])
        _merge(of, into=of[source], gone=of[target])
    return elided


def _copied(node: Node, steps: dict[Node, int], of: dict[Node, Storage]) -> tuple[Node, Node] | None:
    """The new tensor that `node` copies into, which nobody used before, and the tensor that it copies."""
    if node.target in COPIES and node in of:
        target, source = node, node.args[0]
    elif node.target is aten.copy_.default:
        target, source = node.args[0], node.args[1]  # type: ignore[assignment]
    else:
        return None
    if not isinstance(source, Node) or source not in of:
        return None
    is_new = target is node or (
        target.target in EMPTY
        and of[target].birth is target
        and all(steps[user] >= steps[node] for user in target.users)
    )
    return (target, source) if is_new else None


def _is_handover(node: Node, target: Node, source: Node, steps: dict[Node, int], of: dict[Node, Storage]) -> bool:
    """Whether the copy is the last use of the source's storage, and both tensors fill their storages alike."""
    before, after = source.meta["spec"], target.meta["spec"]
    alike = (before.shape, before.stride, before.dtype, before.device) == (
        after.shape,
        after.stride,
        after.dtype,
        after.device,
    )
    whole = source.meta["offset"] == target.meta["offset"] == 0 and of[source].nbytes == of[target].nbytes
    return alike and whole and of[source].is_plain and of[source] is not of[target] and of[source].last == steps[node]


def _merge(of: dict[Node, Storage], *, into: Storage, gone: Storage) -> None:
    into.last = max(into.last, gone.last)
    into.is_mutated |= gone.is_mutated
    into.is_plain &= gone.is_plain
    into.nodes += gone.nodes
    of.update(dict.fromkeys(gone.nodes, into))


def _home(storage: Storage, siblings: list[Storage], results: set[Storage], constants: set[Storage]) -> Home:
    maker = storage.maker
    if maker.op == "placeholder":
        return Home.INPUT
    if storage in constants:
        return Home.CONSTANT
    if storage in results:
        return Home.OUTPUT
    # An operator writes all of its results into given memory, or none; and only host memory is ours to lay out.
    can_place = not any(other in results for other in siblings) and storage.birth.meta["spec"].device.type == "cpu"
    op: Any = maker.target
    return Home.ARENA if can_place and needs_only_memory(op, maker.args) else Home.OWN
