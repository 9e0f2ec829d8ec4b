"""Steps that compute in checkpoints what their backward computes once more, with the random numbers that were drawn before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import treeplay
from support import assert_same

CALLS = 4
REFUSED = "from an earlier state of the generator that the program has put back"


class Net(nn.Module):
    """Two layers, and a generator of its own."""

    state: torch.Tensor  # of torch's generator, at some time before

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.own = torch.Generator().manual_seed(5)
        self.state = torch.Generator().manual_seed(11).get_state()


Loss = Callable[[Net, torch.Tensor], torch.Tensor]


def again(function: Callable[..., Any], *args: Any, use_reentrant: bool = False) -> Any:
    return checkpoint(function, *args, use_reentrant=use_reentrant)


def in_a_row(net: Net, x: torch.Tensor) -> torch.Tensor:
    for layer in (net.first, net.second, net.first):
        x = again(lambda y, layer=layer: F.dropout(layer(y), 0.5).sin(), x)
    return x


def in_a_row_reentrant(net: Net, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    for layer in (net.first, net.second, net.first):
        x = again(lambda y, layer=layer: F.dropout(layer(y), 0.5).sin(), x, use_reentrant=True)
    return x


def _nested(net: Net, x: torch.Tensor, *, use_reentrant: bool) -> Any:
    def inner(y: torch.Tensor) -> torch.Tensor:
        return F.dropout(net.second(y), 0.3).cos()

    def outer(y: torch.Tensor) -> torch.Tensor:
        return again(inner, F.dropout(net.first(y), 0.5), use_reentrant=use_reentrant) - F.dropout(y, 0.1)

    return F.dropout(again(outer, F.dropout(x, 0.2), use_reentrant=use_reentrant), 0.4)


def nested_beside_others(net: Net, x: torch.Tensor) -> torch.Tensor:
    return _nested(net, x, use_reentrant=False)


def nested_reentrant(net: Net, x: torch.Tensor) -> torch.Tensor:
    return _nested(net, x.clone().requires_grad_(), use_reentrant=True)


def under_autocast(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return again(lambda y: F.dropout(net.second(F.dropout(net.first(y), 0.5)), 0.2), x).float()


def of_alpha(net: Net, x: torch.Tensor) -> torch.Tensor:
    return again(lambda y: F.alpha_dropout(net.first(y), 0.5, True).sin(), x)


def of_features(net: Net, x: torch.Tensor) -> torch.Tensor:
    return again(lambda y: F.dropout1d(net.first(y)[:, :, None], 0.5, True).sin(), x)


def in_place(net: Net, x: torch.Tensor) -> torch.Tensor:
    return again(lambda y: F.dropout(net.first(y).relu_().mul_(2), 0.5, True, True).sin(), x)


def gumbel(net: Net, x: torch.Tensor) -> torch.Tensor:
    return again(lambda y: F.gumbel_softmax(net.first(y)).sin(), x)


def noisy(net: Net, x: torch.Tensor) -> torch.Tensor:
    return again(lambda y: (net.first(y) * torch.randn_like(y)).sin() + torch.rand(3, 4), x)


def without_the_last(net: Net, x: torch.Tensor) -> torch.Tensor:
    """Nothing is saved behind the last draw: eager's second run stops before it."""
    return again(lambda y: F.dropout(net.first(y), 0.5).sin() + torch.rand(3, 4), x) * torch.rand(3, 4)


