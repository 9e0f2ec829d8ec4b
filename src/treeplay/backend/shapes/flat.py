"""Graphs of any shape brought to the one that compilers take: flat inputs, and a flat tuple of results.

    nested result ─▶ flat tuple ─┐
    exporter's trees ─▶ taken off ├─▶ compile the simpler graph ─▶ the same steps undone around the callable
    nested inputs ─▶ flat inputs ─┘

Each step gives a `Normal`: the simpler graph, its inputs, and what undoes the step. A graph that needs no step stays as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from treeplay.backend.metadata import values_of
from treeplay.backend.passes import copy_of
from treeplay.backend.shapes import trees
from treeplay.backend.shapes.sizes import Function
from treeplay.graph_check import add_placeholder, check_module
from treeplay.torch_seam import fx, operators
from treeplay.torch_seam.trees import TreeSpec

Program = torch.fx.GraphModule | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Normal:
    """A simpler program and its inputs; `around` makes of what is compiled of it a callable like the original program."""

    program: Program
    inputs: Sequence[Any]
    around: Callable[[Function], Function] = lambda compiled: compiled


def normalised(program: Program, inputs: Sequence[Any]) -> Normal:
    """A program with flat inputs and flat results. A callable that is no graph is taken to return a flat tuple."""
    first = with_flat_result(program, inputs)
    second = with_plain_codegen(first.program, first.inputs)
    last = with_flat_inputs(second.program, second.inputs)
    return Normal(last.program, last.inputs, lambda compiled: first.around(second.around(last.around(compiled))))


def with_flat_result(program: Program, inputs: Sequence[Any]) -> Normal:
    """Rewrite a graph to return a flat tuple; the callable gives the original nesting back."""
    if not isinstance(program, torch.fx.GraphModule):
        return Normal(program, inputs)
    result = _opened(program, thawed_result(program), inputs)
    if type(result) is tuple and trees.is_flat(result):
        return Normal(program, inputs)
    leaves, tree = trees.flatten_tree(result)
    program.graph.output_node().args = (tuple(leaves),)
    check_module(program, "its results were made flat")
    program.recompile()

    def around(compiled: Function) -> Function:
        def call(*args: Any) -> Any:
            return trees.unflatten_tree(list(compiled(*args)), tree)

        return call

    return Normal(program, inputs, around)


def thawed_result(module: torch.fx.GraphModule) -> Any:
    """What a graph returns, in terms of its nodes."""
    return trees.thawed(module.graph.output_node().args[0])


def _may_be_many(part: Any) -> bool:
    """Whether a node might yield several tensors. Operators of ATen say so; of others the value tells, where it is known."""
    if not isinstance(part, torch.fx.Node):
        return False
    value = part.meta.get("val", part.meta.get("example_value"))
    if value is not None:
        return isinstance(value, trees.CONTAINERS)
    returns = operators.schema_returns(part.target) if callable(part.target) else None
    if returns is not None:
        return returns > 1
    return part.op not in ("placeholder", "get_attr") and part.target is not operator.getitem


def _opened(module: torch.fx.GraphModule, result: Any, inputs: Sequence[Any]) -> Any:
    """`result` with each node that yields several tensors replaced by a container of its elements."""
    leaves, tree = trees.flatten_tree(result)
    many = [leaf for leaf in leaves if _may_be_many(leaf)]
    values = values_of(module, inputs, many)
    with module.graph.inserting_before(module.graph.output_node()):
        opened = [
            _elements(leaf, values[leaf]) if isinstance(leaf, torch.fx.Node) and leaf in values else leaf
            for leaf in leaves
        ]
    return trees.unflatten_tree(opened, tree)


def _elements(node: torch.fx.Node, value: Any) -> Any:
    """A node as a container like `value`, of nodes that take its elements."""
    if not isinstance(value, (list, tuple)):
        return node
    parts = [_elements(node.graph.call_function(operator.getitem, (node, at)), part) for at, part in enumerate(value)]
    if hasattr(value, "_fields"):
        return type(value)(*parts)
    return type(value)(parts)


def with_plain_codegen(program: Program, inputs: Sequence[Any]) -> Normal:
    """Take an exporter's input and output trees off a graph; the callable applies them."""
    found = fx.exporter_trees(program.graph) if isinstance(program, torch.fx.GraphModule) else None
    if not isinstance(program, torch.fx.GraphModule) or found is None:
        return Normal(program, inputs)
    tree_in, tree_out = found
    has_keywords = _is_tree_of_call(tree_in)
    fx.drop_exporter_trees(program.graph)
    simple = torch.fx.GraphModule(program, program.graph)  # without the exporter's hook, which checks the trees
    simple.meta.update(program.meta)

    def flat(args: Sequence[Any]) -> list[Any]:
        return trees.leaves_like((tuple(args), {}) if has_keywords else tuple(args), tree_in)

    def around(compiled: Function) -> Function:
        def call(*args: Any) -> Any:
            results = compiled(*flat(args))
            return results if tree_out is None else trees.unflatten_tree(list(results), tree_out)

        return call

    return Normal(simple, flat(inputs), around)


