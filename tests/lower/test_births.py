"""Allocations are told, so that what lies where a result lies later is not taken for it."""

from __future__ import annotations

import builtins
import contextlib
import gc
import threading
import weakref
from types import FunctionType
from typing import Any

import pytest
import torch

from support import call_of
from support.births import NotedBirths
from treeplay.lower.births import ResultsTold, ToldArtifact, makers_of_results, tell_results, telling
from treeplay.lower.stream import lower_for_stream
from treeplay.trace.jit import trace


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_results_in_memory_of_their_own_are_told() -> None:
    births, x, out = NotedBirths(), torch.randn(3, 4), torch.empty(3, 4)
    with ResultsTold(births):
        made = x * 2 - 1
        view = made.t()
        made.add_(1)
        torch.mul(made, 3, out=out)
        least, where = torch.min(made, 0)
    assert [place for place, _ in births.told][-2:] == [address(least), address(where)]
    assert address(made) in dict(births.told) and address(view) == address(made)
    assert address(out) not in dict(births.told) and address(x) not in dict(births.told)
    assert len(births.told) == 4  # the product, the difference, and two of min


def test_results_in_lists_among_results_are_told() -> None:
    births, given, first, second = NotedBirths(), torch.ones(1), torch.ones(2), torch.ones(3)
    tell_results(births, 7, ([given],), (first, [second, given], None))
    assert births.told == [(address(first), 7), (address(second), 7)]


