"""What schemas and tags say of ATen operators: an operator goes in, a fact comes out. Runs nothing.

The exceptions that no schema tells are the small tables at the top.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from treeplay.torch_seam.operators import OpOverload

aten = torch.ops.aten
# Zeros without memory: tangents of which torch knows that they are zero.
MAKES_ZEROS = aten._efficientzerotensor.default

# Memory with no defined contents: where memory is given, there is nothing to run.
EMPTY = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_strided.default,
        aten.empty_permuted.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    }
)
# A new tensor with the values of its first argument: where memory is given, a copy. Their `out` overloads allocate first.
COPIES = frozenset({aten.clone.default, aten._to_copy.default})
# What a tensor made of numbers comes through: the tensor itself.
LIFTS = frozenset({aten.lift_fresh.default, aten.lift.default})
# Functional operators that torch defines as another one with more arguments, where only the other has an `out` form.
_SYNONYMS: dict[Any, tuple[Any, tuple[Any, ...]]] = {
    aten.relu.default: (aten.clamp_min.default, (0,)),
    aten.sum.default: (aten.sum.dim_IntList, ([], False)),
    aten.mean.default: (aten.mean.dim, ([], False)),
    **{getattr(aten, name).Scalar: (getattr(aten, name).Tensor, ()) for name in ("add", "sub", "mul", "div")},
}
# Operators whose `out` form goes by which of its tensors share memory. In an arena all do.
_COMPARES_MEMORY = frozenset({aten.linalg_qr.default})
# Operators whose kernels ask whether gradients are on, to decide whether to keep what their backward needs: the
# position of the result that is only there then.
KEEPS_FOR_BACKWARD: dict[Any, int] = {aten.mkldnn_rnn_layer.default: 3} if hasattr(aten, "mkldnn_rnn_layer") else {}


@dataclass(frozen=True, slots=True)
class OutForm:
    """The overload of an operator that writes into given tensors, and the names of those arguments in order.

    `base` is the functional operator it is the form of; `more` are arguments to put after the traced operator's own.
    """

    op: OpOverload
    base: OpOverload
    outs: tuple[str, ...]
    more: tuple[Any, ...] = ()


def is_written(argument: Any) -> bool:
    """Whether an operator writes to this argument of its schema."""
    return argument.alias_info is not None and argument.alias_info.is_write


def by_name(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that an operator is given, by the names of its schema."""
    return {**dict(zip((argument.name for argument in op._schema.arguments), args, strict=False)), **kwargs}


