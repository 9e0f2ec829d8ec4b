"""Captures take addresses and no memory, and what recordings need while they run is shared."""

from __future__ import annotations

import copy
import gc
import random
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import the_recording
from support.compiled import compiled, new_reports
from support.temporaries import MIB, temporaries
from treeplay.device.cuda.lane import lane_of
from treeplay.device.cuda.memory.space import can_be_made

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)


def recorded(program: Any, x: torch.Tensor, *, lower: str = "aten") -> Any:
    jitted: Any = treeplay.jit(program, lower=lower, on_refusal="raise")
    for number in range(5):
        given = x + number
        torch.testing.assert_close(jitted(given), program(given))
    assert the_recording(jitted).launch.stage == "recorded", jitted.explain()
    return jitted


def test_a_device_here_has_address_spaces() -> None:
    assert can_be_made(0)


def test_T7_captures_take_no_memory() -> None:
    program, x = temporaries(8, 64)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    program(x + 1)
    eager = torch.cuda.max_memory_reserved()
    torch.cuda.empty_cache()
    jitted: Any = treeplay.jit(program, lower="aten", on_refusal="raise")
    for number in range(2):
        jitted(x + number)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    jitted(x + 3)
    assert torch.cuda.max_memory_reserved() <= 1.15 * eager
    assert the_recording(jitted).launch.stage == "recorded"
    torch.cuda.empty_cache()
    scratch = lane_of(DEVICE).scratch.nbytes
    assert torch.cuda.memory_reserved() + scratch <= 1.15 * eager
    assert the_recording(jitted).launch.scratch_bytes <= scratch


def test_T35_programs_in_turn_take_the_memory_of_the_largest() -> None:
    gc.collect()
    lane = lane_of(DEVICE)
    before = lane.scratch.nbytes
    programs = []
    largest = 0
    for count, mib in ((3, 64), (5, 40), (3, 66)):
        program, x = temporaries(count, mib)
        programs.append((recorded(program, x), program, x))
        largest = max(largest, the_recording(programs[-1][0]).launch.scratch_bytes)
    assert largest > 190 * MIB
    assert lane.scratch.nbytes <= max(before, 1.3 * largest)
    for number in range(4):
        for jitted, program, x in programs:
            torch.testing.assert_close(jitted(x - number), program(x - number))


