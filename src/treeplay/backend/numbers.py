"""Numbers that a graph reads from tensors: a float argument that changes from call to call comes from Dynamo as one.

n = t.item()                        n = t in float64
y = x * (1 / n)           ▶         y = x * (1 / n in float64).to(float32)        for Inductor, which compiles no such read

forward   n = t.item();  y = x * n                saves n as a 0-dim tensor
backward  n = saved.item();  g * n                                                for an autograd node, which saves tensors

y = dropout(x, t.item())            ▶         y = dropout(x, 0.5)                 for a trace that asks for the value
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx import Node
from torch.fx.node import map_arg

from treeplay.backend.passes import copy_of
from treeplay.backend.recording.examine import nested_graphs
from treeplay.backend.scaled_by_numbers import number_in, write_out
from treeplay.torch_seam.checkpoints import CHECKPOINTED
from treeplay.torch_seam.fakes import mode_of_fake
from treeplay.torch_seam.trees import arg_tree_leaves as tree_leaves

aten = torch.ops.aten

_cast: Any = torch.ops.prims.convert_element_type.default
_read = aten._local_scalar_dense.default
_ARITHMETIC: dict[Any, Any] = {
    operator.add: aten.add.Tensor,
    operator.sub: aten.sub.Tensor,
    operator.mul: aten.mul.Tensor,
    operator.truediv: aten.div.Tensor,
    operator.neg: aten.neg.default,
}
"""What is done with numbers, and what it is with tensors."""
_BESIDE_TENSORS = frozenset((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor))
"""Operators that take a number or a tensor."""
_PRECISION = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""In which dtype an operator computes whose result has another."""


class KnownNumbers:
    """Of the numbers that a captured graph reads from its inputs, those whose value a trace asks for, as of the rate of a
    dropout. They are written into the graph, and what is compiled is for these values; the others stay inputs."""

    def __init__(self, program: Any) -> None:
        graph = program if isinstance(program, torch.fx.GraphModule) else None
        uses = [list(_uses(graph, place)) for place in _places(graph)] if graph is not None else []
        self._read = frozenset(at for at, of_place in enumerate(uses) if _are_of_dynamos(of_place))
        self._known: tuple[int, ...] = ()

    def key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """What tells the values of those that are known in a call; as text, which tells 0.0 from -0.0."""
        return tuple([(float, repr(args[at].item())) for at in self._known])

    def values(self, args: Sequence[Any]) -> dict[int, float]:
        """The values in a call of all that may be asked for, by position."""
        return {at: args[at].item() for at in self._read}

    def among(self, values: Mapping[int, float]) -> dict[int, float]:
        """The values of those that are known."""
        return {at: values[at] for at in self._known if at in values}

    def written_into(self, program: Any, values: Mapping[int, float]) -> Any:
        """The graph with those that are known in it."""
        known = self.among(values)
        if not known:
            return program
        written = copy_of(program)
        for at, place in enumerate(_places(written)):
            for read in list(_uses(written, place)) if at in known else ():
                for user in list(read.users):
                    with_value = functools.partial(_instead, read, known[at])
                    user.args, user.kwargs = map_arg(user.args, with_value), map_arg(user.kwargs, with_value)
                read.graph.erase_node(read)
        for part in nested_graphs(written):
            part.recompile()
        return written

    def ask(self, program: torch.fx.GraphModule, node: Node | None, values: Iterable[int]) -> bool:
        """Whether more are known from here on, of those in `values`: what `node` of the graph is computed with, where a trace
        stopped there, or else all."""
        at = {place: index for index, place in enumerate(_places(program))}
        asked: set[int] = set()
        sources = [] if node is None else list(node.all_input_nodes)
        for source in sources:  # to which come those that a number was computed from
            read = {at[place] for place in (source, *source.all_input_nodes) if at.get(place) in self._read}
            asked |= read
            if not read and isinstance(source.meta.get("example_value"), torch.SymFloat | torch.SymBool | torch.SymInt):
                sources.extend(source.all_input_nodes)
        more = (asked or self._read).intersection(values).difference(self._known)
        self._known = tuple(sorted({*self._known, *more}))
        return bool(more)


def _places(module: torch.fx.GraphModule) -> list[Node]:
    return list(module.graph.find_nodes(op="placeholder"))


def _uses(module: torch.fx.GraphModule, place: Node) -> Iterator[Node]:
    """What is done with a placeholder: in the bodies of checkpoints, to which it is passed on, too."""
    for user in place.users:
        body = _body(module, user)
        if body is None:
            yield user
            continue
        for given, inside in zip(user.args[1:], _places(body), strict=False):
            if given is place:
                yield from _uses(body, inside)


def _body(module: torch.fx.GraphModule, node: Node) -> torch.fx.GraphModule | None:
    """The graph that a checkpoint calls, if nothing else calls it."""
    name = node.args[0] if node.target is CHECKPOINTED else None
    if not isinstance(name, Node) or name.op != "get_attr":
        return None
    callers = [user for same in module.graph.find_nodes(op="get_attr", target=name.target) for user in same.users]
    body = getattr(module, str(name.target), None)
    return body if callers == [node] and isinstance(body, torch.fx.GraphModule) else None


def _are_of_dynamos(uses: Sequence[Node]) -> bool:
    """Whether a placeholder with these uses is a number that Dynamo passes as a tensor: all of them read it."""
    reads = [user for user in uses if (user.op, user.target) == ("call_method", "item")]
    values = [read.meta.get("example_value") for read in reads]
    return 0 < len(reads) == len(uses) and all(
        isinstance(value, torch.SymFloat) and value.node.has_hint() for value in values
    )


