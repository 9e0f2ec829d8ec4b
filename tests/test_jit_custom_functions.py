"""Custom autograd functions whose results are views of an input: their backward belongs to each view that is taken of them. And
those whose backward gives None for an input: it runs all the same."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same, jit
from support.gradients import GivesNone

Program = Callable[[torch.Tensor, torch.Tensor], Any]


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -gradient


class Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


def reverse(x: torch.Tensor) -> torch.Tensor:
    return Reversed.apply(x)  # type: ignore[no-any-return, no-untyped-call]


PROGRAMS: dict[str, Program] = {
    "a view": lambda x, w: reverse(x),
    "a view of a view": lambda x, w: reverse(x).view(-1)[1:],
    "of a view": lambda x, w: reverse(x.t()),
    "twice": lambda x, w: reverse(reverse(x)[0]),
    "beside another": lambda x, w: (reverse(x), x * w),
    "and used": lambda x, w: (reverse(x)[1], reverse(x) * w),
    "the argument": lambda x, w: Passed.apply(x)[0],  # type: ignore[no-untyped-call]
    "of something new": lambda x, w: reverse(x * w)[0],
}


def _gradients(program: Program, k: int) -> list[torch.Tensor]:
    x, w = (torch.arange(4.0).view(2, 2) + at + k for at in (1, 5))
    x.requires_grad_()
    w.requires_grad_()
    results = program(x * 1 if k % 2 else x, w)
    weighed = [(one * torch.arange(1.0, 1 + one.numel()).view(one.shape)).sum() for one in _each(results)]
    torch.stack(weighed).sum().backward()
    return [gradient for gradient in (x.grad, w.grad) if gradient is not None]


def _each(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_backward_of_a_view_is_the_functions(name: str) -> None:
    program, jitted = PROGRAMS[name], jit(PROGRAMS[name])
    for k in range(6):
        assert_same(_gradients(jitted, k), _gradients(program, k))
    assert jitted.statistics().replays >= 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_backward_of_a_view_is_the_functions_behind_torch_compile(name: str) -> None:
    torch._dynamo.reset()
    program = PROGRAMS[name]
    compiled = torch.compile(program, backend="treeplay", options={"inner": "aten"})
    for k in range(2):
        assert_same(_gradients(compiled, k), _gradients(program, k))


def test_a_hook_on_a_view_of_an_argument_is_refused() -> None:
    """A replay left it out."""

    def hooked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        view = x.view(-1)
        view.register_hook(lambda gradient: gradient * 5)
        return view

    jitted = jit(hooked)
    _gradients(jitted, 0)
    with pytest.raises(treeplay.Refusal, match="register_hook"):
        _gradients(jitted, 0)


class GivesOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(w)
        return x / w

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (w,) = ctx.saved_tensors
        return gradient / w - 1, None


class Accumulates(torch.autograd.Function):
    """As Megatron's layers do: the gradient of the weight goes elsewhere."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, total)
        return x - w

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None]:
        x, total = ctx.saved_tensors
        total.sub_(gradient * x)
        return None, None, None


def _behind_compile(program: Program) -> Program:
    torch._dynamo.reset()
    return torch.compile(program, backend="treeplay", options={"inner": "aten"})  # type: ignore[call-overload, no-any-return]


