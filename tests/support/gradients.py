"""Programs that the caller differentiates, ways to call backward on them, and a pair of sides that must agree."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from support import assert_same, assert_same_state, jit

Program = Callable[..., Any]


class GivesNone(torch.autograd.Function):
    """A function that its argument leads to, though no gradient comes from it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        return None


class Cube(torch.autograd.Function):
    """A function whose backward is not the derivative of its forward: half of it for x."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x * w * w

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grad * w * w * 0.5, (grad * x * w * 3).sum(0)


class Pair:
    """A jitted program over some owners of state, and the same over deep copies of them, eager."""

    def __init__(self, make: Callable[..., Program], *owners: Any, lower: str = "aten", **options: Any) -> None:
        self.owners, self.eager_owners = owners, copy.deepcopy(owners)
        self.jitted = jit(make(*self.owners), lower=lower, **options)
        self.eager = make(*self.eager_owners)
        self.is_exact = lower == "aten"

    def sides(self) -> Iterator[tuple[Program, tuple[Any, ...]]]:
        """Each program with its owners, both from the same random state."""
        state = torch.get_rng_state()
        yield self.eager, self.eager_owners
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        yield self.jitted, self.owners
        assert not self.is_exact or torch.equal(torch.get_rng_state(), after), "the random sequence differs"

    def act(self, action: Callable[..., Any], *args: Any) -> Any:
        """`action(program, *arguments, owners)` on both sides: the same outcome, the same state. Arguments are copied."""
        outcomes = []
        for program, owners in self.sides():
            given = [copied(arg) for arg in args]
            outcomes.append((outcome(action, program, *given, owners), [grad_of(arg) for arg in given]))
        (expected, expected_grads), (found, found_grads) = outcomes
        self.compare(found, expected)
        self.compare(found_grads, expected_grads)
        self.compare_state()
        return found

    def compare(self, found: Any, expected: Any) -> None:
        if self.is_exact:
            assert_same(found, expected)
        else:
            assert_close(found, expected)
        for a, b in zip(tree_leaves(found), tree_leaves(expected), strict=True):
            if isinstance(b, torch.Tensor):
                assert (a.requires_grad, a.is_leaf) == (b.requires_grad, b.is_leaf)

    def compare_state(self) -> None:
        if self.is_exact:
            assert_same_state(self.owners, self.eager_owners)


def assert_close(found: Any, expected: Any) -> None:
    """Tensors are close, all else is equal."""
    for a, b in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b)
        else:
            assert a == b


def copied(arg: Any) -> Any:
    return arg.detach().clone().requires_grad_(arg.requires_grad) if isinstance(arg, torch.Tensor) else arg


def grad_of(arg: Any) -> Any:
    return arg.grad if isinstance(arg, torch.Tensor) and arg.is_leaf else None


def outcome(action: Callable[..., Any], *args: Any) -> Any:
    """What an action gives, or the first words of the error that torch raises."""
    try:
        return action(*args)
    except RuntimeError as error:
        return str(error)[:60]


def train(program: Program, x: torch.Tensor, owners: Any) -> Any:
    """Call, and backward of a sum in which each result weighs differently."""
    results = program(x)
    parts = [part for part in tree_leaves(results) if isinstance(part, torch.Tensor) and part.requires_grad]
    sum(((k + 1) * part.pow(2)).sum() for k, part in enumerate(parts)).backward()
    return results


# --- programs -----------------------------------------------------------------------------------------------------


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


class Average(nn.Module):
    """Keeps a running mean, written in place or rebound."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.weight, self.in_place = parameter(3), in_place
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            if self.in_place:
                self.mean.mul_(0.5).add_(x.mean(0))
            else:
                self.mean = self.mean * 0.5 + x.mean(0)
        return x * self.weight - self.mean


