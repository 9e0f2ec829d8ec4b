"""The private parts of torch that lowering uses exist and behave."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from treeplay.torch_seam import autograd, tensors
from treeplay.torch_seam import operators as torch_operators
from treeplay.values.spec import TensorSpec

aten = torch.ops.aten


def test_operators_below_autograd_leave_no_history() -> None:
    weight = torch.ones(2, requires_grad=True)
    with torch_operators.ExcludeKeys(torch_operators.keys_above_operators()):
        made = torch_operators.direct(aten.mul.Tensor)(weight, weight)
    assert not made.requires_grad and made.tolist() == [1.0, 1.0]


def test_memory_is_made_and_versions_are_moved() -> None:
    made = tensors.empty_strided_host((2, 3), (3, 1), torch.float64)
    assert made.shape == (2, 3) and made.dtype is torch.float64
    autograd.increment_versions([made])
    assert made._version == 1


def test_python_bindings_of_an_operator_are_found() -> None:
    found = dict(torch_operators.python_functions("mul"))
    assert any(torch.equal(function(torch.ones(2), 3.0), torch.full((2,), 3.0)) for function in found.values())
    assert not dict(torch_operators.python_functions("no_such_operator"))


def test_gradients_are_on_for_an_operator_and_off_again() -> None:
    weight = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        assert torch_operators.with_gradients_on(aten.mul.Tensor)(weight, weight).requires_grad
        assert not torch.is_grad_enabled()


@pytest.mark.compile
def test_inductor_compiles_a_graph_of_fakes() -> None:
    from treeplay.lower.inductor import artifact
    from treeplay.lower.inductor.own_lowerings import inductor_decompositions

    with FakeTensorMode(), torch.no_grad():
        fakes = [torch.ones(4)]
        module = make_fx(lambda x: (x * 2 - 1,), inductor_decompositions(eager_random=False), tracing_mode="real")(
            *fakes
        )
    with artifact.compile_lock:
        run = artifact.compile_artifact(module, fakes, device=torch.device("cpu"), eager_random=False, is_small=True)
    assert torch.equal(run([torch.full((4,), 3.0)])[0], torch.full((4,), 5.0))


@pytest.mark.compile
def test_a_graph_of_which_nothing_is_left_empties_its_list_too() -> None:
    from treeplay.lower.inductor import artifact

    with FakeTensorMode(), torch.no_grad():
        fakes = [torch.ones(2, 2)]
        module = make_fx(lambda x: (aten.view.default(x, [2, 2]),), tracing_mode="real")(*fakes)
    with artifact.compile_lock:
        run = artifact.compile_artifact(module, fakes, device=torch.device("cpu"), eager_random=False, is_small=True)
    given = [torch.full((2, 2), 3.0)]
    assert torch.equal(run(given)[0], torch.full((2, 2), 3.0)) and given == []


@pytest.mark.parametrize(
    ("operators", "is_worth"),
    [
        ([aten._transformer_encoder_layer_fwd.default, aten.view.default], False),
        ([aten.nonzero.default], False),
        ([aten.nonzero.default, aten.sin.default], True),
        ([aten.mm.default], True),
        ([torch.ops.higher_order.run_with_rng_state, aten.sin.default], False),
    ],
)
def test_a_wrapper_in_cpp_is_made_where_it_saves_something(operators: list[Any], is_worth: bool) -> None:
    from treeplay.lower.inductor.cpp_wrapper import is_worth_cpp

    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    for target in operators:
        value = graph.call_function(operator.getitem, (graph.call_function(target, (value,)), 0))
    graph.output((value,))
    assert is_worth_cpp(graph) == is_worth


@pytest.mark.compile
def test_inductors_cache_knows_which_results_are_seen() -> None:
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    from treeplay.lower.functional import make_functional
    from treeplay.lower.inductor import artifact
    from treeplay.lower.inductor.own_lowerings import inductor_decompositions

    def compile_for(visible: tuple[int, ...] | None) -> tuple[int, int]:
        spec = TensorSpec((4, 5), (5, 1), torch.float32, torch.device("cpu"))
        module, fakes = make_functional(
            lambda x: [x.sin().t() * 2, x - 1], [spec], inductor_decompositions(eager_random=False)
        )
        counters["inductor"].clear()
        artifact.compile_artifact(
            module, fakes, device=torch.device("cpu"), eager_random=False, is_small=True, visible=visible
        )
        return counters["inductor"]["fxgraph_cache_miss"], counters["inductor"]["fxgraph_cache_hit"]

    with fresh_cache():
        assert compile_for(None) == (1, 0)
        assert compile_for(()) == (1, 0)
        assert compile_for(None) == (0, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_lists_that_inductor_hands_on_are_not_called_from_cpp(dtype: torch.dtype) -> None:
    from treeplay.lower.inductor.cpp_wrapper import is_worth_cpp

    with FakeTensorMode():
        fakes = [torch.ones(3, dtype=dtype)]
        module = make_fx(lambda x: [x - 1, *torch.ops.aten._foreach_zero([x])], tracing_mode="real")(*fakes)
        added = make_fx(lambda x: [*torch._foreach_add([x.exp()], 1.5), x.real - 1], tracing_mode="real")(*fakes)
        parts = make_fx(lambda x: [x.split(2)[0] * 2, x.real - 1], tracing_mode="real")(*fakes)
    assert not is_worth_cpp(module.graph)
    assert is_worth_cpp(added.graph) == (not dtype.is_complex)
    assert is_worth_cpp(parts.graph) == (not dtype.is_complex)


@pytest.mark.compile
def test_results_of_padded_products_keep_their_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.fx_passes import pad_mm

    from treeplay.lower.inductor import artifact
    from treeplay.lower.inductor.own_lowerings import inductor_decompositions

    def matmuls(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ y, (x @ y - 3).t().mm(x)

    inputs = [torch.randn(6, 5), torch.randn(5, 7)]
    with FakeTensorMode(), torch.no_grad():
        fakes = [torch.empty(6, 5), torch.empty(5, 7)]
        module = make_fx(matmuls, inductor_decompositions(eager_random=False), tracing_mode="real")(*fakes)
    for condition in ("check_device", "has_triton"):  # torch pads products of GPUs alone
        monkeypatch.setattr(pad_mm, condition, lambda *_: True)
    monkeypatch.setattr(torch._inductor.config, "force_shape_pad", True)
    with artifact.compile_lock:
        run = artifact.compile_artifact(module, fakes, device=torch.device("cpu"), eager_random=False, is_small=True)
    for found, expected in zip(run(list(inputs)), matmuls(*inputs), strict=True):
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)
