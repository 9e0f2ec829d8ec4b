"""The first run of a program, which is watched: it does what it would do with nobody watching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

import treeplay
from support import assert_same, call_of, jit
from support.interpreters import FreshPython
from treeplay.trace import observe as module
from treeplay.trace.observe import observe


def test_lengths_on_the_cpu_beside_losses_elsewhere_are_read_as_numbers() -> None:
    given: list[Any] = []

    def ctc_loss(losses: Any, targets: Any, *lengths: Any) -> Any:
        given.extend(lengths)

    asked = module._lengths_as_numbers(ctc_loss, lambda: True)
    losses, lengths = torch.empty(9, 2, 6, device="meta"), torch.tensor([9, 8])
    asked(losses, losses, lengths, lengths - 5)
    assert given == [[9, 8], [4, 3]]
    given.clear()
    asked(torch.empty(9, 2, 6), losses, lengths, lengths)
    assert given[0] is lengths and given[1] is lengths


def test_ctc_loss_is_torchs_own_again_after_the_run() -> None:
    before = torch.ctc_loss

    def program(x: torch.Tensor) -> torch.Tensor:
        assert torch.ctc_loss is not before
        lengths = torch.tensor([3])
        return F.ctc_loss(x, torch.ones(1, 1, dtype=torch.int64), lengths, lengths - 2)

    x = torch.randn(3, 1, 2).log_softmax(-1)
    found, _ = observe(program, call_of(x))
    assert torch.equal(found, F.ctc_loss(x, torch.ones(1, 1, dtype=torch.int64), torch.tensor([3]), torch.tensor([1])))
    assert torch.ctc_loss is before


def test_a_function_that_must_compile_as_a_whole_is_plain_python_in_the_run_and_compiled_afterwards() -> None:
    compiled: list[Any] = []

    def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compiled.append(graph)
        return graph

    inner = torch.compile(lambda x: x * 2 - 1, backend=compiler, fullgraph=True)
    program = jit(lambda x: inner(x) - x)
    for _ in range(3):
        assert torch.equal(program(torch.ones(3)), torch.zeros(3))
    assert not compiled and program.statistics().replays == 2
    assert torch.equal(inner(torch.ones(3)), torch.ones(3)) and len(compiled) == 1


def _chosen(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin() * 2 - x, lambda x: x * x * 3, (x,))


def _repeated(x: torch.Tensor) -> torch.Tensor:
    return while_loop(lambda y: y.sum() < 100, lambda y: (y * 2 + 1,), (x.detach(),))[0] * x


def _attended(x: torch.Tensor) -> torch.Tensor:
    q = x.detach().expand(1, 1, 4, 4)
    return flex_attention(q, q * 2, q - 1) * x


@pytest.mark.parametrize("program", [_chosen, _repeated, _attended])
@pytest.mark.filterwarnings("ignore:.*without torch.compile")
def test_a_program_with_an_operator_on_functions_runs_as_ever(program: Callable[..., torch.Tensor]) -> None:
    jitted = treeplay.jit(program, lower="aten")
    with pytest.warns(UserWarning, match="takes functions, which a trace does not follow"):
        for number in range(1, 4):
            x, twin = (torch.full((4, 4), float(number)).requires_grad_() for _ in range(2))
            result, wanted = jitted(x), program(twin)
            for each in (result, wanted):
                each.sum().backward()
            assert_same((result, x.grad), (wanted, twin.grad))


_FIRST_OF_ALL = """
import sys, torch, treeplay
jitted = treeplay.jit(lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,)), lower="aten")
assert "torch._dynamo" not in sys.modules
print([jitted(torch.full((1,), float(number))).item() for number in (2, -1, 3)])
"""


def test_an_operator_on_functions_may_be_the_first_to_import_dynamo(fresh_python: FreshPython) -> None:
    assert fresh_python(_FIRST_OF_ALL)[0] == "[4.0, -2.0, 6.0]"