def test_T35_what_is_never_there_at_once_has_the_same_memory() -> None:
    """Two blocks of 50 MiB do not fit where two of 30 MiB lay, and yet there is memory for two at once only."""

    def program(x: torch.Tensor) -> torch.Tensor:
        few = x.repeat(30) * 2
        total = (few + 1).sum() - few.mean()
        del few
        many = x.repeat(50) * total
        return ((many - 3) * 2).amax()

    x = torch.arange(MIB // 4, device="cuda", dtype=torch.float32) / MIB
    launch = the_recording(recorded(program, x)).launch
    assert 100 * MIB <= launch.scratch_bytes <= 110 * MIB


def of_blocks(seed: int) -> Any:
    """A program whose temporaries have random sizes, and are let go in a random order."""
    chance = random.Random(seed)
    pages = [1, 3, 7, 12, 22, 35]  # of 2 MiB, so that blocks are put into segments of all kinds
    steps = [(chance.choice(pages), chance.random(), chance.choice([0.5, -1.5, 2.0])) for _ in range(40)]

    def program(x: torch.Tensor) -> torch.Tensor:
        alive = [x]
        for size, which, factor in steps:
            last = alive[int(which * len(alive))]
            first = last[: MIB // 8] * factor - 1
            alive.append(first.repeat(4 * size)[: size * MIB // 2 - int(which * 1000)])
            while len(alive) > 2 + 4 * which:
                del alive[int(which * len(alive))]
        return torch.stack([one[: MIB // 16] + one[-MIB // 16 :] for one in alive]).sum(0)

    return program


@pytest.mark.parametrize("seed", range(8))
def test_T35_random_temporaries_do_not_write_to_one_another(seed: int) -> None:
    x = torch.randn(MIB // 2, device="cuda")
    program = of_blocks(seed)
    jitted: Any = treeplay.jit(program, lower="aten", on_refusal="raise")
    for number in range(5):
        given = x - number
        assert torch.equal(jitted(given), program(given))
    assert the_recording(jitted).launch.stage == "recorded", jitted.explain()


def test_T7_gradients_of_a_recorded_step_hold_no_segments_of_what_is_gone() -> None:
    """Those of a call that ran as it is lie between activations."""
    net = nn.Sequential(*(layer for _ in range(40) for layer in (nn.Linear(600, 600), nn.GELU()))).cuda()
    program: Any = treeplay.jit(sgd_step_of(net), lower="aten", on_refusal="raise")
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for number in range(6):
        program(torch.full((1000, 600), number - 1.5, device="cuda"))
    assert the_recording(program).launch.stage == "recorded"
    gc.collect()
    torch.cuda.empty_cache()
    gradients = sum(parameter.grad.nbytes for parameter in net.parameters() if parameter.grad is not None)
    assert torch.cuda.memory_reserved() - before <= gradients + 40 * MIB


def deep(width: int) -> tuple[nn.Module, nn.Module]:
    net = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(width, width, bias=False), nn.GELU()))).cuda()
    return net, copy.deepcopy(net)


def sgd_step_of(model: nn.Module) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("front", ["jit", "backend"])
def test_T35_gradients_that_are_returned_take_no_scratch(front: str, fresh_dynamo: None) -> None:
    """They lie where nothing else of the capture lay; what lies elsewhere is small here."""
    net = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(6))).cuda()
    twin = copy.deepcopy(net)
    model: Any = compiled(net, "inductor", dynamic=False) if front == "backend" else net

    step, eager = sgd_step_of(model), sgd_step_of(twin)
    program: Any = treeplay.jit(step, lower="inductor", on_refusal="raise") if front == "jit" else step
    for number in range(6):
        x = torch.full((16, 2048), number - 1.5, device="cuda")
        torch.testing.assert_close(program(x), eager(x), rtol=1e-3, atol=1e-5)
    for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-5)
    launches = [report.launch for report in new_reports()] if front == "backend" else [the_recording(program).launch]
    assert [launch.stage for launch in launches] == ["recorded"] * len(launches)
    # Half of what the gradients take: cuBLAS has a workspace of 32 MiB on some devices.
    assert max(launch.scratch_bytes for launch in launches) < 48 * MIB


@pytest.mark.parametrize("lower", ["aten", "inductor"])
def test_T35_temporaries_lie_in_gradients_that_are_not_made_yet(lower: str) -> None:
    """As in eager, a step takes what it saves, and gradients take the place of what is saved no longer."""
    x = torch.full((2048, 2048), 1.5, device="cuda")
    net, twin = deep(2048)
    eager = sgd_step_of(twin)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    eager(x)
    taken = torch.cuda.max_memory_allocated() - before
    least = None
    for _ in range(3):  # what a kernel is left by chance may keep a gradient from being shared
        program: Any = treeplay.jit(sgd_step_of(net), lower=lower, on_refusal="raise")
        for _ in range(4):
            program(x)
        launch = the_recording(program).launch
        assert launch.stage == "recorded" and launch.copied_bytes_per_call <= 4  # a sum's kernel may not let it move
        least = min(least or launch.scratch_bytes, launch.scratch_bytes)
        del program
    assert least is not None
    gradients = sum(parameter.nbytes for parameter in net.parameters())
    assert least + gradients <= taken + 32 * MIB  # a workspace of cuBLAS; without it, what is saved comes on top


@pytest.mark.parametrize("lower", ["aten", "inductor"])
def test_T35_gradients_that_others_lay_in_stay_what_they_are_where_somebody_has_them(lower: str) -> None:
    net, twin = deep(512)
    program: Any = treeplay.jit(sgd_step_of(net), lower=lower, on_refusal="raise")
    eager, held = sgd_step_of(twin), []
    for number in range(6):
        x = torch.randn(512, 512, device="cuda") - number
        torch.testing.assert_close(program(x), eager(x), rtol=1e-3, atol=1e-5)
        held += [(mine.grad, other.grad) for mine, other in zip(net.parameters(), twin.parameters(), strict=True)]
        for mine, theirs in held:
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)
    assert the_recording(program).launch.stage == "recorded"


def test_T2_scratch_goes_with_the_recordings() -> None:
    gc.collect()
    torch.cuda.synchronize()
    lane = lane_of(DEVICE)
    lane.address_space()  # what is done is closed by whoever comes next
    before = lane.scratch.nbytes, torch.cuda.memory_reserved()
    program, x = temporaries(4, 64)
    jitted = recorded(program, x)
    assert lane.scratch.nbytes > before[0]
    del jitted, program, x
    gc.collect()
    torch.cuda.synchronize()
    lane.close(lane.address_space())  # type: ignore[arg-type]
    torch.cuda.empty_cache()
    assert lane.scratch.nbytes == before[0] and torch.cuda.memory_reserved() <= before[1]


def test_a_result_that_is_copied_out_of_scratch_is_right() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 3 - 1
        return y[1:], y[:-1] * 2  # a view of what is larger: its memory is not its own

    recorded(lambda x: program(x)[0] - 1, torch.arange(1 << 16, device="cuda", dtype=torch.float32))
    jitted: Any = treeplay.jit(program, lower="aten", on_refusal="raise")
    for number in range(5):
        x = torch.arange(1 << 16, device="cuda", dtype=torch.float32) - number
        torch.testing.assert_close(jitted(x), program(x))
    assert the_recording(jitted).launch.stage == "recorded"


def test_copies_and_fills_write_to_results() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.zeros_like(x), x.clone(), x.t().contiguous() - 1, torch.full_like(x, 2)

    x = torch.randn(300, 200, device="cuda")
    jitted: Any = treeplay.jit(program, lower="aten", on_refusal="raise")
    for number in range(6):
        results = jitted(x - number)
        for found, expected in zip(results, program(x - number), strict=True):
            assert torch.equal(found, expected)
    assert the_recording(jitted).launch.stage == "recorded"


KEPT: list[torch.Tensor] = []


def test_T15_a_tensor_that_a_body_keeps_makes_it_lie_in_the_pool() -> None:
    KEPT.clear()

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 - 1
        if torch.cuda.is_current_stream_capturing():
            KEPT.append(y)
        return y - x

    jitted: Any = treeplay.jit(program, lower="capture")
    for number in range(5):
        x = torch.full((1 << 10,), float(number), device="cuda")
        assert torch.equal(jitted(x), x - 1)
    KEPT.clear()


def test_dropped_in_the_midst_of_work_that_uses_it() -> None:
    program, x = temporaries(6, 64)
    for number in range(4):
        jitted = recorded(program, x)
        results = [jitted(x + at) for at in range(20)]
        del jitted  # its last launch is on its way
        for at, result in enumerate(results):
            torch.testing.assert_close(result, program(x + at))
        assert number >= 0


def test_a_model_and_its_optimizer_while_scratch_grows() -> None:
    torch.manual_seed(0)
    small, large = (nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, 8)).cuda() for width in (64, 4096))

    def step_of(model: nn.Module) -> Any:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    import copy

    pairs = []
    for model in (small, large):
        pairs.append((treeplay.jit(step_of(copy.deepcopy(model)), lower="aten", on_refusal="raise"), step_of(model)))
    for _ in range(8):
        x, y = torch.randn(512, 64, device="cuda"), torch.randn(512, 8, device="cuda")
        for jitted, eager in pairs:
            torch.testing.assert_close(jitted(x, y), eager(x, y), rtol=1e-4, atol=1e-5)
    for jitted, _ in pairs:
        assert the_recording(jitted).launch.stage == "recorded"
