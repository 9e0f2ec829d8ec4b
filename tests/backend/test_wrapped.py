"""A captured graph behind its wrapper: modes that choose kernels, for which Dynamo has no guards, are followed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from treeplay.backend.recording.examine import called_by
from treeplay.observe import counters
from treeplay.torch_compile import compile_graph
from treeplay.wrap.ambience import Ambience

MATH, FLASH, EFFICIENT = SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2 - 1


def heads(length: int = 6, *, grad: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(length)
    return [torch.randn(2, 2, length, 8, requires_grad=grad) for _ in range(3)]


def told(function: Callable[..., Any], kernel: SDPBackend | None, args: list[torch.Tensor]) -> Any:
    """The result under a choice of kernels and its gradients, or which error it raises."""
    try:
        with nullcontext() if kernel is None else sdpa_kernel(kernel):
            result = function(*args)
    except RuntimeError as error:
        return [str(error).partition("\n")[0]]
    gradients = torch.autograd.grad(result.pow(2).sum(), args) if result.requires_grad else ()
    return [result.detach(), *gradients]


def agree(ours: Any, eager: Any) -> bool:
    pairs = zip(ours, eager, strict=True)
    return all(torch.equal(*pair) if isinstance(pair[1], torch.Tensor) else pair[0] == pair[1] for pair in pairs)


# The flash kernel of the CPU and plain operators differ in the last bits; the third choice raises there.
@pytest.mark.filterwarnings("ignore:treeplay runs a graph uncompiled")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
def test_the_attention_kernel_of_each_call_is_the_one_that_was_chosen(grad: bool, dynamic: bool | None) -> None:
    compiled = torch.compile(attend, backend="treeplay", options={"inner": "aten"}, dynamic=dynamic)
    assert not agree(told(attend, MATH, heads()), told(attend, FLASH, heads()))
    for kernel in (MATH, FLASH, EFFICIENT, MATH, FLASH, None, EFFICIENT):
        assert agree(told(compiled, kernel, heads(grad=grad)), told(attend, kernel, heads(grad=grad))), kernel


@pytest.mark.filterwarnings("ignore:treeplay runs a graph uncompiled")
def test_the_attention_kernel_of_a_graph_that_was_compiled_by_hand_is_the_one_that_was_chosen() -> None:
    graph = torch.fx.symbolic_trace(lambda q, k, v: (attend(q, k, v),))
    with sdpa_kernel(MATH):
        compiled = compile_graph(graph, heads(), inner="aten")
    for kernel in (MATH, FLASH, EFFICIENT, MATH):
        assert agree(told(lambda *args: compiled(*args)[0], kernel, heads()), told(attend, kernel, heads())), kernel


def test_a_choice_of_kernels_is_compiled_once_and_found_again() -> None:
    compiled = torch.compile(attend, backend="treeplay", options={"inner": "aten"})
    before = counters["traces"]["ok"]
    for kernel in (MATH, FLASH, MATH, FLASH, MATH):
        told(compiled, kernel, heads())
    assert counters["traces"]["ok"] == before + 2


def test_a_graph_without_attention_asks_for_no_kernels() -> None:
    linear = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU()))
    attention = torch.fx.symbolic_trace(lambda q, k, v: (attend(q, k, v),))
    layer = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.TransformerEncoderLayer(8, 2)))
    asked = [len([*Ambience.now().conditions_on_kernels(called_by(graph))]) for graph in (linear, attention, layer)]
    assert asked[0] == 0 < asked[1] == asked[2]


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:treeplay runs a graph uncompiled")
def test_the_attention_kernel_of_a_graph_for_all_sizes_is_the_one_that_was_chosen() -> None:
    compiled = torch.compile(attend, backend="treeplay", dynamic=True)
    for length, kernel in zip((6, 7, 5, 6, 7), (MATH, FLASH, EFFICIENT, MATH, FLASH), strict=True):
        ours, eager = told(compiled, kernel, heads(length)), told(attend, kernel, heads(length))
        assert agree(ours, eager) or torch.allclose(ours[0], eager[0], atol=1e-5)