def _is_tree_of_call(tree: TreeSpec) -> bool:
    """Whether `tree` is that of `(args, kwargs)`; tracing with concrete arguments leaves that of `args` alone."""
    probe = trees.unflatten_tree([None] * tree.num_leaves, tree)
    return len(probe) == 2 and type(probe[0]) is tuple and type(probe[1]) is dict


def with_flat_inputs(program: Program, inputs: Sequence[Any]) -> Normal:
    """Give each leaf of nested inputs a placeholder of its own; the callable takes the original nesting.

    At a call the tree has to be the one of `inputs`. Containers that the graph may steal are emptied once they are read."""
    if trees.is_flat(inputs):
        return Normal(program, inputs)
    leaves, tree = trees.flatten_tree(tuple(inputs))
    stolen = _stolen(program)
    read = _list_reader(len(inputs[0]), len(inputs)) if _is_list_and_numbers(inputs) else None
    flat: Program = program
    if isinstance(program, torch.fx.GraphModule):
        flat = program = copy_of(program)  # Dynamo still asks the placeholders of its own what they stand for
        _flatten_placeholders(program, inputs)
    else:
        flat = _taking_leaves(program, tree)

    def around(compiled: Function) -> Function:
        def call(*args: Any) -> Any:
            found = read(args) if read is not None else None
            if found is None:
                found = trees.leaves_like(args, tree)
            for at in stolen:
                args[at].clear()
            return compiled(*found)

        return call

    return Normal(flat, leaves, around)


def _taking_leaves(program: Callable[..., Any], tree: TreeSpec) -> Callable[..., Any]:
    def flat(*leaves: Any) -> Any:
        return program(*trees.unflatten_tree(leaves, tree))

    return flat


def _is_list_and_numbers(inputs: Sequence[Any]) -> bool:
    """Whether inputs are one flat list and then numbers, as autograd's own compiled graphs have them."""
    first, *rest = inputs
    return (
        type(first) is list and trees.is_flat(first) and all(isinstance(value, (int, torch.SymInt)) for value in rest)
    )


def _list_reader(length: int, count: int) -> Callable[[Sequence[Any]], list[Any] | None]:
    """A reader of such inputs that walks no tree; None where the arguments are not of that kind."""

    def read(args: Sequence[Any]) -> list[Any] | None:
        if len(args) != count or type(args[0]) is not list or len(args[0]) != length:
            return None
        leaves = [*args[0], *args[1:]]
        return leaves if trees.is_flat(leaves) else None

    return read


def _stolen(program: Program) -> tuple[int, ...]:
    if not isinstance(program, torch.fx.GraphModule):
        return ()
    nodes = program.graph.find_nodes(op="placeholder")
    return tuple(at for at, node in enumerate(nodes) if node.meta.get("steal_arg", False))


def _flatten_placeholders(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Replace each placeholder of a container by placeholders of its leaves, and what is taken out of it by these."""
    graph = module.graph
    for node, value in zip(graph.find_nodes(op="placeholder"), inputs, strict=True):
        if not isinstance(value, trees.CONTAINERS):
            continue
        leaves, tree = trees.flatten_tree(value)
        with graph.inserting_before(node):
            parts = [add_placeholder(graph, f"{node.target}_{at}") for at in range(len(leaves))]
        _replace(node, trees.unflatten_tree(parts, tree))
        graph.erase_node(node)
    check_module(module, "its inputs were made flat")
    module.recompile()


def _replace(node: torch.fx.Node, value: Any) -> None:
    """Put a container of nodes in the place of `node`; an element taken out of it by a known key is the node itself."""
    for user in list(node.users):
        if user.target is operator.getitem and user.args[0] is node and not isinstance(user.args[1], torch.fx.Node):
            part = value[user.args[1]]
            if isinstance(part, torch.fx.Node):
                user.replace_all_uses_with(part)
            else:
                _replace(user, part)
            user.graph.erase_node(user)
        else:
            user.args = torch.fx.node.map_arg(user.args, lambda found: value if found is node else found)
            user.kwargs = torch.fx.node.map_arg(user.kwargs, lambda found: value if found is node else found)
