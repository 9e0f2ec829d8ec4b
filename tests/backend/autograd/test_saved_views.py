"""Views are not saved for a backward: what they are views of is, and the backward views it again."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from treeplay.backend.autograd import partition
from treeplay.torch_compile import backend, compile_graph
from treeplay.torch_seam import partition as torch_partition

Program = Callable[..., Any]


def saved_names(
    program: Program,
    inputs: Sequence[torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    *,
    cut: Any = torch_partition.keep_all,
) -> list[list[str]]:
    """What the forward of a compiled program saves: as it was cut, and as it is then rewritten. Compiles and runs it."""

    def compiled(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return backend(gm, inputs, options={"inner": "aten", "partition": cut})

    names: list[list[str]] = []
    rewrite = partition.without_saved_views

    def noting(forward: Any, backward: Any, *, returned: int) -> None:
        def note() -> None:
            outputs: Any = forward.graph.output_node().args[0]
            names.append([node.name for node in outputs[returned:]])

        note()
        rewrite(forward, backward, returned=returned)
        note()
        taken = [node.name for node in backward.graph.find_nodes(op="placeholder")]
        assert taken[: len(names[-1])] == names[-1]

    monkeypatch.setattr(partition, "without_saved_views", noting)
    wanted, found = gradients(program, inputs), gradients(torch.compile(program, backend=compiled), inputs)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    return names


def gradients(program: Program, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    out = program(*leaves)
    (out * torch.arange(1.0, out.numel() + 1).view(out.shape)).sum().backward()
    return [leaf.grad for leaf in leaves if leaf.grad is not None]


def test_a_weight_is_saved_and_not_its_transpose(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [torch.randn(2, 3), torch.randn(4, 3), torch.randn(5, 4)]
    before, after = saved_names(lambda x, w, v: F.linear(F.linear(x, w).relu(), v), inputs, monkeypatch)
    assert "t_1" in str(before) or "t_2" in str(before)
    assert set(after) == {"primals_1", "primals_2", "primals_3", "relu"}


def test_views_of_arguments_are_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [torch.randn(3, 4), torch.randn(4), torch.randn(12), torch.randn(4, 3)]

    def program(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return x * w.unsqueeze(0).expand(3, 4) * v.view(3, 4) / u.permute(1, 0).tanh() * u.transpose(0, 1)

    before, after = saved_names(program, inputs, monkeypatch)
    assert {"expand", "view"} <= set(before)
    assert not any(name.startswith(("expand", "view", "unsqueeze", "permute", "transpose")) for name in after)
    assert {f"primals_{k}" for k in (1, 2, 3, 4)} <= set(after)


def test_a_view_of_a_value_that_nobody_else_keeps_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [torch.randn(3), torch.randn(2, 3)]
    before, after = saved_names(lambda x, w: x.sin().unsqueeze(0) * w, inputs, monkeypatch)
    assert before == after and "unsqueeze" in after


def test_a_value_and_a_view_of_it_are_saved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [torch.randn(3), torch.randn(2, 3)]
    before, after = saved_names(lambda x, w: x.exp().unsqueeze(0) * w, inputs, monkeypatch)
    assert {"detach", "unsqueeze"} <= set(before)
    assert set(after) == {*before, "exp"} - {"detach", "unsqueeze"}


def test_what_reads_as_a_conjugate_is_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """No recording holds it, and what complex products save is such views."""
    inputs = [torch.randn(3, 3, dtype=torch.complex64) for _ in range(3)]
    program = lambda x, w, v: ((x @ w).sin() * (w @ x).t().cos() * v).abs()  # noqa: E731
    before, after = saved_names(program, inputs, monkeypatch, cut=torch_partition.min_cut)
    assert "_conj" in str(before) and "_conj" not in str(after)


@pytest.mark.parametrize("inner", ["aten", "inductor"])
def test_a_weight_that_is_written_before_the_backward_is_noticed(inner: str) -> None:
    x, w = torch.randn(2, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)

    def compiled(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return backend(gm, inputs, options={"inner": inner})

    for linear in (F.linear, torch.compile(F.linear, backend=compiled)):
        out = linear(x, w).sum()
        with torch.no_grad():
            w.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()


def test_an_argument_that_is_made_anew_for_the_backward_keeps_apart_from_the_others() -> None:
    """Its wish for a name may be another's name: `tanh_1` of the forward beside `tanh_1` of the backward."""
    net = torch.nn.RNN(3, 4, 2, bias=False, bidirectional=True)
    inputs = [torch.randn(5, 2, 3), torch.zeros(4, 2, 4), *net.parameters()]

    graph = torch.fx.Graph()
    x, state, *weights = (graph.placeholder(f"arg{k}") for k in range(len(inputs)))
    both = graph.call_function(torch.rnn_tanh, (x, state, weights, False, 2, 0.0, True, True, False))
    graph.output((graph.call_function(operator.getitem, (both, 0)),))
    options = {"inner": "aten", "partition": torch_partition.keep_all}
    compiled = compile_graph(torch.fx.GraphModule({}, graph), inputs, options=options)
    weighted = torch.arange(8)
    wanted = torch.autograd.grad((net(*inputs[:2])[0] * weighted).sum(), list(net.parameters()))
    found = torch.autograd.grad((compiled(*inputs)[0] * weighted).sum(), list(net.parameters()))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
