"""What Inductor makes of single operators: those that it takes apart before it sees them, and ours, for which it has no rule.

Importing this module gives Inductor the rules.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from treeplay.lower.functional import apart, computed_once, fresh
from treeplay.lower.inductor.as_kernels import as_kernels
from treeplay.lower.inductor.checked import with_checks
from treeplay.lower.inductor.signs import with_signs
from treeplay.torch_seam.inductor import (
    InplaceBernoulliFallback,
    fallback_handler,
    lowerings,
    register_lowering,
    select_decomp_table,
)
from treeplay.torch_seam.operators import OpOverload
from treeplay.torch_seam.schemas import is_random

_RANDOM_FROM = getattr(torch.ops.aten.random, "from")

EMITS = 6
"""To be raised when our own rules emit something else: cached artifacts are of what they emitted."""


def inductor_decompositions(*, eager_random: bool) -> dict[Any, Any]:
    """Operators that Inductor wants taken apart before it sees them; where their kernels check values, the parts do. Where
    they are to draw eager's random numbers, those that draw any stay whole: in parts they would draw others."""
    table = with_checks(as_kernels(with_signs(select_decomp_table()))) | {_RANDOM_FROM: _random_from}
    return {op: parts for op, parts in table.items() if not (eager_random and _draws_whole(op))}


def _draws_whole(op: Any) -> bool:
    return isinstance(op, OpOverload) and is_random(op) and op is not _RANDOM_FROM


def _random_from(values: Any, low: int, high: int | None, *, generator: Any = None) -> Any:
    # Named as a word of Python's, it cannot stand in a graph's code. `randint_like` is made of it, and draws the same.
    if high is None or generator is not None:
        return NotImplemented
    return torch.ops.aten.randint_like.low_dtype(values, low, high)


# Of operators that Inductor takes apart in any case, it has no rule where they are to stay whole.
_bernoulli = fallback_handler(torch.ops.aten.bernoulli.default, add_to_fallback_set=False)
register_lowering(torch.ops.aten.bernoulli.default, type_promotion_kind=None)(_bernoulli)


class _KeptBernoulli(InplaceBernoulliFallback):
    """Inductor's call, which it would leave out where nobody reads what is drawn."""

    def has_side_effects(self) -> bool:
        return True


@register_lowering(torch.ops.aten.bernoulli.p, type_promotion_kind=None)
def _bernoulli_p(value: Any, p: float = 0.5) -> Any:
    drawn = lowerings[torch.ops.aten.clone.default](value)
    drawn.realize()
    _KeptBernoulli(torch.ops.aten.bernoulli_.float, drawn, p)
    return drawn


@register_lowering(computed_once, type_promotion_kind=None)
def _computed_once(value: Any) -> Any:
    # A number that each element of a loop would compute anew (a power, say) is computed once and stored.
    value.realize()
    return value


@register_lowering(fresh, type_promotion_kind=None)
def _fresh(value: Any) -> Any:
    made = lowerings[torch.ops.aten.clone.default](value)
    made.realize()
    return made


@register_lowering(apart, type_promotion_kind=None)
def _apart(value: Any) -> Any:
    return fallback_handler(torch.ops.aten.clone.default, add_to_fallback_set=False)(value)
