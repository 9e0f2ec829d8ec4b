"""The checks of values that torch's kernels make, for operators that compilers write out without them.

    bernoulli(p)  ─▶  _assert_async(all(0 <= p <= 1));  rand_like(p) < p

On a GPU the kernels assert where nobody can catch it, so there the parts are the compiler's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

aten = torch.ops.aten

Predicate = Callable[..., torch.Tensor]


def with_checks(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """A table of decompositions in which those operators check what they are given."""
    checked = {op: functools.partial(_checked, table[op], holds) for op, holds in CONDITIONS.items() if op in table}
    return {**table, **checked}


def _checked(parts: Callable[..., Any], holds: Predicate, *args: Any, **kwargs: Any) -> Any:
    if all(value.device.type == "cpu" for value in args if isinstance(value, torch.Tensor)):
        aten._assert_async.msg(holds(*args, **kwargs), "an operator was given values that it does not take")
    return parts(*args, **kwargs)


def _is_share(values: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return ((values >= 0) & (values <= 1)).all()


def _is_deviation(_: Any, deviation: torch.Tensor, *__: Any, **___: Any) -> torch.Tensor:
    return (deviation >= 0).all()


def _are_counts(counts: torch.Tensor, output_size: int | None = None) -> torch.Tensor:
    is_right = (counts >= 0).all()
    return is_right if output_size is None else is_right & (counts.sum() == output_size)


CONDITIONS: dict[Any, Predicate] = {
    aten.bernoulli.default: _is_share,
    aten.binary_cross_entropy.default: _is_share,
    aten.normal.float_Tensor: _is_deviation,
    aten.normal.Tensor_Tensor: _is_deviation,
    aten.repeat_interleave.Tensor: _are_counts,
}
"""What has to hold of their arguments, by operator."""

_LOOKS_UP = {aten.gather.default: 2, aten.index_select.default: 2, aten.embedding.default: 1}
_KEEPS_INDICES = {aten.unsqueeze.default: 0, aten.view.default: 0, aten.where.self: 1, aten.clone.default: 0}


def has_unchecked_scatter(graph: torch.fx.Graph) -> bool:
    """Whether a number is scattered to places that no other operator looks at: it alone checks their range."""
    scattered = {_source(node.args[2]) for node in graph.find_nodes(op="call_function", target=aten.scatter.value)}
    looked_up = {
        _source(node.args[at])
        for op, at in _LOOKS_UP.items()
        for node in graph.find_nodes(op="call_function", target=op)
    }
    return not scattered <= looked_up


def _source(index: Any) -> Any:
    """What indices are taken from. Those that a loss ignores count as its others, which are the targets."""
    while isinstance(index, torch.fx.Node) and index.target in _KEEPS_INDICES:
        index = index.args[_KEEPS_INDICES[index.target]]
    return index