def written_arguments(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors that an operator writes to, or what stands for them in a graph, whether its schema says so or not."""
    written = [args[place] if place < len(args) else kwargs.get(name) for place, name in _written_places(op)]
    return [leaf for leaf in leaves_of(written) if leaf is not None] + written_untold(op, args, kwargs)


@lru_cache(maxsize=4096)
def _written_places(op: OpOverload) -> tuple[tuple[int, str], ...]:
    arguments = enumerate(op._schema.arguments)
    return tuple((place, argument.name) for place, argument in arguments if is_written(argument))


def written_untold(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The running statistics that a norm updates without a word of that in its schema."""
    if op not in _NORMS:
        return []
    given, updates = by_name(op, args, kwargs), _NORMS[op]
    statistics = [given[name] for name in ("running_mean", "running_var")] if given[updates] else []
    return [one for one in statistics if one is not None]


def drops_none(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator would draw for the dropout of attention alone, whose probability is 0."""
    usual = {item.name: item.default_value for item in op._schema.arguments if item.name == "dropout_p"}
    return bool((usual | by_name(op, args, kwargs)).get("dropout_p") == 0)


def draws(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether what a graph calls may draw, called so. Attention without dropout could, and does not."""
    return is_random(op) and not drops_none(op, args, kwargs)


# Under inference mode, composite operators come whole.
_NORMS: dict[OpOverload, str] = {
    aten.native_batch_norm.default: "training",
    aten.cudnn_batch_norm.default: "training",
    aten.miopen_batch_norm.default: "training",
    aten.batch_norm.default: "training",
    aten.instance_norm.default: "use_input_stats",
}


@lru_cache(maxsize=4096)
def gives_outs(op: OpOverload) -> bool:
    """Whether an operator gives back the tensors at `out`, which it may resize, and nothing else."""
    outs = [argument.alias_info for argument in op._schema.arguments if argument.kwarg_only and is_written(argument)]
    return bool(outs) and len(outs) == len(op._schema.returns) and all(map(is_written, op._schema.returns))


def returns_count(op: OpOverload) -> int | None:
    """How many tensors an operator returns, or None where the number depends on the call."""
    kinds = [str(item.type) for item in op._schema.returns]
    return len(kinds) if kinds and all(kind == "Tensor" for kind in kinds) else None


def is_random(op: Any) -> bool:
    """Whether what a graph calls is an operator that may draw from a random generator."""
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


def returns_memory(op: Any) -> bool:
    """Whether an operator returns what it was given, or a view of that."""
    schema = getattr(op, "_schema", None)
    return schema is not None and any(returned.alias_info is not None for returned in schema.returns)


@lru_cache(maxsize=4096)
def returns_view(op: OpOverload) -> bool:
    """Whether an operator may return a view of what it was given, other than what it has written."""
    return any(item.alias_info is not None and not is_written(item) for item in op._schema.returns)


def is_inplace_view(op: Any) -> bool:
    """Whether an operator changes the shape or the memory of the very tensor that it is given."""
    return torch.Tag.inplace_view in op.tags


@lru_cache(maxsize=4096)
def gives_back(op: OpOverload) -> bool:
    """Whether an operator writes to its first argument, leaves its shape, and gives back that very tensor."""
    arguments, returns = op._schema.arguments, op._schema.returns
    written = [argument for argument in arguments if is_written(argument)]
    return (
        not is_inplace_view(op)
        and len(returns) == len(written) == 1
        and written[0].name == arguments[0].name
        and is_written(returns[0])
        and str(returns[0].type) == "Tensor"
    )


@lru_cache(maxsize=4096)
def is_elementwise(op: OpOverload) -> bool:
    """Whether the numbers that an operator is given decide what its results hold and not how they lie."""
    return torch.Tag.pointwise in op.tags or is_foreach(op)


@lru_cache(maxsize=4096)
def is_foreach(op: OpOverload) -> bool:
    """Whether an operator does to each tensor of a list what another does to one."""
    return op._schema.name.startswith("aten::_foreach_")


@lru_cache(maxsize=4096)
def depends_on_data(op: OpOverload) -> bool:
    """Whether an operator gives what nobody knows before it has run: a shape, or a number."""
    return torch.Tag.dynamic_output_shape in op.tags or torch.Tag.data_dependent_output in op.tags


@lru_cache(maxsize=4096)
def is_foreach_write(op: OpOverload) -> bool:
    """Whether an operator writes to lists of tensors. What tells autograd of these writes is inside of its kernel, and is off
    while a dispatch mode runs it: the mode has to."""
    return is_foreach(op) and op._schema.is_mutable


def tell_autograd(op: OpOverload, args: tuple[Any, ...]) -> None:
    """Move the versions of the tensors that an operator with `is_foreach_write` was given to write."""
    written = written_arguments(op, args, {})
    torch.autograd.graph.increment_version([tensor for tensor in written if not tensor.is_inference()])


@lru_cache(maxsize=4096)
def out_form(op: OpOverload) -> OutForm | None:
    """The `out` overload that does the same work as `op` without allocating, if there is one.

    Only kernels written for it count: torch generates an `out` overload for every operator without one, which
    allocates a result, copies it and frees it, and so costs more than the functional form.
    """
    if _reduces_a_loss(op) or op in _COMPARES_MEMORY:
        return None
    target, more = _SYNONYMS.get(op, (op, ()))
    packet = target._overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        outs = _outs_added(target, candidate)
        if outs and torch.Tag.generated not in candidate.tags:
            return OutForm(candidate, target, outs, more)
    return None


def _reduces_a_loss(op: OpOverload) -> bool:
    """A loss resizes its `out` to one loss an element before it reduces: given memory would be outgrown."""
    is_backward = "backward" in op._schema.name
    return not is_backward and any(argument.name == "reduction" for argument in op._schema.arguments)


def _outs_added(op: OpOverload, candidate: OpOverload) -> tuple[str, ...]:
    own = {argument.name: str(argument.type) for argument in op._schema.arguments}
    added = [argument for argument in candidate._schema.arguments if argument.name not in own]
    shared = {argument.name: str(argument.type) for argument in candidate._schema.arguments if argument.name in own}
    fits = (
        shared == own
        and len(added) == returns_count(op)
        and all(is_written(argument) and argument.kwarg_only and str(argument.type) == "Tensor" for argument in added)
    )
    return tuple(argument.name for argument in added) if fits else ()


def leaves_of(value: Any) -> list[Any]:
    """The leaves of an operator's nested arguments, in order."""
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves_of(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves_of(item)]
    return [value]


def with_leaves(convert: Callable[[Any], Any], value: Any) -> Any:
    """An operator's nested arguments with other leaves: they are lists, tuples and dictionaries of nobody's own classes, so
    that this is several times faster than torch's general way."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([with_leaves(convert, item) for item in value])
    if kind is dict:
        return {name: with_leaves(convert, item) for name, item in value.items()}
    return convert(value)
