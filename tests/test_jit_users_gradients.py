"""Gradients and backwards are the user's: whatever is kept, replaced, hooked or never asked for, they are eager's.

Each program is played twice: over weights of its own as it is, and over others recorded, by `jit` or behind `torch.compile`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from support import assert_alike, jit, state_of, training
from support.allocated import left_allocated
from support.compiled import compiled, new_reports
from support.recordings import on_a_tape

ROUNDS, STEADY = 6, 3
WIDTH = 8
FRONTS = pytest.mark.parametrize("front", ["jit", "backend"])


class Net(nn.Module):
    """A loss and what it is of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.drop(torch.tanh(self.first(x))) - 0.5
        return (self.second(hidden) - x).pow(2).mean(), hidden


class Side:
    """One way to play: what is called, its weights and its optimizer, and what the user keeps."""

    def __init__(self, net: Net, call: Any) -> None:
        self.net, self.call = net, call
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        self.kept: list[Any] = []

    @property
    def gradients(self) -> list[torch.Tensor | None]:
        return [parameter.grad for parameter in self.net.parameters()]


def sides(front: str, device: str) -> list[Side]:
    """Recorded, and as it is."""
    torch.manual_seed(4)
    net = Net().to(device)
    twin = copy.deepcopy(net)
    call = jit(net) if front == "jit" else compiled(net, dynamic=False)
    return [Side(net, call), Side(twin, twin)]


def batch(number: int, device: str) -> torch.Tensor:
    return (torch.arange(4.0 * WIDTH, device=device).reshape(4, WIDTH) * (number + 1)).cos()


Round = Callable[[Side, int, str], Any]


def accumulated(side: Side, number: int, device: str) -> None:
    """Four micro-batches a step."""
    for micro in range(4):
        side.call(batch(4 * number + micro, device))[0].backward()
    side.optimizer.step()
    side.optimizer.zero_grad(set_to_none=number % 2 == 0)


def zeroed(side: Side, number: int, device: str) -> None:
    side.optimizer.zero_grad(set_to_none=False)
    side.call(batch(number, device))[0].backward()
    side.optimizer.step()


def kept(side: Side, number: int, device: str) -> Any:
    """Gradients of each step are kept, with what they were."""
    side.call(batch(number, device))[0].backward()
    side.kept.append([(gradient, gradient.clone()) for gradient in side.gradients if gradient is not None])
    side.optimizer.step()
    side.optimizer.zero_grad(set_to_none=True)
    for one, before in (pair for pairs in side.kept for pair in pairs):
        assert torch.equal(one, before)
    return [one for pairs in side.kept[-2:] for one, _ in pairs]


def replaced(side: Side, number: int, device: str) -> None:
    """The user's own tensors take the place of gradients, to which the next backward adds."""
    side.call(batch(number, device))[0].backward()
    for parameter in side.net.parameters():
        assert parameter.grad is not None
        parameter.grad = parameter.grad.clone().mul_(0.5).sub_(0.125)
    side.call(batch(number + 100, device))[0].backward()
    side.optimizer.step()
    if number % 2:
        side.optimizer.zero_grad(set_to_none=False)


def hooked(side: Side, number: int, device: str) -> Any:
    """Hooks on a weight, on accumulation and on a result."""
    seen: list[torch.Tensor] = []
    if not side.kept:
        weight = side.net.first.weight
        weight.register_hook(lambda gradient: gradient * 2 - 1)
        weight.register_post_accumulate_grad_hook(lambda parameter: side.kept.append(parameter.grad.clone()))
    loss, hidden = side.call(batch(number, device))
    loss.register_hook(lambda gradient: (seen.append(gradient.clone()), gradient * 3)[1])
    (loss * 2 + hidden.sum()).backward()
    assert len(side.kept) == number + 1
    seen.append(side.kept[-1])
    side.optimizer.step()
    side.optimizer.zero_grad()
    return seen


def all_reduced(side: Side, number: int, device: str) -> None:
    """A sum over processes that goes on while its handle is dropped, and the memory of gradients is written again."""
    side.call(batch(number, device))[0].backward()
    for gradient in side.gradients:
        torch.distributed.all_reduce(gradient, async_op=True)
    if device == "cpu":  # where nothing else puts what follows behind it
        torch.distributed.barrier()
    side.optimizer.step()
    side.optimizer.zero_grad(set_to_none=number % 2 == 0)


GRADIENTS: dict[str, Round] = {
    "accumulated": accumulated,
    "zeroed": zeroed,
    "kept": kept,
    "replaced": replaced,
    "hooked": hooked,
    "all_reduced": all_reduced,
}


