"""The private parts of torch that the wrap stage for traced functions uses exist and behave."""

from __future__ import annotations

from typing import Any

import torch

from treeplay.wrap.aot import torch_private
from wrap.aot.oracle import numbers


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x * 2, x.view(-1)]


def test_tracing_gives_a_graph_and_the_facts() -> None:
    with torch_private.traced(Doubled(), [numbers(2, 3)], None) as traced:
        assert not traced.is_joint
        assert [info.output_type.name for info in traced.facts.output_info] == ["non_alias", "alias_of_input"]
        sequence = traced.facts.output_info[1].view_meta_sequence.sequence
    x = numbers(2, 3)
    view = torch_private.apply_views(x, sequence)
    assert view._base is x and view.shape == (6,)


def test_tracing_gives_a_joint_graph_where_gradients_are_needed() -> None:
    with torch_private.traced(Doubled(), [numbers(2, 3, grad=True)], None) as traced:
        assert traced.is_joint
        primals, tangents = traced.inputs
        assert (len(primals), len(tangents)) == (1, 1)


def test_modes_are_read_and_set() -> None:
    assert not torch_private.is_any_autocast_enabled()
    with torch.autocast("cpu"):
        assert torch_private.is_any_autocast_enabled()
        assert not torch_private.without_autocast(torch_private.is_any_autocast_enabled)
    torch_private.set_grad_enabled(False)
    assert not torch.is_grad_enabled()
    torch_private.set_grad_enabled(True)


def test_shared_storage_is_seen() -> None:
    x = numbers(4)
    assert torch_private.shares_storage(x[:1], x[2:])
    assert not torch_private.shares_storage(x, x.clone())


def test_a_version_is_preserved() -> None:
    x = numbers(2, 3)
    with torch_private.preserving_version(x):
        x.t_()
    assert x._version == 0 and x.shape == (3, 2)


def test_the_tracing_context_comes_back() -> None:
    context = torch._guards.TracingContext(torch._subclasses.FakeTensorMode())
    with torch._guards.tracing(context):
        again = torch_private.keep_tracing_context()
    with again():
        assert torch._guards.TracingContext.try_get() is context
    with torch_private.keep_tracing_context()():
        assert torch._guards.TracingContext.try_get() is None


def test_wrapper_subclasses_are_told_apart() -> None:
    assert not torch_private.is_wrapper(numbers(2))
    assert not torch_private.is_wrapper(torch.nn.Parameter(numbers(2)))
    assert not torch_private.is_wrapper(3)


def test_a_backward_knows_whether_it_retains_the_graph() -> None:
    seen: list[bool] = []

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            seen.append(torch_private.keeps_graph())
            return grad * 2

    result = Asks.apply(torch.ones(1, requires_grad=True))
    result.backward(retain_graph=True)
    result.backward()
    assert seen == [True, False]