def _instead(node: Node, value: float, found: Node) -> Any:
    return value if found is node else found


def tensors_for_numbers(module: torch.fx.GraphModule) -> None:
    """Compute with 0-dim tensors what a graph computes with numbers that it reads, as far as operators take them."""
    graph = module.graph
    tensors: dict[Node, Node] = {}
    for node in list(graph.nodes):
        if _is_number(node):
            _add_tensor(graph, node, tensors)
        elif node.target is aten.scalar_tensor.default and _lies_with(node, tensors.get(node.args[0])):
            with graph.inserting_before(node):
                made = _call(graph, _cast, tensors[node.args[0]], node.meta["val"].dtype)
            node.replace_all_uses_with(made)
            graph.erase_node(node)
        elif (number := number_in(node)) is not None and isinstance(number, Node):
            _write_out(graph, node, tensors.get(number))
        elif node.target in _BESIDE_TENSORS and not node.kwargs and any(source in tensors for source in node.args):
            _take_tensors(graph, node, tensors)
    for node in reversed(list(graph.nodes)):
        if not node.users and (node in tensors or node in tensors.values()):
            graph.erase_node(node)
    module.recompile()


def save_numbers_as_tensors(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, *, returned: int) -> None:
    """Rewrite two graphs, of which the first gives `returned` values before those that it saves.

    Torch saves numbers last and takes them first; afterwards they come first in both."""
    output = forward.graph.output_node()
    outputs: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    saved = outputs[returned:]
    numbers = [node for node in saved if _is_number(node)]
    if not numbers:
        return
    inputs = backward.graph.find_nodes(op="placeholder")
    with forward.graph.inserting_before(output):
        tensors = [_call(forward.graph, aten.scalar_tensor.default, node, **_whole(node)) for node in numbers]
    with backward.graph.inserting_before(inputs[-1].next):
        for tensor, placeholder in zip(tensors, inputs, strict=False):
            read = backward.graph.call_function(_read, (placeholder,))
            placeholder.replace_all_uses_with(read, lambda user, read=read: user is not read)
            read.meta["val"], placeholder.meta["val"] = placeholder.meta["val"], tensor.meta["val"]
    output.args = ((*outputs[:returned], *tensors, *(node for node in saved if node not in numbers)),)
    output.meta.pop("desc", None)  # torch's words for what each output is
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()


def _whole(number: Node) -> dict[str, Any]:
    is_float = isinstance(number.meta["val"], torch.SymFloat)
    return {"dtype": torch.float64 if is_float else torch.int64, "device": torch.device("cpu")}


def _is_number(node: Any) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.SymFloat | torch.SymInt)


def _lies_with(node: Node, tensor: Node | None) -> bool:
    return tensor is not None and node.meta["val"].device == tensor.meta["val"].device


def _add_tensor(graph: torch.fx.Graph, node: Node, tensors: dict[Node, Node]) -> None:
    """Add the number `node` as a 0-dim tensor, if it was read from one or computed from such."""
    with graph.inserting_after(node):
        if node.target is _read and node.args[0].meta["val"].dim() == 0:  # type: ignore[union-attr]
            tensors[node] = _call(graph, _cast, node.args[0], torch.float64)
        elif node.target in _ARITHMETIC and all(part in tensors or type(part) in (int, float) for part in node.args):
            parts = [tensors.get(part, part) for part in node.args]  # type: ignore[arg-type]
            tensors[node] = _call(graph, _ARITHMETIC[node.target], *parts)


def _take_tensors(graph: torch.fx.Graph, node: Node, tensors: dict[Node, Node]) -> None:
    """Give an operator tensors for the numbers that it takes, in the precision that it has for numbers."""
    dtype, values = node.meta["val"].dtype, [part.meta["val"] for part in node.all_input_nodes]
    if not dtype.is_floating_point:
        return
    # Else it would decide the result's dtype.
    if any(isinstance(value, torch.Tensor) and value.dim() for value in values):
        dtype = _PRECISION.get(dtype, dtype)
    with graph.inserting_before(node):
        node.args = tuple(
            _call(graph, _cast, tensors[part], dtype) if part in tensors else part  # type: ignore[index]
            for part in node.args
        )


def _write_out(graph: torch.fx.Graph, node: Node, number: Node | None) -> None:
    """Write out an operator that takes a number and no tensor, in the precision that it has for numbers."""
    values = tree_leaves(node.meta["val"])
    dtypes = {value.dtype for value in values}
    if len(values) > 1 and not all(type(size) is int for value in values for size in value.shape):
        return  # operators on lists have no rule for sizes that change
    if number is None or len(dtypes) != 1 or not (dtype := dtypes.pop()).is_floating_point:
        return
    if all(value.dim() for value in values):  # else the number would decide a result's dtype
        dtype = _PRECISION.get(dtype, dtype)
    with graph.inserting_before(node):
        write_out(node, functools.partial(_call, graph), _call(graph, _cast, number, dtype))


def _call(graph: torch.fx.Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A call at the graph's insertion point, with what it gives, without data."""
    node = graph.call_function(target, args, kwargs)
    fakes = map_arg(args, lambda source: source.meta["val"])
    fake = next((item for item in tree_leaves(fakes) if isinstance(item, torch.Tensor)), None)
    if fake is None:
        fake = next(value for other in graph.nodes if isinstance(value := other.meta.get("val"), torch.Tensor))
        if target is aten.scalar_tensor.default:
            fakes = (0.5,)  # a number that was read is no more than a symbol
    with mode_of_fake(fake):
        node.meta["val"] = target(*fakes, **kwargs)
    return node
