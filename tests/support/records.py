"""Programs whose state is in records, beside an eager twin: what they return and leave, and what they leave alone."""

from __future__ import annotations

import dataclasses
import functools
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from support import assert_same, jit

Program = Callable[[Any, Tensor], Any]
Change = Callable[[Any], Any]
CALLS = 5
_OTHERS = (FunctionType, weakref.ref, set, functools._lru_cache_wrapper)
"""What is another object on each side."""


class World:
    """An object with attributes: what a program works on."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def parts_of(value: Any) -> Any:
    """A value with records, and the world, taken apart: the `==` of a record would be asked of tensors."""
    if isinstance(value, World):
        return {name: parts_of(each) for name, each in vars(value).items() if not isinstance(each, _OTHERS)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            type(value).__name__,
            *(f"{name}" for name, _ in held(value)),
            *(parts_of(each) for _, each in held(value)),
        ]
    if isinstance(value, dict):
        return (
            [*value.values()]
            if any(map(dataclasses.is_dataclass, value))
            else {k: parts_of(v) for k, v in value.items()}
        )
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(parts_of, value)]
    return value


def held(record: Any) -> list[tuple[str, Any]]:
    """The fields of a record that it has, and what else was put on it."""
    names = [*(each.name for each in dataclasses.fields(record)), *getattr(record, "__dict__", ())]
    return [(name, getattr(record, name)) for name in dict.fromkeys(names) if hasattr(record, name)]


def nothing(world: Any) -> None:
    """A change that changes nothing."""


def beside_eager(
    program: Program,
    make: Callable[[], Any],
    changes: Sequence[Change] = (),
    *,
    calls: int = CALLS,
    grad: bool = False,
    **options: Any,
) -> Any:
    """The statistics of a jitted program after some calls, and as many after each change, beside an eager twin.

    Results and the attributes of the world are the same after each call; what either call found in `state` is as it was before,
    and is there after the one if it is after the other."""
    mine, twin = make(), make()
    jitted = jit(lambda x: program(mine, x), **{"on_refusal": "eager", **options})
    with warnings.catch_warnings(), torch.set_grad_enabled(grad):
        warnings.simplefilter("ignore")
        for stage, change in enumerate((nothing, *changes)):
            change(mine), change(twin)
            for call in range(calls):
                where = f"stage {stage}, call {call}"
                x = torch.arange(3.0) + call + stage
                old, others = mine.state, twin.state
                before = repr(parts_of(old))
                found, expected = jitted(x), program(twin, x)
                assert_same(parts_of(found), parts_of(expected), where)
                assert_same(parts_of(mine), parts_of(twin), where)
                assert (mine.state is old) == (twin.state is others), where
                assert (repr(parts_of(old)) == before) == (repr(parts_of(others)) == before), where
    return jitted.statistics()
