"""Inputs that come to share memory which their storages do not show: tensors over one NumPy array, views with other data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from treeplay.torch_compile import compile_graph
from wrap.aot.oracle import numbers


def exchange(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.mul_(2)
    x.sub_(y)
    return x - 3 * y


def step(x: torch.Tensor, y: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    y.add_(1)
    return sum((k * item for k, item in enumerate(rest, 2)), x - y)  # type: ignore[return-value]


def apart() -> list[Any]:
    return [numbers(4), numbers(4) + 1]


def of_one_array() -> list[Any]:
    array = np.arange(4, dtype=np.float32)
    return [torch.from_numpy(array), torch.from_numpy(array)]


def overlapping() -> list[Any]:
    array = np.arange(6, dtype=np.float32)
    return [torch.from_numpy(array[:4]), torch.from_numpy(array[2:])]


def interleaved() -> list[Any]:
    array = np.arange(8, dtype=np.float32)
    return [torch.from_numpy(array[::2]), torch.from_numpy(array[1::2])]


def agree(compiled: Callable[..., Any], function: Callable[..., Any], make: Callable[[], list[Any]]) -> None:
    expected, found = make(), make()
    assert torch.equal(compiled(*found), function(*expected))
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("first", [apart, of_one_array, overlapping])
def test_Wplus1_tensors_over_one_array_are_written_as_eager_writes_them(first: Callable[[], list[Any]]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(exchange, backend="treeplay", options={"inner": "aten"})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for make in (first, apart, of_one_array, overlapping, apart):
            agree(compiled, exchange, make)
    assert sum("no one storage of torch's" in str(item.message) for item in told) == 1


def test_Wplus1_interleaved_parts_of_one_array_are_compiled() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(exchange, backend="treeplay", options={"inner": "aten"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agree(compiled, exchange, interleaved)


def test_Wplus1_one_array_among_many_arguments_is_seen() -> None:
    rest = [numbers(4) - k for k in range(12)]
    call = compile_graph(lambda *given: (step(*given),), [*apart(), *rest], inner="aten")
    with pytest.warns(UserWarning, match="no one storage of torch's"):
        agree(lambda *given: call(*given)[0], step, lambda: [*of_one_array(), *rest])


def test_Wplus1_views_that_were_given_other_data_are_compiled_for_what_they_are() -> None:
    def make() -> tuple[Any, Any]:
        p = numbers(3, 3)
        return p, p.t()

    def program(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        p.add_(p)
        return q - 1

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="treeplay", options={"inner": "aten"})
    for function in (compiled, program):
        p, q = make()
        results = [function(p, q)]
        p.data = p.data.clone()  # autograd knows `q` as a view of `p` still, and their memory is two
        results += [function(p, q), p, q]
        q.data = p.data.t()
        results += [function(p, q), p, q]
        if function is compiled:
            found = results
    assert all(map(torch.equal, found, results))