def penalized(net: Net, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    y = again(lambda y: F.dropout(net.first(y), 0.5).sin(), x)
    (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    return y - slope


def set_back_by_hand(net: Net, x: torch.Tensor) -> torch.Tensor:
    before = net.own.get_state()
    one = torch.rand(3, 4, generator=net.own)
    doubled = one * 2
    one.neg_()
    net.own.set_state(before)
    two = torch.rand(3, 4, generator=net.own)
    return net.first(x) * one - two * doubled + torch.rand(3, 4, generator=net.own)


def forked(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        one, two = torch.randn(3, 4), torch.rand(2)
    three, four = torch.randn(3, 4) * one, torch.rand(2)
    return net.first(x) * one - three + (four * two - torch.rand(2)).sum()


RECORDED: list[Loss] = [
    in_a_row,
    in_a_row_reentrant,
    nested_beside_others,
    nested_reentrant,
    under_autocast,
    of_alpha,
    of_features,
    in_place,
    gumbel,
    noisy,
    without_the_last,
    penalized,
    set_back_by_hand,
    forked,
]


def by_a_tensor(net: Net, x: torch.Tensor) -> torch.Tensor:
    return again(lambda y: torch.bernoulli(y.sigmoid()) * net.first(y), x)


def with_a_slope(net: Net, x: torch.Tensor) -> torch.Tensor:
    return again(lambda y: F.rrelu(net.first(y), training=True).sin(), x)


def otherwise(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        one = torch.randn(3, 4)
    return net.first(x) * one - torch.rand(3, 4)


def of_another_shape(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        one = torch.randn(3, 4)
    return net.first(x) * one - torch.randn(4, 3).T


def of_another_type(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        one = torch.randn(3, 4)
    return net.first(x) * one - torch.randn(3, 4, dtype=torch.float64).float()


def with_other_numbers(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        one = torch.empty(3, 4).uniform_(0, 1)
    return net.first(x) * one - torch.empty(3, 4).uniform_(0, 2)


def of_other_strides(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        one = torch.empty(3, 4).normal_()
    return net.first(x) * one - torch.empty(4, 3).T.normal_()


REFUSALS: list[Loss] = [
    by_a_tensor,
    with_a_slope,
    otherwise,
    of_another_shape,
    of_another_type,
    with_other_numbers,
    of_other_strides,
]


def left_in_an_earlier_state(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        one, two = torch.randn(3, 4), torch.rand(3, 4)
    return net.first(x) * one - two * torch.randn(3, 4)


def state_of_before(net: Net, x: torch.Tensor) -> torch.Tensor:
    torch.set_rng_state(net.state)
    return net.first(x) * torch.rand(3, 4) - torch.rand(3, 4)


def whole(net: Net, loss: Loss, *, backwards: int = 1, parts: int = 1) -> Callable[[torch.Tensor], torch.Tensor]:
    """A step of training, with gradients of several parts, through each of which several backwards go."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        for part in range(parts):
            value = loss(net, x - part).square().mean()
            for left in reversed(range(backwards)):
                (value * (left + 1)).backward(retain_graph=left > 0)
        optimizer.step()
        return value.detach()

    return step


def play(step: Callable[[torch.Tensor], torch.Tensor], net: Net) -> list[Any]:
    """What calls give and leave, and where the generators stand after each."""
    found = []
    for call in range(CALLS):
        torch.manual_seed(call)
        result = step(torch.randn(3, 4))
        weights = [parameter.detach().clone() for parameter in net.parameters()]
        found.append((result, weights, torch.get_rng_state(), net.own.get_state()))
    return found


def told(loss: Loss, **options: int) -> Any:
    """The jitted program, after calls which all were eager's bit for bit."""
    nets = [Net() for _ in range(2)]
    jitted = treeplay.jit(whole(nets[0], loss, **options), lower="aten")
    assert_same(play(jitted, nets[0]), play(whole(nets[1], loss, **options), nets[1]))
    return jitted


@pytest.mark.parametrize("loss", RECORDED, ids=lambda loss: loss.__name__)
def test_a_step_draws_again_what_it_drew(loss: Loss) -> None:
    jitted = told(loss)
    assert jitted.statistics().replays == CALLS - 1, jitted.explain()


@pytest.mark.parametrize("loss", [in_a_row, nested_beside_others], ids=lambda loss: loss.__name__)
def test_each_of_several_backwards_draws_it_again(loss: Loss) -> None:
    jitted = told(loss, backwards=3)
    assert jitted.statistics().replays == CALLS - 1, jitted.explain()


@pytest.mark.parametrize("loss", [in_a_row, in_a_row_reentrant, forked], ids=lambda loss: loss.__name__)
def test_gradients_that_are_added_up_have_draws_of_their_own(loss: Loss) -> None:
    jitted = told(loss, parts=2)
    assert jitted.statistics().replays == CALLS - 1, jitted.explain()


@pytest.mark.parametrize("loss", REFUSALS, ids=lambda loss: loss.__name__)
def test_other_draws_from_an_earlier_state_are_refused(loss: Loss) -> None:
    with pytest.warns(UserWarning, match=REFUSED):
        assert told(loss).statistics().replays == 0


def test_a_generator_that_is_left_in_an_earlier_state_is_refused() -> None:
    with pytest.warns(UserWarning, match="torch's generator"):
        assert told(left_in_an_earlier_state).statistics().replays == 0


def test_a_state_from_elsewhere_is_refused() -> None:
    with pytest.warns(UserWarning, match="after the program has seeded the generator"):
        assert told(state_of_before).statistics().replays == 0


def test_results_that_the_caller_differentiates_are_refused() -> None:
    """A wrapper runs the program once more, and would draw anew."""
    nets = [Net() for _ in range(2)]
    jitted = treeplay.jit(lambda x: forked(nets[0], x), lower="aten")
    with pytest.warns(UserWarning, match=REFUSED):
        for call in range(CALLS):
            x, results = torch.randn(3, 4), []
            for program in (jitted, lambda x: forked(nets[1], x)):
                torch.manual_seed(call)
                results.append(program(x))
                results[-1].sum().backward()
            assert_same(*results)
            assert_same(*([p.grad for p in net.parameters()] for net in nets))


def test_a_reentrant_one_is_refused_where_the_caller_differentiates(recwarn: pytest.WarningsRecorder) -> None:
    net = Net()

    def program(x: torch.Tensor) -> torch.Tensor:
        return again(lambda y: net.first(y).sin(), x, use_reentrant=True) * 2

    jitted = treeplay.jit(program, lower="aten")
    for _ in range(CALLS):
        x = torch.randn(3, 4, requires_grad=True)
        jitted(x).sum().backward()
        (expected,) = torch.autograd.grad((net.first(x).sin() * 2).sum(), x)
        assert_same(x.grad, expected)
    (warned,) = (str(item.message) for item in recwarn)
    assert "checkpoint: is reentrant" in warned and "use_reentrant=False" in warned
    assert "return checkpoint(function" in warned


def test_a_reentrant_one_before_the_call_is_the_callers() -> None:
    net = Net()
    jitted = treeplay.jit(lambda y: net.second(y).sin() * 2, lower="aten")
    for _ in range(CALLS):
        both = []
        for program in (jitted, lambda y: net.second(y).sin() * 2):
            net.zero_grad()
            torch.manual_seed(3)
            x = torch.randn(3, 4, requires_grad=True)
            program(again(lambda y: F.dropout(net.first(y), 0.5), x, use_reentrant=True)).sum().backward()
            both.append([x.grad, *(parameter.grad for parameter in net.parameters())])
        assert_same(*both)
    assert jitted.statistics().replays == CALLS - 1, jitted.explain()


def test_a_program_of_any_size_draws_again_what_it_drew() -> None:
    net = Net().requires_grad_(False)

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng():
            one = torch.randn_like(x)
        return net.first(x) * one - torch.randn_like(x)

    jitted = treeplay.jit(program, lower="aten")
    for rows in (2, 3, 4, 5, 6, 6, 7, 7, 2):
        x, results = torch.randn(rows, 4), []
        for call in (jitted, program):
            torch.manual_seed(rows)
            results.append((call(x), torch.get_rng_state()))
        assert_same(*results)


@pytest.mark.compile
@pytest.mark.parametrize("loss", [in_a_row, nested_reentrant], ids=lambda loss: loss.__name__)
def test_compiled_steps_draw_it_again_too(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(treeplay.settings, "eager_random", True)
    nets = [Net() for _ in range(2)]
    jitted = treeplay.jit(whole(nets[0], loss), lower="inductor", on_refusal="raise")
    found, expected = play(jitted, nets[0]), play(whole(nets[1], loss), nets[1])
    for (result, weights, *_), (other, others, *_) in zip(found, expected, strict=True):
        torch.testing.assert_close(result, other)
        torch.testing.assert_close(weights, others)
    assert jitted.statistics().replays == CALLS - 1


@pytest.mark.compile
def test_numbers_of_the_compilers_own_are_the_same_in_the_backward() -> None:
    weight = nn.Parameter(torch.rand(64, 64) + 1)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight.grad = None
        y = again(lambda x: F.dropout(x * weight, 0.5).sin(), x)
        y.sum().backward()
        assert weight.grad is not None
        return y.detach(), weight.grad * 1

    jitted = treeplay.jit(step, lower="inductor", on_refusal="raise")
    for _ in range(CALLS):
        x = torch.rand(64, 64) + 0.5
        y, slope = jitted(x)
        kept = y != 0
        expected = torch.where(kept, (x * weight.detach() * 2).cos() * x * 2, torch.zeros(()))
        torch.testing.assert_close(slope, expected)
        assert 0.3 < kept.float().mean() < 0.7
    assert jitted.statistics().replays == CALLS - 1


def test_a_mask_goes_into_a_reentrant_checkpoint() -> None:
    """Whose backward asks it for a gradient: it has none, and is forgotten with the trace."""

    def masked(net: Net, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        return again(lambda y, mask: F.dropout(net.first(y), 0.5).sin() * mask, x, x > 0, use_reentrant=True)

    jitted = told(masked)
    assert jitted.statistics().replays == CALLS - 1, jitted.explain()


@pytest.mark.parametrize("outer", [True, False])
def test_a_checkpoint_that_keeps_no_state_is_refused_beside_one_that_does(outer: bool) -> None:
    """Where the caller differentiates: eager's backward draws anew what is in it."""
    net = Net()

    def program(x: torch.Tensor) -> torch.Tensor:
        def inner(y: torch.Tensor) -> torch.Tensor:
            return F.dropout(net.second(y), 0.5).sin()

        def both(y: torch.Tensor) -> Any:
            kept = checkpoint(inner, y, use_reentrant=False, preserve_rng_state=outer)
            return F.dropout(kept, 0.5) - y

        return checkpoint(both, net.first(x), use_reentrant=False, preserve_rng_state=not outer)  # type: ignore[no-any-return]

    with pytest.raises(treeplay.Refusal, match="preserve_rng_state=False"):
        jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
        for _ in range(2):
            jitted(torch.ones(3, 4)).sum().backward()


def test_a_state_that_another_thread_puts_back_is_none_of_the_programs() -> None:
    own = torch.get_rng_state()

    def put_back(state: torch.Tensor) -> None:
        thread = threading.Thread(target=torch.set_rng_state, args=(state,))
        thread.start()
        thread.join()

    def program(x: torch.Tensor) -> torch.Tensor:
        state = torch.get_rng_state()
        y = F.dropout(x, 0.5)
        others.append(state)  # which a thread that draws beside the program may read and put back
        put_back(others.pop())
        return y - F.dropout(x, 0.5)

    others: list[torch.Tensor] = []
    with pytest.raises(treeplay.Refusal, match="another thread"):
        jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
        for _ in range(3):
            jitted(torch.ones(8))
    torch.set_rng_state(own)