@pytest.fixture
def one_process(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """A process group of this process alone, for rounds that want one."""
    if request.node.callspec.params["name"] != "all_reduced":
        yield
        return
    device = request.node.callspec.params["device"]
    backend = "nccl" if device == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@FRONTS
@pytest.mark.parametrize("name", GRADIENTS)
def test_Tplus3_gradients_are_the_users(
    name: str, front: str, device: str, one_process: None, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None
) -> None:
    on_a_tape(device, monkeypatch)
    ours, eagers = both = sides(front, device)
    for number in range(5 if name == "accumulated" else ROUNDS):
        found, expected = (GRADIENTS[name](side, number, device) for side in both)
        check(ours, eagers, (found, expected), number)
    check_recorded(ours, front, device)


def check(ours: Side, eagers: Side, results: tuple[Any, Any], number: int) -> None:
    assert_alike(*results, f"round {number}")
    states = [dict(state_of(side.net, side.optimizer)) for side in (ours, eagers)]
    assert_alike(*states, f"state after round {number}")


def check_recorded(side: Side, front: str, device: str) -> None:
    """Both directions are replayed."""
    if front == "jit":
        statistics = side.call.statistics()
        assert statistics.refusals == 0 and statistics.recordings == 1, side.call.explain()
        assert statistics.replays >= statistics.calls - 2
    launches = [(report.direction, report.launch) for report in new_reports() if report.outcome != "compiled"]
    assert {direction for direction, _ in launches} >= {"forward", "backward"}
    for direction, launch in launches:
        assert launch is not None and launch.stage == "recorded" and launch.launches >= ROUNDS - STEADY, direction


@pytest.mark.parametrize("front", ["whole step", "jit", "backend"])
@pytest.mark.gpu
def test_Tplus3_another_stream_may_still_read_a_gradient_when_the_next_step_begins(
    front: str, fresh_dynamo: None
) -> None:
    ours, eagers = sides("backend" if front == "backend" else "jit", "cuda")
    beside = torch.cuda.Stream()
    step = jit(training(nn.Sequential(*ours.net.children()), ours.optimizer)) if front == "whole step" else None
    found: list[torch.Tensor] = []
    expected: list[torch.Tensor] = []
    for number in range(ROUNDS + 4):
        x = batch(number, "cuda")
        for side, seen in ((ours, found), (eagers, expected)):
            if step is not None:
                if side is ours:
                    step(x, x.flip(0))
                else:
                    training(nn.Sequential(*eagers.net.children()), eagers.optimizer)(x, x.flip(0))
            else:
                side.call(x)[0].backward()
                side.optimizer.step()
            gradient = side.net.first.weight.grad
            assert gradient is not None
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                torch.cuda._sleep(20_000_000)  # the next step has begun long before this is over
                seen.append(gradient * 2 - 1)
            gradient.record_stream(beside)
            del gradient
            side.optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    assert_alike(found, expected)
    if step is None:
        check_recorded(ours, front, "cuda")
    else:
        assert step.statistics().keys[0].recordings[-1].launch.stage == "recorded"


def kept_graph(side: Side, number: int, device: str) -> Any:
    """Two backwards of one forward."""
    loss, _ = side.call(batch(number, device))
    loss.backward(retain_graph=True)
    first = [gradient.clone() for gradient in side.gradients if gradient is not None]
    (loss * 3).backward()
    return first


def partial(side: Side, number: int, device: str) -> Any:
    """Of some weights, and of one result."""
    loss, hidden = side.call(batch(number, device))
    found = torch.autograd.grad(loss, [side.net.second.weight], retain_graph=True)
    (hidden * 2 - 1).sum().backward(inputs=[side.net.first.weight])
    assert side.net.second.weight.grad is None or number > 0
    return found


def never(side: Side, number: int, device: str) -> Any:
    """A forward whose backward never comes, between two that have one."""
    for part in range(3):
        loss, hidden = side.call(batch(3 * number + part, device))
        if part != 1:
            loss.backward()
    return hidden.detach().clone()


def late(side: Side, number: int, device: str) -> None:
    """The backward of the last round's forward, after this round's."""
    side.kept.append(side.call(batch(number, device))[0])
    if len(side.kept) == 2:
        side.kept.pop(0).backward()


def failing(side: Side, number: int, device: str) -> None:
    """An exception between forward and backward."""
    try:
        loss, _ = side.call(batch(number, device))
        raise KeyError("of the user's")
    except KeyError:
        pass
    del loss
    side.call(batch(number + 50, device))[0].backward()


def checkpointed(*, use_reentrant: bool) -> Round:
    def around(side: Side, number: int, device: str) -> None:
        """The call is recomputed in the backward, with the random numbers that it drew."""
        side.net.drop.p = 0.25
        torch.manual_seed(number)
        x = batch(number, device).requires_grad_()
        loss, _ = checkpoint(side.call, x, use_reentrant=use_reentrant)
        loss.backward()
        side.kept = [x.grad]

    around.__name__ = "a reentrant checkpoint" if use_reentrant else "a checkpoint"
    return around


BACKWARDS: dict[str, Round] = {
    "kept graph": kept_graph,
    "partial": partial,
    "never": never,
    "late": late,
    "failing": failing,
}
CHECKPOINTS = {"reentrant": checkpointed(use_reentrant=True), "other": checkpointed(use_reentrant=False)}


def play(round_: Round, both: list[Side], device: str) -> list[int]:
    """All rounds on both sides; what the recorded one leaves allocated after each from the third on."""
    left = []
    for number in range(ROUNDS):
        for side in both:
            side.net.zero_grad(set_to_none=False)
        expected = round_(both[1], number, device)
        allocated, found = left_allocated(lambda: round_(both[0], number, device), device)
        left.append(allocated - sum(map(of_result, found if isinstance(found, (list, tuple)) else [found])))
        check(*both, (found, expected), number)
    return left[STEADY:]


def of_result(value: Any) -> int:
    """The memory of a result, which is the caller's. A GPU's comes in blocks of 512 bytes."""
    if not isinstance(value, torch.Tensor):
        return 0
    return -(-value.nbytes // 512) * 512 if value.is_cuda else value.nbytes


@FRONTS
@pytest.mark.parametrize("name", BACKWARDS)
def test_Tplus4_backwards_of_any_kind_are_right_and_replayed(
    name: str, front: str, device: str, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None
) -> None:
    on_a_tape(device, monkeypatch)
    both = sides(front, device)
    left = play(BACKWARDS[name], both, device)
    if name == "late":  # its first backward comes one round later, and so does what that makes
        left.pop(0)
    assert max(left) <= 0, left
    ours = both[0]
    if front == "jit":
        before = ours.call.statistics()
        BACKWARDS[name](ours, ROUNDS, device)
        after = ours.call.statistics()
        assert after.replays - before.replays == after.calls - before.calls > 0, ours.call.explain()
    check_recorded(ours, front, device)


@FRONTS
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_Tplus4_a_call_inside_of_a_checkpoint_is_right_in_every_round(
    name: str, front: str, device: str, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None
) -> None:
    """With dropout, whose mask is drawn again."""
    on_a_tape(device, monkeypatch)
    both = sides(front, device)
    left = play(CHECKPOINTS[name], both, device)
    if device == "cuda" and name == "reentrant" and front == "jit":
        # Its first call in each round needs no gradient, so that the other kind is captured one round later.
        left.pop(0)
    assert max(left) <= 0, left
    if front == "backend":
        launches = [report.launch for report in new_reports() if report.outcome != "compiled"]
        assert launches
        assert all(launch is not None and launch.stage == "recorded" and launch.launches >= 3 for launch in launches)
        return
    statistics = both[0].call.statistics()
    assert statistics.refusals == 0
    if name == "reentrant":
        assert statistics.not_replayed.keys() == {"observed", "warm-up"}, both[0].call.explain()
        assert statistics.replays >= statistics.calls - 4
    else:  # whose hooks on saved tensors want to see what eager saves
        assert statistics.not_replayed == {"under hooks on saved tensors": statistics.calls}


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_Tplus4_a_checkpoint_inside_of_a_program_is_recorded(use_reentrant: bool, dropout: float, device: str) -> None:
    """A whole step. Dropout draws other numbers when it is recomputed: a recording puts no generator back."""
    torch.manual_seed(4)
    nets = [Net().to(device) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    steps = []
    for net in nets:
        net.drop.p = dropout
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x: torch.Tensor, net: Net = net, optimizer: torch.optim.Optimizer = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            x = x.detach().clone().requires_grad_()
            loss, _ = checkpoint(net, x, use_reentrant=use_reentrant, preserve_rng_state=dropout == 0)
            loss.backward()
            optimizer.step()
            return loss.detach()

        steps.append(step)
    jitted = jit(steps[0])
    for number in range(ROUNDS):
        results = []
        for call in (jitted, steps[1]):
            torch.manual_seed(number)
            results.append(call(batch(number, device)))
        assert_alike(*results, f"round {number}")
        assert_alike(*(dict(state_of(net)) for net in nets), f"state after round {number}")
    statistics = jitted.statistics()
    assert statistics.replays >= ROUNDS - STEADY, jitted.explain()
    stages = {recording.launch.stage for key in statistics.keys for recording in key.recordings}
    assert stages == {"bound" if device == "cpu" else "recorded"}
