"""Writes that the backward does, to arguments and to the gradients that arrive."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from treeplay.errors import Refusal
from wrap.aot.oracle import alike, min_cut, numbers, wrapped


class Counted(torch.autograd.Function):
    """Doubles, and counts its backwards in a buffer."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        ctx.buffer = buffer
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.buffer.add_(1)
        return gradient * 2, None


class Doubled(torch.autograd.Function):
    """Multiplies with what a buffer holds in the backward, and doubles the buffer."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        ctx.buffer = buffer
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.buffer.mul_(2)
        return gradient * ctx.buffer, None


class Greedy(torch.autograd.Function):
    """Writes to the gradient that it is given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.mul_(2) * 3


class Zeroed(torch.autograd.Function):
    """Zeroes a parameter once its gradient is known."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.w = w
        return x * w

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        result = gradient * ctx.w
        with torch.no_grad():
            ctx.w.zero_()
        return result, gradient * 5


def counted(x: Any, buffer: Any) -> Any:
    return [Counted.apply(x, buffer)]


def both(x: Any, buffer: Any) -> Any:
    with torch.no_grad():
        buffer.add_(10)
    return [Doubled.apply(x, buffer)]


def make() -> list[Any]:
    return [numbers(3, grad=True), alike(0, 3)]


PARTITIONS = [{}, {"partition": min_cut}]


@pytest.mark.parametrize("changes", PARTITIONS)
@pytest.mark.parametrize("function", [counted, both])
def test_W43_a_buffer_is_written_in_the_right_phase(function: Any, changes: Any) -> None:
    call = wrapped(function, make, **changes)
    told = []
    for run in (lambda args: function(*args), call):
        states = []
        x, buffer = make()
        for _ in range(2):
            (y,) = run([x, buffer])
            states.append(buffer.tolist())
            y.sum().backward()
            states.append(buffer.tolist())
        told.append((states, x.grad.tolist()))
    assert told[0] == told[1]
    assert told[0][0][:2] == ([[0] * 3, [1] * 3] if function is counted else [[10] * 3, [20] * 3])


@pytest.mark.parametrize("function", [counted, both])
def test_W43_two_forwards_and_then_two_backwards_write_what_they_find(function: Any) -> None:
    call = wrapped(function, make)
    told = []
    for run in (lambda args: function(*args), call):
        x, buffer = make()
        results = [run([x, buffer])[0] for _ in range(2)]
        states = [buffer.tolist()]
        for result in results:
            result.sum().backward()
            states.append(buffer.tolist())
        told.append((states, x.grad.tolist()))
    assert told[0] == told[1]


def test_W43_a_parameter_may_be_zeroed_but_not_under_create_graph() -> None:
    def leaves() -> list[Any]:
        return [numbers(3, grad=True), numbers(3, grad=True)]

    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [Zeroed.apply(x, w)]

    if torch.__version__ < (2, 13):  # torch traces no such write yet
        with pytest.raises(Refusal, match="leaf Variable"):
            wrapped(function, leaves)
        return
    call = wrapped(function, leaves)
    x, w = leaves()
    call([x, w])[0].sum().backward()
    assert torch.equal(x.grad, numbers(3)) and torch.equal(w, alike(0, 3)) and w.grad.tolist() == [5, 5, 5]
    x, w = leaves()
    (y,) = call([x, w])
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
    assert torch.equal(w, numbers(3))


class TurnedBuffer(Counted):
    """Changes the shape of a buffer in its backward."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.buffer.t_()
        return gradient * 2, None


class EmptiedBuffer(Counted):
    """Gives the memory of a buffer back in its backward."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.buffer.untyped_storage().resize_(0)
        return gradient * 2, None


class TurnedGradient(Counted):
    """Changes the shape of the gradient that arrives."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        gradient.t_()
        return gradient.t() * 2, None


@pytest.mark.parametrize(
    ("function", "why"), [(TurnedBuffer, "metadata"), (TurnedGradient, "metadata"), (EmptiedBuffer, "storage")]
)
def test_W43_a_shape_or_storage_changed_in_the_backward_is_refused(function: Any, why: str) -> None:
    with pytest.raises(Refusal, match=why):
        wrapped(lambda x, b: [function.apply(x, b)], lambda: [numbers(2, 3, grad=True), alike(0, 2, 3)])


def test_W43_whose_backward_writes_is_not_known_with_several_results() -> None:
    """Eager writes only if that result's gradient comes."""
    with pytest.raises(Refusal, match=r"`buffer` is written in the backward.*2 results"):
        wrapped(lambda x, buffer: [Counted.apply(x, buffer), x * 3], make)


@pytest.mark.parametrize("turned", [False, True])
def test_Wplus8_a_gradient_that_the_backward_writes_is_the_callers(turned: bool) -> None:
    call = wrapped(lambda x: [Greedy.apply(x)], lambda: [numbers(2, 3, grad=True)])
    told = []
    for run in (lambda args: [Greedy.apply(*args)], call):
        x = numbers(2, 3, grad=True)
        gradient = (numbers(3, 2).t() if turned else numbers(2, 3)) * 1
        run([x])[0].backward(gradient)
        told.append((gradient.clone(), x.grad))
    for eager, ours in zip(*told, strict=True):
        torch.testing.assert_close(ours, eager)
    assert torch.equal(told[1][0], (numbers(3, 2).t() if turned else numbers(2, 3)) * 2)


def test_W22_a_buffer_that_is_written_later_may_be_saved() -> None:
    def function(x: Any, buffer: Any) -> Any:
        y = (buffer * 2).sin() * x
        with torch.no_grad():
            buffer.add_(1)
        return [y]

    from wrap.aot.oracle import twin

    twin(function, lambda: [numbers(2, 3, grad=True), numbers(2, 3)], partition=min_cut)