def test_gradients_of_a_convolution_are_made_one_by_one_and_told_of_by_themselves() -> None:
    """In one call, the second lies where the workspace of the first lay."""
    x, weight = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    given = (torch.randn(2, 4, 6, 6), x, weight, [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    backward = torch.ops.aten.convolution_backward
    for wanted in ([True, True, True], [True, True, False], [False, True, True], [True, False, False]):
        births = NotedBirths()
        with ResultsTold(births):
            made = backward(*given, wanted)
        eager = backward(*given, wanted)
        assert all(torch.equal(one, other) for one, other in zip(made, eager, strict=True) if one is not None)
        assert [one is not None for one in made] == [one is not None for one in eager] == wanted
        told = dict(births.told)
        times = [told[address(one)] for one in made if one is not None]
        assert len(set(times)) == 1 + (wanted[0] and wanted[1])


def test_a_higher_order_operator_is_told_as_one() -> None:
    births, x = NotedBirths(), torch.ones(3)
    with ResultsTold(births):
        (made,) = torch.ops.higher_order.invoke_subgraph(torch.fx.symbolic_trace(lambda x: (x * 2 + 1,)), "graph", x)
    assert made.tolist() == [3, 3, 3] and births.told[-1][0] == address(made)


class Wrapper:
    """An artifact as Inductor writes it, and what it has allocated, in order. Its last buffer is no result."""

    def __init__(self) -> None:
        self.made: list[torch.Tensor] = []
        self.keeps = True
        self.names: dict[str, Any] = {"__builtins__": builtins, "empty_strided_cuda": self.allocate, "torch": torch}
        self.call: Any = FunctionType(_wrapper.__code__, self.names, "wrapper")

    def allocate(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        made = torch.empty_strided(size, stride, dtype=dtype)
        if self.keeps:
            self.made.append(made)
        return made

    def is_as_compiled(self) -> bool:
        return bool(self.names["empty_strided_cuda"] == self.allocate)


def _wrapper(inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    first = empty_strided_cuda((2, 2), (2, 1), torch.float32)  # noqa: F821
    torch.sin(inputs[0], out=first)
    second = empty_strided_cuda((2, 2), (1, 2), torch.float32)  # noqa: F821
    torch.mul(first, 3, out=second)
    third = empty_strided_cuda((2, 1), (1 + inputs[0].storage_offset(), 1), torch.float32)  # noqa: F821
    torch.sum(second, 1, keepdim=True, out=third)
    if inputs[0].isnan().any():
        raise ValueError("not a number")
    pooled = torch.ops.aten.max_pool2d_with_indices.default(first.view(1, 1, 2, 2), [2, 2])[0]
    last = empty_strided_cuda((1,), (1,), torch.float32)  # noqa: F821
    last.copy_(third[0])
    return second, pooled, third.t()


def of_wrapper(x: torch.Tensor) -> list[torch.Tensor]:
    first = x.sin()
    return [first * 3, first.max().view(1, 1, 1, 1), (first * 3).sum(1, keepdim=True).t()]


def test_a_wrapper_tells_what_it_allocates_and_what_its_operators_return() -> None:
    births, wrapper = NotedBirths(), Wrapper()
    with telling(wrapper.call, births):
        buffer, pooled, _ = wrapper.call([torch.ones(2, 2)])
    told = dict(births.told)
    assert address(buffer) in told and address(pooled) in told and len(wrapper.made) == 4
    assert {address(made) for made in wrapper.made} <= told.keys()
    assert wrapper.is_as_compiled()


def test_buffers_that_are_returned_are_made_first() -> None:
    """In a capture after a run, which shows which those are: the second and the third."""
    wrapper, x = Wrapper(), torch.tensor([[1.0, 2.0], [3.0, 0.5]])
    artifact = ToldArtifact(wrapper.call)
    torch.testing.assert_close(list(artifact([x])), of_wrapper(x))
    assert wrapper.is_as_compiled()
    for number in (2.0, 3.0):
        wrapper.made.clear()
        births = NotedBirths()
        with artifact.telling(births):
            assert [made.stride() for made in wrapper.made] == [(1, 2), (1, 1)]
            results = list(artifact([x * number]))
        torch.testing.assert_close(results, of_wrapper(x * number))
        assert [results[0].data_ptr(), results[2].data_ptr()] == [made.data_ptr() for made in wrapper.made[:2]]
        assert len(wrapper.made) == 4 and [place for place, _ in births.told[:2]] == [
            address(one) for one in wrapper.made[:2]
        ]
        assert wrapper.is_as_compiled()


def test_where_memory_is_not_free_of_charge_buffers_are_made_where_they_are_needed() -> None:
    wrapper, x, births = Wrapper(), torch.ones(2, 2), NotedBirths()
    artifact = ToldArtifact(wrapper.call)
    artifact([x])
    births.results_first = False
    with artifact.telling(births):
        wrapper.made.clear()
        torch.testing.assert_close(list(artifact([x])), of_wrapper(x))
    assert [made.stride() for made in wrapper.made] == [(2, 1), (1, 2), (1, 1), (1,)]


def test_captures_before_the_first_run_and_after_it_allocate_alike() -> None:
    wrapper, x = Wrapper(), torch.ones(2, 2)
    artifact, orders = ToldArtifact(wrapper.call), []
    for _ in range(2):
        with artifact.telling(NotedBirths()):
            wrapper.made.clear()
            artifact([x])
        orders.append([made.stride() for made in wrapper.made])
        artifact([x])
    assert orders[0] == orders[1] == [(2, 1), (1, 2), (1, 1), (1,)]


def test_a_buffer_that_lies_in_another_way_is_made_when_it_is_asked_for() -> None:
    wrapper, x = Wrapper(), torch.tensor([1.0, 2.0, 3.0, 0.5, 4.0])
    artifact = ToldArtifact(wrapper.call)
    artifact([x[:4].view(2, 2)])
    with artifact.telling(NotedBirths()):
        wrapper.made.clear()
        results = list(artifact([x[1:].view(2, 2)]))
    torch.testing.assert_close(results, of_wrapper(x[1:].view(2, 2)))
    assert results[2].stride() == (1, 2) and results[2].data_ptr() == wrapper.made[1].data_ptr()


def _late(inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    shape, stride = (256, inputs[0].shape[1]), (inputs[0].shape[1], 1)
    first = empty_strided_cuda(shape, stride, torch.float32)  # noqa: F821
    torch.sin(inputs[0], out=first)
    whole = empty_strided_cuda(shape, stride, torch.int32)  # noqa: F821
    whole.copy_(first * 100)
    second = empty_strided_cuda(shape, stride, torch.float32)  # noqa: F821
    torch.sub(first, whole, out=second)
    del first, whole
    late = empty_strided_cuda(shape, stride, torch.float32)  # noqa: F821
    torch.mul(second, 3, out=late)
    other = empty_strided_cuda(shape, stride, torch.float32)  # noqa: F821
    torch.add(late, second, out=other)
    return late, other


def of_late(x: torch.Tensor) -> list[torch.Tensor]:
    late = (x.sin() - (x.sin() * 100).to(torch.int32)) * 3
    return [late, late + late / 3]


def late_artifact(x: torch.Tensor) -> tuple[Wrapper, ToldArtifact]:
    """It has run once, and its buffers were freed as it says."""
    wrapper = Wrapper()
    wrapper.call = FunctionType(_late.__code__, wrapper.names, "late")
    artifact = ToldArtifact(wrapper.call)
    wrapper.keeps = False
    torch.testing.assert_close(list(artifact([x])), of_late(x))
    wrapper.keeps = True
    return wrapper, artifact


def test_buffers_that_are_freed_in_time_lie_in_a_rewritten_result() -> None:
    """The first in the first result, and the one beside it in the second; `second` is alive when that is made."""
    births, x = NotedBirths(), torch.randn(256, 256)
    wrapper, artifact = late_artifact(x)
    births.rewritten = frozenset({0, 1})
    with artifact.telling(births):
        results = list(artifact([x - 1]))
    torch.testing.assert_close(results, of_late(x - 1), rtol=1e-4, atol=1e-4)
    assert [address(made) for made in wrapper.made[:2]] == [address(one) for one in results]
    assert len(wrapper.made) == 3  # two results, and `second`
    assert wrapper.is_as_compiled()


def test_in_results_that_are_not_rewritten_nothing_lies() -> None:
    x = torch.randn(256, 256)
    wrapper, artifact = late_artifact(x)
    with artifact.telling(NotedBirths()):
        artifact([x])
    assert len(wrapper.made) == 5


def test_where_buffers_lie_in_another_way_none_lies_in_a_result() -> None:
    births, x = NotedBirths(), torch.randn(256, 256)
    wrapper, artifact = late_artifact(x)
    births.rewritten = frozenset({0, 1})
    with artifact.telling(births):
        results = list(artifact([x[:, :128] * 2]))
    torch.testing.assert_close(results, of_late(x[:, :128] * 2), rtol=1e-4, atol=1e-4)
    assert len(wrapper.made) == 7


def _kept(inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    kept: Any = empty_strided_cuda((256, 256), (256, 1), torch.float32)  # noqa: F821
    kept.fill_(1)
    empty_strided_cuda((inputs[0].shape[0],), (1,), torch.float32)  # noqa: F821
    if inputs[0].shape[0] == 1:
        kept = None
    late = empty_strided_cuda((256, 256), (256, 1), torch.float32)  # noqa: F821
    late.zero_()
    if kept is not None:
        late.add_(kept)
    return (late,)


def test_a_result_that_a_buffer_may_still_lie_in_is_made_anew() -> None:
    """Where the wrapper allocates otherwise than before, nothing is known of what is alive."""
    wrapper, births = Wrapper(), NotedBirths(rewritten=frozenset({0}))
    wrapper.call = FunctionType(_kept.__code__, {**wrapper.names, "Any": Any}, "kept")
    artifact = ToldArtifact(wrapper.call)
    wrapper.keeps = False
    assert next(iter(artifact([torch.ones(1)]))).sum() == 0
    with artifact.telling(births):
        (late,) = artifact([torch.ones(2)])
    assert late.eq(1).all()


def test_another_thread_gets_buffers_of_its_own() -> None:
    """It runs as it is what this one captures."""
    wrapper, x = Wrapper(), torch.ones(2, 2)
    artifact = ToldArtifact(wrapper.call)
    artifact([x])
    elsewhere: list[Any] = []
    with artifact.telling(NotedBirths()):
        thread = threading.Thread(target=lambda: elsewhere.extend(artifact([x * 2])))
        thread.start()
        thread.join()
        here = list(artifact([x]))
    torch.testing.assert_close([elsewhere, here], [of_wrapper(x * 2), of_wrapper(x)])
    assert not {address(one) for one in elsewhere} & {address(one) for one in here}


def test_a_body_that_raises_leaves_nothing_behind() -> None:
    wrapper, x = Wrapper(), torch.ones(2, 2)
    artifact = ToldArtifact(wrapper.call)
    with pytest.raises(ValueError, match="not a number"):
        artifact([x * float("nan")])
    assert wrapper.is_as_compiled()
    artifact([x])  # which is the first that says what is returned
    wrapper.made.clear()
    with artifact.telling(NotedBirths()) as _, contextlib.suppress(ValueError):
        made = [weakref.ref(one) for one in wrapper.made]
        wrapper.made.clear()
        artifact([x * float("nan")])
    wrapper.made.clear()
    gc.collect()
    assert len(made) == 2 and not any(one() is not None for one in made)
    assert wrapper.is_as_compiled()


def test_only_operators_that_may_make_the_memory_of_results_are_asked() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        large, _ = torch.topk(x * 2 - 1, 2)
        made = x.new_zeros(2).add_(3)
        return large.sub_(1).t(), made

    graph = trace(program, call_of(torch.randn(3, 4))).graph
    assert sorted(node.name for node in makers_of_results(graph)) == [
        "add__tensor",
        "new_zeros_default",
        "sub__tensor",
        "topk_default",
    ]


def test_where_it_is_not_known_which_all_are_asked() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x * 2 - 1).graph
    assert makers_of_results(graph) == set(graph.nodes)


def test_of_every_operator_it_is_told_that_it_begins() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 - 1).tanh()

    births, graph = NotedBirths(), trace(program, call_of(torch.ones(3))).graph
    lowered = lower_for_stream(graph, torch.device("cpu"))
    assert lowered.tells is not None and lowered.body is not None
    with lowered.tells(births):
        (found,) = lowered.body([torch.ones(3)])
    assert births.told == [(address(found), 1)] and births.begun == 2
