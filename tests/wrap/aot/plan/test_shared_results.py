"""Results of an inference graph that are parts of one new tensor share its memory, whatever compiles the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from wrap.aot.oracle import boxed, numbers, twin


def separately(module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A compiler that gives each result memory of its own, which begins somewhere in a larger one."""
    run = boxed(module, inputs)

    def apart(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        room = value.new_empty(value.numel() + 3)[3:]
        return room.as_strided(value.size(), value.stride(), 3).copy_(value)

    return lambda args: [apart(value) for value in run(args)]


def parts(x: torch.Tensor) -> list[torch.Tensor]:
    made = x.flip(0) - 1
    return [made.diagonal(), made[1:], x * 2]


def whole_and_part(x: torch.Tensor) -> list[torch.Tensor]:
    made = x - 1
    return [made[0], made, made.t(), made.detach()]


@pytest.mark.parametrize("function", [parts, whole_and_part])
def test_W4_results_of_one_memory_share_it_though_each_is_computed_alone(function: Callable[..., Any]) -> None:
    call = twin(function, lambda: [numbers(3, 3)], inference=separately)
    found, expected = call([numbers(3, 3)]), function(numbers(3, 3))
    found[0].fill_(7)
    expected[0].fill_(7)
    assert all(map(torch.equal, found, expected))


def test_W4_results_of_another_dtype_are_left_to_the_compiler() -> None:
    twin(lambda x: [(x - 1).view(torch.int32), x + 2], lambda: [numbers(3, 3)])
