"""Inputs and results whose memory is not what it seems: tensors over one NumPy array, views with other data, negative views."""

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


def negative(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    view = torch._neg_view(x)
    torch.add(view, x.neg(), out=view)
    y.index_copy_(0, torch.tensor([0]), x[1:2].clone())
    y.copy_(y.flip(0))
    made = y.flip(1) - x
    return [torch.cat([x.t()]), made.diagonal(), made[1:]]


@pytest.mark.compile
def test_Wplus1_negative_views_lone_parts_and_two_writes_are_compiled_as_eager_has_them() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(negative, backend="treeplay")
    given, wanted = ([numbers(3, 3), numbers(3, 3) - 1] for _ in range(2))
    with torch.no_grad():
        found, expected = compiled(*given), negative(*wanted)
    assert all(map(torch.equal, [*given, *found], [*wanted, *expected]))
    assert [item.stride() for item in found] == [item.stride() for item in expected]
    assert found[1].untyped_storage()._cdata == found[2].untyped_storage()._cdata


def test_Wplus1_a_negative_input_or_result_runs_operator_by_operator() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: [x + 1, torch._neg_view(x - 2)], backend="treeplay")
    first, second = compiled(torch._neg_view(numbers(3)))
    assert torch.equal(first, 1 - numbers(3)) and second.is_neg() and torch.equal(second, numbers(3) + 2)


@pytest.mark.parametrize("dynamic", [None, True])
def test_Wplus1_an_argument_that_begins_to_overlap_itself_is_written_as_eager_writes_it(dynamic: bool | None) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        x.add_(1)
        return x.sum()

    def folded() -> list[Any]:
        return [numbers(36).as_strided((3, 4), (1, 2))]

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="treeplay", options={"inner": "aten"}, dynamic=dynamic)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for make in (lambda: [numbers(3, 4)], folded, lambda: [numbers(4, 3).t()], folded):
            agree(compiled, program, make)
    assert sum("own elements share memory" in str(item.message) for item in told) == 1


@torch.library.custom_op("treeplay_tests::doubled", mutates_args=("x",))
def doubled(x: torch.Tensor) -> None:
    x.mul_(2)
    x.sub_(1)


def test_Wplus1_an_argument_that_overlaps_itself_is_written_by_an_operator_as_eager_writes_it() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        doubled(x)
        return x.sum()

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="treeplay", options={"inner": "aten"})
    with pytest.warns(UserWarning, match="own elements share memory"):
        agree(compiled, program, lambda: [numbers(36).as_strided((3, 4), (1, 2))])
