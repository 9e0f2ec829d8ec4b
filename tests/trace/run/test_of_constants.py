"""Reads on the host of tensors that a program makes of constants alone, and of those that it only seems to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from support import assert_same, jit

Tensor = torch.Tensor
Program = Callable[[Tensor], Tensor]

READ: dict[str, Program] = {
    "a range as a list": lambda x: x.sum(torch.arange(1, x.dim()).tolist()) * 2 - 1,
    "numbers as a list": lambda x: x * torch.tensor([1, 2]).tolist()[1] - 1,
    "computed": lambda x: x * float((torch.arange(4) * 0.5 + torch.tensor([1.0, 2.0, 3.0, 4.0])).sum()) - 1,
    "a branch": lambda x: x * 2 if (torch.arange(3) > 1).any() else x - 1,
    "compared": lambda x: x * 2 if torch.equal(torch.arange(3), torch.tensor([0, 1, 3])) else x - 1,
}
REFUSED: dict[str, Program] = {
    "drawn": lambda x: x * torch.rand(1).item() - 1,
    "written in place": lambda x: x * torch.zeros(2).index_fill_(0, torch.tensor([1]), 3.0).tolist()[1] - 1,
    "written through a view": lambda x: x * _written_through_a_view().tolist()[1] - 1,
    "of an argument": lambda x: x * (torch.arange(2) * x.detach().long()).sum().item() - 1,
    "written from an argument": lambda x: x * torch.zeros(2, 2).copy_(x).sum().item() - 1,
}


def _written_through_a_view() -> Tensor:
    made = torch.arange(3)
    made[1:].mul_(2)
    return made


@pytest.mark.parametrize("name", READ)
def test_what_is_made_of_constants_may_be_read(name: str) -> None:
    program = READ[name]
    jitted = jit(program)
    for _ in range(4):
        x = torch.randn(2, 2)
        assert_same(jitted(x), program(x))
    assert jitted.statistics().replays == 3


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_stays_refused(name: str) -> None:
    program = REFUSED[name]
    jitted = jit(program, on_refusal="eager")
    with pytest.warns(UserWarning, match="reads a tensor's value on the host"):
        for at in range(4):
            x = torch.randn(2, 2) * 3
            torch.manual_seed(at)
            found = jitted(x)
            torch.manual_seed(at)
            assert_same(found, program(x))
    assert jitted.statistics().replays == 0


def test_a_constant_of_a_number_that_changes_is_another_one() -> None:
    class Holder:
        first = 1

    held = Holder()
    program = lambda x: x * torch.arange(held.first, 4).tolist()[0] - 1  # noqa: E731
    jitted = jit(program)
    for first in (1, 1, 1, 2, 2, 2):
        held.first = first
        assert_same(jitted(torch.ones(2)), program(torch.ones(2)))


@pytest.mark.parametrize("name", READ)
def test_what_is_made_of_constants_may_be_read_where_the_caller_differentiates(name: str) -> None:
    weight = torch.randn(2, 2, requires_grad=True)
    program = READ[name]
    jitted = jit(lambda x: program(x * weight))
    for _ in range(3):
        x, found = torch.randn(2, 2), []
        for run in (jitted, lambda x: program(x * weight)):
            weight.grad = None
            run(x).sum().backward()
            found.append(weight.grad)
        assert_same(*found)
    assert jitted.statistics().replays == 2


def test_a_decoder_finds_out_whether_its_mask_is_causal() -> None:
    layer = torch.nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    decoder = torch.nn.TransformerDecoder(layer, 1)

    def program(x: Tensor, memory: Tensor) -> Tensor:
        return decoder(x, memory, tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1]))

    jitted = jit(program)
    for _ in range(3):
        x, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
        found = jitted(x, memory)
        found.sum().backward()
        assert_same(found.detach(), program(x, memory).detach())
    assert jitted.statistics().replays == 2
