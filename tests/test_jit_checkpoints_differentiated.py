"""Checkpoints in programs that the caller differentiates: eager computes once more what is in them, in that backward."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import treeplay
from support import assert_same

CALLS = 4
PUTS_NONE_BACK = "does not put the generator back"


class Net(nn.Module):
    """Two layers, a batch norm, and a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.own = torch.Generator().manual_seed(5)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, -1.0, 3.0]))


Program = Callable[[Net, torch.Tensor], torch.Tensor]
Between = Callable[[Net, torch.Tensor], None]


def again(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return checkpoint(function, *args, use_reentrant=False, **options)


def play(program: Callable[[torch.Tensor], torch.Tensor], net: Net, between: Between | None = None) -> list[Any]:
    """Results and gradients, and what the calls leave."""
    found: list[Any] = []
    for call in range(CALLS):
        torch.manual_seed(call)
        x = torch.randn(3, 4, requires_grad=True)
        net.zero_grad()
        result = program(x)
        if between is not None:
            with torch.no_grad():
                between(net, x)
        (result * torch.arange(1.0, 5.0)).sum().backward()
        gradients = [x.grad, *(parameter.grad for parameter in net.parameters())]
        state = {name: value.clone() for name, value in net.state_dict().items()}
        found.append((result.detach(), gradients, state, torch.get_rng_state(), net.own.get_state()))
    return found


def told(program: Program, between: Between | None = None, **options: Any) -> Any:
    """The jitted program, after calls and backwards which all were eager's bit for bit."""
    net, twin = Net(), Net()
    jitted = treeplay.jit(lambda x: program(net, x), lower="aten", **options)
    assert_same(play(jitted, net, between), play(lambda x: program(twin, x), twin, between))
    return jitted


def whole(program: Program) -> Any:
    """A step with this program's backward in it, after calls which all were eager's bit for bit."""
    nets = [Net() for _ in range(2)]

    def step_of(net: Net) -> Callable[[torch.Tensor], torch.Tensor]:
        def step(x: torch.Tensor) -> torch.Tensor:
            net.zero_grad()
            result = program(net, x)
            (result * 2).sum().backward()
            return result.detach()

        return step

    def calls(step: Callable[[torch.Tensor], torch.Tensor], net: Net) -> list[Any]:
        found = []
        for call in range(CALLS):
            torch.manual_seed(call)
            result = step(torch.randn(3, 4))
            gradients = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
            found.append((result, gradients, torch.get_rng_state(), net.own.get_state()))
        return found

    jitted = treeplay.jit(step_of(nets[0]), lower="aten")
    assert_same(calls(jitted, nets[0]), calls(step_of(nets[1]), nets[1]))
    return jitted


def noise_of_its_own(net: Net, x: torch.Tensor) -> torch.Tensor:
    return again(lambda y: net.first(y) * torch.rand(4, generator=net.own), x)


def mask_of_its_own(net: Net, x: torch.Tensor) -> torch.Tensor:
    return again(lambda y: net.first(y) * torch.empty(3, 4).bernoulli_(0.5, generator=net.own), x)


def noise_of_its_own_further_in(net: Net, x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        return net.second(y) * torch.rand(3, 4, generator=net.own)

    return again(lambda y: again(inner, net.first(y)).sin(), x)


OF_THEIR_OWN: list[Program] = [noise_of_its_own, mask_of_its_own, noise_of_its_own_further_in]


@pytest.mark.parametrize("program", OF_THEIR_OWN, ids=lambda program: program.__name__)
def test_draws_from_the_users_own_generator_are_refused(program: Program) -> None:
    """A checkpoint puts back torch's own generators only, so eager's backward draws other numbers."""
    with pytest.warns(UserWarning, match=PUTS_NONE_BACK):
        assert told(program).statistics().replays == 0


@pytest.mark.parametrize("program", OF_THEIR_OWN, ids=lambda program: program.__name__)
def test_a_whole_step_draws_from_the_users_own_generator_again(program: Program) -> None:
    jitted = whole(program)
    assert jitted.statistics().replays == CALLS - 1, jitted.explain()


def test_torchs_generator_by_name_is_put_back() -> None:
    jitted = told(lambda net, x: again(lambda y: net.first(y) * torch.rand(4, generator=torch.default_generator), x))
    assert jitted.statistics().replays == CALLS - 1, jitted.explain()


def norm_kept_on_the_host(net: Net, x: torch.Tensor) -> torch.Tensor:
    def part(y: torch.Tensor) -> torch.Tensor:
        with save_on_cpu():
            z = net.norm(net.first(y))
        return z.sin()  # type: ignore[no-any-return]

    return again(part, x)


def dropout_kept_on_the_host(net: Net, x: torch.Tensor) -> torch.Tensor:
    def part(y: torch.Tensor) -> torch.Tensor:
        with save_on_cpu():
            z = F.dropout(net.first(y), 0.5)
        return z.sin()

    return again(part, x, preserve_rng_state=False)


@pytest.mark.parametrize(
    ("program", "why"),
    [(norm_kept_on_the_host, "writes to a tensor that outlives the call"), (dropout_kept_on_the_host, PUTS_NONE_BACK)],
    ids=["batch norm", "dropout"],
)
def test_a_checkpoint_is_seen_through_hooks_inside_of_it(program: Program, why: str) -> None:
    """Around a part of it only, so that the rest is computed again, and this part with it."""
    with pytest.warns(UserWarning, match=why):
        assert told(program).statistics().replays == 0
    jitted = whole(program)
    assert jitted.statistics().replays == CALLS - 1, jitted.explain()


def writes_what_was_there(net: Net, x: torch.Tensor) -> torch.Tensor:
    factor = x.detach() * 2

    def part(y: torch.Tensor) -> torch.Tensor:
        factor[0].add_(1)
        return (net.first(y) * factor).sin()

    return again(part, x)


def writes_what_it_has_read(net: Net, x: torch.Tensor) -> torch.Tensor:
    factor = x.detach() * 2
    result = again(lambda y: (net.first(y) + factor).sin(), x)
    factor.mul_(3)
    return result - factor


def writes_further_out(net: Net, x: torch.Tensor) -> torch.Tensor:
    def outer(y: torch.Tensor) -> torch.Tensor:
        factor = y.detach() * 3
        result = again(lambda z: (net.second(z) + factor).sin(), y)
        factor.mul_(2)
        return result.cos()

    return again(outer, x)


def writes_a_buffer_before(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.scale.mul_(1.5)
    return again(lambda y: (net.first(y) * net.scale).sin(), x)


def of_a_loop(net: Net, x: torch.Tensor) -> torch.Tensor:
    results = []
    for layer in (net.first, net.second):
        results.append(again(lambda y: layer(y).sin(), x))
    return results[0] - results[1] * 3


def of_a_loop_by_partial(net: Net, x: torch.Tensor) -> torch.Tensor:
    results = []
    for layer in (net.first, net.second):
        results.append(again(partial(lambda factor, y: layer(y).sin() * factor, 2.0), x))
    return results[0] - results[1] * 3


def of_a_loop_in_a_function(net: Net, x: torch.Tensor) -> torch.Tensor:
    results = []
    for layer in (net.first, net.second):
        run = torch.enable_grad()(lambda y: layer(y).sin())
        results.append(again(lambda y: run(y) * 2, x))
    return results[0] - results[1] * 3


def takes_the_place_of_what_died(net: Net, x: torch.Tensor) -> torch.Tensor:
    factors: Any = [2.0]
    result = again(lambda y: (net.first(y) * factors[0]).sin(), x)
    factors = None
    factors = [5.0]
    return result


REFUSED = [
    (writes_what_was_there, "or was there before, in a checkpoint"),
    (writes_what_it_has_read, "writes to a tensor that a checkpoint reads"),
    (writes_further_out, "writes to a tensor that a checkpoint reads"),
    (writes_a_buffer_before, "writes to a tensor that a checkpoint reads"),
    *(
        (program, "a variable that the program sets to something else afterwards")
        for program in (of_a_loop, of_a_loop_by_partial, of_a_loop_in_a_function, takes_the_place_of_what_died)
    ),
]


@pytest.mark.parametrize(("program", "why"), REFUSED, ids=[program.__name__ for program, _ in REFUSED])
def test_what_eager_would_compute_otherwise_the_second_time_is_refused(program: Program, why: str) -> None:
    with pytest.warns(UserWarning, match=why):
        assert told(program).statistics().replays == 0


def writes_what_it_made(net: Net, x: torch.Tensor) -> torch.Tensor:
    def part(y: torch.Tensor) -> torch.Tensor:
        return net.first(y).relu_().add(1).sin().mul_(y)

    return again(part, x).mul_(2)


def in_a_loop(net: Net, x: torch.Tensor) -> torch.Tensor:
    for layer in (net.first, net.second, net.first):
        x = again(lambda y, layer=layer: F.dropout(layer(y), 0.5).sin(), x)
    return x


@pytest.mark.parametrize("program", [writes_what_it_made, in_a_loop], ids=lambda program: program.__name__)
def test_what_a_checkpoint_makes_may_be_written(program: Program) -> None:
    jitted = told(program)
    assert jitted.statistics().replays == CALLS - 1, jitted.explain()


def selective(*, kept: CheckpointPolicy) -> Callable[[], Any]:
    """Contexts that keep what matrix products give (`MUST_SAVE`) or all (`PREFER_SAVE`)."""

    def policy(context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        is_kept = op is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if is_kept else kept

    return functools.partial(create_selective_checkpoint_contexts, policy)


@pytest.mark.parametrize("kept", [CheckpointPolicy.PREFER_RECOMPUTE, CheckpointPolicy.MUST_RECOMPUTE])
def test_a_selective_checkpoint_is_recorded(kept: CheckpointPolicy) -> None:
    def program(net: Net, x: torch.Tensor) -> torch.Tensor:
        def part(y: torch.Tensor) -> torch.Tensor:
            return F.dropout(net.first(y), 0.5).sin() * net.second(y).cos()

        return again(part, x, context_fn=selective(kept=kept))

    jitted = told(program)
    assert jitted.statistics().replays == CALLS - 1, jitted.explain()


@pytest.mark.compile
def test_a_selective_checkpoint_is_compiled() -> None:
    net = Net()
    contexts = selective(kept=CheckpointPolicy.PREFER_RECOMPUTE)

    def program(x: torch.Tensor) -> torch.Tensor:
        return again(lambda y: net.first(y).sin() * net.second(y).cos(), x, context_fn=contexts)

    jitted = treeplay.jit(program, lower="inductor", on_refusal="raise")
    for _ in range(CALLS):
        gradients = []
        x = torch.randn(3, 4)
        for call in (jitted, program):
            net.zero_grad()
            call(x).square().sum().backward()
            gradients.append([layer.weight.grad for layer in (net.first, net.second)])
        torch.testing.assert_close(*gradients)
    assert jitted.statistics().replays == CALLS - 1, jitted.explain()


def test_what_a_selective_checkpoint_keeps_may_not_be_written() -> None:
    """Eager raises in the backward."""
    net = Net()
    contexts = selective(kept=CheckpointPolicy.PREFER_SAVE)
    jitted = treeplay.jit(lambda x: again(lambda y: net.first(y).relu_().sin(), x, context_fn=contexts), lower="aten")
    with pytest.warns(UserWarning, match="one that has kept what the program has written to"):
        for _ in range(CALLS):
            result = jitted(torch.randn(3, 4))
            with pytest.raises(RuntimeError, match="has been mutated"):
                result.sum().backward()


def test_a_context_for_the_second_time_alone_is_refused() -> None:
    def program(net: Net, x: torch.Tensor) -> torch.Tensor:
        def contexts() -> tuple[Any, Any]:
            return contextlib.nullcontext(), torch.autocast("cpu", torch.bfloat16)

        return again(lambda y: net.first(y).sin().float(), x, context_fn=contexts, determinism_check="none")

    with pytest.warns(UserWarning, match="in a context of its own"):
        net = Net()
        jitted = treeplay.jit(lambda x: program(net, x), lower="aten")
        for _ in range(CALLS):
            jitted(torch.randn(3, 4))
    assert jitted.statistics().recordings == 0


def twice(net: Net, x: torch.Tensor) -> torch.Tensor:
    return again(lambda y: net.second((net.first(y) + net.scale).sin()).sin(), x)


def writes_a_weight(net: Net, x: torch.Tensor) -> None:
    net.first.weight.mul_(2)


def writes_a_buffer(net: Net, x: torch.Tensor) -> None:
    net.scale.add_(1)


@pytest.mark.parametrize(
    ("between", "name"), [(writes_a_weight, "first.weight"), (writes_a_buffer, "scale")], ids=["weight", "buffer"]
)
def test_state_that_a_checkpoint_reads_may_not_be_written_before_the_backward(between: Between, name: str) -> None:
    """Eager computes again with what is there by then."""
    net = Net()
    jitted = treeplay.jit(lambda x: twice(net, x), lower="aten", on_refusal="raise")
    twin = Net()
    assert_same(play(jitted, net), play(lambda x: twice(twin, x), twin))
    with pytest.raises(treeplay.UsageError, match=f"`net.{name}`.* modified by an inplace operation since the call"):
        play(jitted, net, between)
    net.zero_grad()
    jitted(torch.ones(3, 4)).sum().backward()
    assert net.first.weight.grad is not None


def test_an_argument_that_a_checkpoint_was_given_may_not_be_written_before_the_backward() -> None:
    net = Net()
    jitted = treeplay.jit(lambda x: twice(net, x), lower="aten", on_refusal="raise")
    for program in (jitted, jitted, jitted, lambda x: twice(net, x)):
        x = torch.ones(3, 4)
        result = program(x)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
    assert jitted.statistics().replays == 2


def test_what_no_checkpoint_reads_may_be_written_before_the_backward() -> None:
    def between(net: Net, x: torch.Tensor) -> None:
        net.first.bias.mul_(2)

    jitted = told(lambda net, x: again(lambda y: net.second(y).sin(), net.first(x)), between)
    assert jitted.statistics().replays == CALLS - 1, jitted.explain()


def test_what_a_checkpoint_was_given_is_let_go_by_the_last_backward() -> None:
    net = Net()
    jitted = treeplay.jit(lambda x: again(lambda y: net.first(y).sin(), x), lower="aten", on_refusal="raise")
    losses, given = [], []
    for call in range(4):
        x = torch.ones(3, 4) * call
        given.append(weakref.ref(x))
        losses.append(jitted(x).sum())
        losses[-1].backward(retain_graph=call == 2)
    del x
    assert [reference() is None for reference in given] == [True, True, False, True]
    losses[2].backward()
    assert given[2]() is None


def test_a_second_backward_looks_once_more() -> None:
    net = Net()
    jitted = treeplay.jit(lambda x: twice(net, x), lower="aten", on_refusal="raise")
    jitted(torch.ones(3, 4))
    result = jitted(torch.ones(3, 4)).sum()
    result.backward(retain_graph=True)
    with torch.no_grad():
        net.second.bias.add_(1)
    with pytest.raises(treeplay.UsageError, match=r"net\.second\.bias"):
        result.backward()