class Carry(nn.Module):
    """Keeps a result with its history: the next call's graph goes on from there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.hidden = parameter(3), torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden = self.hidden.detach() * 0.5 + x.mean(0) * self.weight
        return self.hidden * 2


def tied() -> nn.Module:
    model = nn.ModuleDict({"in": nn.Linear(3, 3), "out": nn.Linear(3, 3)})
    model["out"].weight = model["in"].weight
    return model


def no_grad_inside(w: torch.Tensor) -> Program:
    def program(x: torch.Tensor) -> Any:
        with torch.no_grad():
            mean = (x * w).mean()
        return (x * w - mean).exp(), mean

    return program


def in_place_inside(w: torch.Tensor) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * w
        y.add_(1)
        y[0] = y[1] * 2
        return y.relu_()

    return program


def penalty(model: nn.Module) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().clone().requires_grad_()
        y = model(x).tanh()
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.mean() + (slope.norm(dim=1) - 1).pow(2).mean()

    return program


def inner_step(model: nn.Module) -> Program:
    def program(x: torch.Tensor) -> torch.Tensor:
        gradients = torch.autograd.grad(model(x).pow(2).mean(), list(model.parameters()), create_graph=True)
        return F.linear(x, *(p - 0.1 * g for p, g in zip(model.parameters(), gradients, strict=True))).exp().mean()

    return program


def by_identity(w: torch.Tensor, v: torch.Tensor) -> Program:
    weights = {w: 2.0, v: 3.0}

    def program(x: torch.Tensor) -> torch.Tensor:
        assert isinstance(w, nn.Parameter) and w.is_leaf
        return x * w * weights[w] - x * v * weights[v]

    return program


def checkpointed(model: nn.Module) -> Program:
    return lambda x: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False, preserve_rng_state=False)


PROGRAMS: dict[str, tuple[Callable[..., Program], Callable[[], tuple[Any, ...]]]] = {
    "closed-over parameter": (lambda w: lambda x: (x * w).sin(), lambda: (parameter(3),)),
    "custom function": (lambda w: lambda x: Cube.apply(x * 2, w), lambda: (parameter(3),)),
    "no_grad inside": (no_grad_inside, lambda: (parameter(3),)),
    "detached part": (
        lambda w: lambda x: {"a": (x * w).exp() * (x * w).detach(), "b": (x * w).detach()},
        lambda: (parameter(3),),
    ),
    "data": (lambda w: lambda x: x * w * w.data, lambda: (parameter(3),)),
    "transposed": (lambda w: lambda x: (x @ w) @ w.T, lambda: (parameter(3, 2),)),
    "tied": (lambda m: lambda x: m["out"](m["in"](x).tanh()), lambda: (tied(),)),
    "batch norm": (
        lambda m: lambda x: m(x),
        lambda: (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True)),),
    ),
    "dropout": (
        lambda w: lambda x: F.dropout(x * w, 0.5) - torch.rand_like(x) * F.dropout(x, 0.3),
        lambda: (parameter(3),),
    ),
    "transformer": (
        lambda m, first: lambda x: m(first(x).unsqueeze(0)),
        lambda: (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True), nn.Linear(3, 4)),
    ),
    "checkpoint": (checkpointed, lambda: (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)),)),
    "gradient penalty": (penalty, lambda: (nn.Linear(3, 1),)),
    "inner step": (inner_step, lambda: (nn.Linear(3, 1),)),
    "functional call": (
        lambda m: lambda x: torch.func.functional_call(m, {k: v * 2 for k, v in m.named_parameters()}, (x,)),
        lambda: (nn.Linear(3, 2),),
    ),
    "vmap": (lambda w: lambda x: torch.func.vmap(lambda row: (row * w).sum().exp())(x), lambda: (parameter(3),)),
    "grad": (
        lambda w: lambda x: torch.func.grad(lambda row: (row * w).exp().sum())(x) * w,
        lambda: (parameter(3),),
    ),
    "constants": (
        lambda w: lambda x: x * w - torch.tensor([1.0, 2.0, 3.0]) * torch.tensor(2.0),
        lambda: (parameter(3),),
    ),
    "embedding": (lambda e: lambda x: e((x[:, 0] > 0).long()) * x, lambda: (nn.Embedding(5, 3),)),
    "weight norm": (
        lambda m: lambda x: m(x),
        lambda: (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),),
    ),
    "buffer in place": (lambda m: lambda x: m(x), lambda: (Average(in_place=True),)),
    "buffer rebound": (lambda m: lambda x: m(x), lambda: (Average(in_place=False),)),
    "carry": (lambda m: lambda x: m(x), lambda: (Carry(),)),
    "in place inside": (in_place_inside, lambda: (parameter(3),)),
    "by identity": (by_identity, lambda: (parameter(3), parameter(3))),
    "convolution": (
        lambda m: lambda x: m(x.unsqueeze(1)),
        lambda: (nn.Sequential(nn.Conv1d(1, 2, 2), nn.MaxPool1d(2), nn.Flatten(), nn.LayerNorm(2)),),
    ),
    "cross entropy": (lambda m: lambda x: F.cross_entropy(m(x), (x.sum(1) > 0).long()), lambda: (nn.Linear(3, 4),)),
}


def state(owners: Any) -> Iterator[Any]:
    for owner in owners:
        for tensor in [*owner.parameters(), *owner.buffers()] if isinstance(owner, nn.Module) else [owner]:
            yield [tensor.detach(), tensor.grad]


# --- ways to call backward ----------------------------------------------------------------------------------------


def three(w: torch.Tensor, v: torch.Tensor) -> Program:
    """Three results over one trunk; the slope of the last is infinite at 0."""

    def program(x: torch.Tensor) -> Any:
        h = (x * w).sin()
        return h.sum(), (h * v).exp().mean(), torch.sqrt(x * x * w * 0).sum()

    return program


def apart(w: torch.Tensor, v: torch.Tensor) -> Program:
    """Results that share nothing that is saved; the last saves nothing at all."""
    return lambda x: ((x * w).exp().sum(), (x * v * v).sin().mean(), (w * 2 - v).sum())


def first_only(f: Program, x: torch.Tensor, owners: Any) -> None:
    f(x)[0].backward()


def both_in_turn(f: Program, x: torch.Tensor, owners: Any) -> None:
    a, b, _ = f(x)
    a.backward(retain_graph=True)
    b.backward()


def both_without_retaining(f: Program, x: torch.Tensor, owners: Any) -> None:
    a, b, _ = f(x)
    b.backward()
    a.backward()


def same_twice(f: Program, x: torch.Tensor, owners: Any) -> None:
    _, b, _ = f(x)
    b.backward(retain_graph=True)
    b.backward()


def same_twice_without_retaining(f: Program, x: torch.Tensor, owners: Any) -> None:
    _, b, _ = f(x)
    b.backward()
    b.backward()


def two_calls_in_reverse(f: Program, x: torch.Tensor, owners: Any) -> None:
    a, _, _ = f(x)
    _, b, _ = f(x - 1)
    b.backward()
    a.backward()


def two_calls_together(f: Program, x: torch.Tensor, owners: Any) -> None:
    (f(x)[0] * 2 - f(x + 1)[1]).backward()


def through_itself(f: Program, x: torch.Tensor, owners: Any) -> None:
    f(x * f(x)[0])[1].backward()


def after_a_change_that_matters(f: Program, x: torch.Tensor, owners: Any) -> None:
    _, b, _ = f(x)
    with torch.no_grad():
        owners[1].mul_(2)
    b.backward()


def after_a_change_that_does_not_matter(f: Program, x: torch.Tensor, owners: Any) -> None:
    a, _, _ = f(x)
    with torch.no_grad():
        owners[0].mul_(2)  # eager keeps x, not w, for the gradient of w
    a.backward()


def by_grad(f: Program, x: torch.Tensor, owners: Any) -> Any:
    return torch.autograd.grad(f(x)[0], list(owners), allow_unused=True)


def never(f: Program, x: torch.Tensor, owners: Any) -> Any:
    return f(x)


def change_what_only_one_needs(f: Program, x: torch.Tensor, owners: Any) -> None:
    """`a` first, then v is changed, then `b`, which needs it."""
    a, b, _ = f(x)
    a.backward()
    with torch.no_grad():
        owners[1].mul_(2)
    b.backward()


def in_turn_and_again(f: Program, x: torch.Tensor, owners: Any) -> Any:
    """`c`, then `b` retained and again, then `a`; then those that saved a tensor once more."""
    errors = []
    a, b, c = f(x)
    for result, retain in ((c, False), (b, True), (b, False), (a, False), (b, False), (a, False)):
        try:
            result.backward(retain_graph=retain)
        except RuntimeError as error:
            errors.append(str(error)[:40])
    return errors


def weighted(f: Program, x: torch.Tensor, owners: Any) -> None:
    a, b, _ = f(x)
    torch.autograd.backward([a, b], [torch.tensor(3.0), torch.tensor(-2.0)])


BACKWARDS = [
    first_only, both_in_turn, both_without_retaining, same_twice, same_twice_without_retaining, two_calls_in_reverse,
    two_calls_together, through_itself, after_a_change_that_matters, after_a_change_that_does_not_matter, by_grad, never,
    weighted,
]  # fmt: skip