FRONTS: dict[str, Callable[[Program], Program]] = {"jit": jit, "compile": _behind_compile}
WITHOUT_A_GRADIENT: dict[str, Program] = {
    "for all": lambda x, w: GivesNone.apply(x),  # type: ignore[no-untyped-call]
    "for one": lambda x, w: GivesOne.apply(x * 2, w),  # type: ignore[no-untyped-call]
    "beside another": lambda x, w: GivesNone.apply(w) - x / 3,  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("name", WITHOUT_A_GRADIENT)
@pytest.mark.parametrize("is_leaf", [True, False])
def test_a_backward_that_gives_none_is_run_as_eager_runs_it(name: str, front: str, is_leaf: bool) -> None:
    """Hooks are called, and what is behind the input is run and freed."""
    program = WITHOUT_A_GRADIENT[name]
    mine = FRONTS[front](program)
    for k in range(3):
        found: list[Any] = []
        for call in (mine, program):
            leaves = [(torch.arange(4.0) + at + k).requires_grad_() for at in (1, 5)]
            given = leaves if is_leaf else [leaf * leaf for leaf in leaves]
            came: list[Any] = []
            for at, tensor in enumerate(given):
                tensor.register_hook(lambda gradient, at=at, came=came: came.append((at, gradient)))
            result = call(*given)
            needs = result.requires_grad
            result.sum().backward()
            freed = [is_leaf or _is_freed(tensor) for tensor in given]
            found.append((needs, sorted(came, key=lambda one: one[0]), freed, [leaf.grad for leaf in leaves]))
        assert_same(*found)


def _is_freed(tensor: torch.Tensor) -> bool:
    try:
        tensor.sum().backward()
    except RuntimeError:
        return True
    return False


def test_a_backward_that_gives_none_has_its_effects_behind_torch_compile() -> None:
    totals = torch.zeros(4), torch.zeros(4)

    def program(x: torch.Tensor, w: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return Accumulates.apply(x, w, total)  # type: ignore[no-any-return, no-untyped-call]

    for call, total in zip((_behind_compile(program), program), totals, strict=True):
        for k in range(3):
            result = call(torch.arange(4.0) - k, torch.ones(4, requires_grad=True), total)  # type: ignore[call-arg]
            (result * 3).sum().backward()
    assert_same(*totals)


class Names:
    def __init__(self, *names: str) -> None:
        self.names = names


def test_a_class_that_the_forward_comes_across_is_not_changed_by_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read hooks are in it, which were not there when the program was looked through."""
    module = ModuleType("comes_late")
    module.NAMES = Names("a", "b")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comes_late", module)

    def program(x: torch.Tensor) -> torch.Tensor:
        from comes_late import NAMES

        return Reversed.apply(x * 3) - len(NAMES.names)

    program_ = jit(program)
    for factor in (1.0, -2.0, 0.5):
        x, twin = (torch.arange(3.0).mul(factor).requires_grad_() for _ in range(2))
        assert_same(program_(x), program(twin))
        for call, given in ((program_, x), (program, twin)):
            call(given).pow(2).sum().backward()
        assert_same(x.grad, twin.grad)
    assert program_.statistics().replays == 5


class ReversesGradients(torch.autograd.Function):
    """As in domain-adversarial training."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, holder: Any) -> torch.Tensor:
        ctx.factor = holder.factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -gradient * ctx.factor, None


class Weighted:
    def __init__(self, weight: torch.Tensor) -> None:
        self.factor = 0.5
        self.optimizer = torch.optim.SGD([weight], lr=0.25)

    def change(self) -> None:
        self.factor += 0.25
        self.optimizer.param_groups[0]["lr"] *= 0.5


class OfARate(Weighted):
    @property
    def factor(self) -> Any:
        return self.optimizer.param_groups[0]["lr"]

    @factor.setter
    def factor(self, value: float) -> None:
        pass


@pytest.mark.parametrize("cls", [Weighted, OfARate])
def test_a_number_that_only_the_backward_computes_with_is_never_stale(cls: type[Weighted]) -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, -1.0]))
    twin = torch.nn.Parameter(weight.detach().clone())
    mine, others = cls(weight), cls(twin)
    program = jit(lambda x: ReversesGradients.apply(x * weight, mine), on_refusal="eager")
    for call in range(10):
        x = torch.arange(3.0) + call
        program(x).pow(2).sum().backward()
        ReversesGradients.apply(x * twin, others).pow(2).sum().backward()
        assert_same(weight.grad, twin.grad, f"call {call}")
        if call % 2:
            mine.change(), others.change()
