"""Opaque programs on a GPU: Triton kernels, compiled models and custom operators are captured as they are."""

from __future__ import annotations

import copy
import gc
import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from support import training
from support.opaque import Captured, call_of, inputs_of, recorded_run, rehearsed
from treeplay.trace.opaque.program import prepare

pytestmark = pytest.mark.gpu

try:
    import triton
    from triton import language as tl
except ImportError:
    triton = None
else:

    @triton.jit
    def _damp(x, out, n, by, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) * 0.5 - by, mask=at < n)


def damp(x: torch.Tensor, by: float) -> torch.Tensor:
    out = torch.empty_like(x)
    _damp[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), by, BLOCK=128)
    return out


def damp_(x: torch.Tensor, by: float) -> None:
    _damp[(triton.cdiv(x.numel(), 128),)](x, x, x.numel(), by, BLOCK=128)


library = torch.library.Library("treeplay_test_gpu_opaque", "DEF")
library.define("damp(Tensor x, float by) -> Tensor")
library.define("damp_(Tensor(a!) x, float by) -> ()")
library.impl("damp", damp, "CUDA")
library.impl("damp_", damp_, "CUDA")
ops: Any = torch.ops.treeplay_test_gpu_opaque


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (64, 16)), device="cuda")


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)).cuda()


@pytest.mark.parametrize("kernel", [damp, lambda x, by: ops.damp(x, by)])
def test_a_triton_kernel_is_captured(kernel: Any) -> None:
    def use(x: torch.Tensor) -> torch.Tensor:
        return kernel(x, 0.25) * 3 - x

    captured, kept = Captured(use), []
    for _ in range(6):
        value = x()
        kept.append((captured(value), damp(value, 0.25) * 3 - value))
    assert all(torch.equal(found, expected) for found, expected in kept)
    assert captured.recordings[0].replays == 5
    assert captured.recordings[0].recorded.facts().stage == "recorded"


def test_a_kernel_that_writes_to_its_argument() -> None:
    state = torch.zeros(64, 16, device="cuda")

    def use(x: torch.Tensor) -> torch.Tensor:
        ops.damp_(x, 0.5)
        damp_(state, -1.0)
        return state - x

    captured, twin = Captured(use), torch.zeros(64, 16, device="cuda")
    for _ in range(6):
        mine = x()
        theirs = mine.clone()
        found = captured(mine)
        damp_(theirs, 0.5)
        damp_(twin, -1.0)
        assert torch.equal(found, twin - theirs) and torch.equal(mine, theirs) and torch.equal(state, twin)


def test_a_compiled_model_is_captured() -> None:
    model = net()
    compiled = torch.compile(model)
    captured, kept = Captured(lambda x: compiled(x), plain_calls=2), []
    with torch.no_grad():
        for _ in range(6):
            value = x()
            kept.append((captured(value), model(value)))
        for found, expected in kept:
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)
        with torch.no_grad():
            model[0].weight.mul_(0.5)
        value = x()
        torch.testing.assert_close(captured(value), model(value), rtol=2e-3, atol=2e-3)
    assert len(captured.recordings) == 1 and captured.recordings[0].replays == 5


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_whole_step_of_a_compiled_model_and_a_fused_optimizer(is_compiled: bool, set_to_none: bool) -> None:
    def make(model: Any, optimizer: Any) -> Any:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad(set_to_none=set_to_none)
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    model, twin = net(), net()
    sides = [torch.optim.AdamW(m.parameters(), lr=0.01, fused=True, capturable=True) for m in (model, twin)]
    step = Captured(make(torch.compile(model) if is_compiled else model, sides[0]), plain_calls=2)
    eager = make(twin, sides[1])
    for _ in range(8):
        args = x(64, 16), x(64, 8)
        torch.testing.assert_close(step(*args), eager(*args), rtol=2e-3, atol=2e-3)
        for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=5e-3, atol=5e-3)
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=2e-2, atol=2e-2)
            assert torch.equal(sides[0].state[mine]["step"], sides[1].state[theirs]["step"])
    [recording] = step.recordings
    assert recording.replays == 6
    facts = recording.recorded.facts()
    assert facts.stage == "recorded", facts


def test_a_loss_that_keeps_its_graph_may_be_returned_after_backward() -> None:
    model, twin = net(), net()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin)]

    def make(model: Any, optimizer: Any) -> Any:
        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    step, eager = Captured(make(model, optimizers[0])), make(twin, optimizers[1])
    for _ in range(5):
        value = x()
        torch.testing.assert_close(step(value), eager(value).detach(), check_device=True, rtol=1e-4, atol=1e-5)


def test_dropout_is_drawn_anew_on_each_replay() -> None:
    captured = Captured(lambda x: F.dropout(x, 0.5))
    value = torch.ones(64, 64, device="cuda")
    found = [captured(value) for _ in range(5)]
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(found))


def test_autocast_around_the_call_holds_inside_of_a_capture() -> None:
    model = net()
    captured = Captured(lambda x: model(x))
    with torch.no_grad(), torch.autocast("cuda", torch.float16):
        for _ in range(4):
            value = x()
            found, expected = captured(value), model(value)
            assert found.dtype is torch.float16
            torch.testing.assert_close(found, expected)


def test_a_step_count_on_the_cpu_is_refused() -> None:
    count = torch.zeros(())

    def use(x: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return x * 2

    prepared = prepare(use, call_of(x()))
    with pytest.raises(treeplay.Refusal, match="does not follow"):
        rehearsed(prepared)
    assert count == 0


def test_a_number_on_the_cpu_is_watched() -> None:
    factor = torch.tensor(2.0)
    captured = Captured(lambda x: x * factor)
    for call in range(6):
        factor.fill_(2.0 if call < 4 else 3.0)
        value = x()
        assert torch.equal(captured(value), value * factor)
    assert len(captured.recordings) == 2


def test_random_numbers_of_the_cpu_are_refused() -> None:
    def use(x: torch.Tensor) -> torch.Tensor:
        return x * float(torch.rand(()))

    prepared = prepare(use, call_of(x()))
    state = torch.get_rng_state()
    with pytest.raises(treeplay.Refusal, match="draws them on the CPU"):
        rehearsed(prepared)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_argument_on_the_cpu_is_refused() -> None:
    model = net()
    with pytest.raises(treeplay.Refusal, match="given to a program on cuda"):
        prepare(lambda x: model(x.cuda()), call_of(torch.randn(4, 16)))


def test_a_host_read_breaks_the_capture_and_leaves_everything_usable() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = training(model, optimizer)

    def reading(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = step(x, y)
        return loss.item()

    step(x(64, 16), x(64, 8))
    grads = [param.grad for param in model.parameters()]
    prepared = prepare(reading, call_of(x(64, 16), x(64, 8)))
    with pytest.raises(treeplay.TreeplayError):
        rehearsed(prepared)
    assert all(param.grad is grad for param, grad in zip(model.parameters(), grads, strict=True))
    assert torch.isfinite(step(x(64, 16), x(64, 8)))


def test_decoys_in_several_captures_give_one_signature() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True, capturable=True)
    step = training(model, optimizer)
    step(x(64, 16), x(64, 8))
    prepared = prepare(step, call_of(x(64, 16), x(64, 8)))
    before = copy.deepcopy(model.state_dict())
    program = rehearsed(prepared)
    signature, inputs = program.signature, inputs_of(program, prepared)
    assert sum(".grad" in str(signature.inputs[at]) for at in program.movable) == 4
    for _ in range(2):
        recorded_run(program, [torch.empty_like(x) if at in program.movable else x for at, x in enumerate(inputs)])
    assert len(program.kept) == len(signature.inputs) and signature.outputs == 5 and len(signature.writes) == 4
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))


def test_state_that_moved_is_captured_anew() -> None:
    model = net()
    captured = Captured(lambda x: damp(model(x), 0.5))
    with torch.no_grad():
        for call in range(8):
            if call in (4, 6):
                model[0].weight.data = model[0].weight.data.clone() * 2
            value = x()
            torch.testing.assert_close(captured(value), damp(model(value), 0.5))
    assert len(captured.recordings) == 1


def test_arguments_at_any_alignment() -> None:
    """Triton compiled its kernel for addresses that are multiples of 16."""
    captured = Captured(lambda x: damp(x, 0.5) - x)
    room = torch.randn(64 * 16 + 8, device="cuda")
    for call in range(10):
        shift = (0, 0, 0, 1, 4, 2, 0, 3, 8, 5)[call]
        value = room[shift : shift + 64 * 16].view(64, 16)
        assert torch.equal(captured(value), value * 0.5 - 0.5 - value), shift


def test_kept_results_and_gradients_stay_what_they_were() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    captured, kept = Captured(training(model, optimizer)), []
    for _ in range(8):
        loss = captured(x(64, 16), x(64, 8))
        found = [loss, *(param.grad for param in model.parameters())]
        kept.append((found, [tensor.clone() for tensor in found]))
    for found, copies in kept:
        assert all(map(torch.equal, found, copies))


def test_a_program_may_collect_garbage_that_holds_graphs() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself, self.graph = self, treeplay.jit(net().requires_grad_(False), lower="aten")
            for _ in range(3):
                self.graph(x())

    module = net().requires_grad_(False)

    def program(data: torch.Tensor) -> torch.Tensor:
        out = module(data) * 3
        gc.collect()
        return out - data.sum()

    jitted, data = treeplay.jit(program, lower="capture", on_refusal="raise"), x()
    gc.disable()
    try:
        for _ in range(4):
            Cycle()
            torch.testing.assert_close(jitted(data), program(data))
    finally:
        gc.enable()
    assert jitted.statistics().keys[0].recordings[0].launch.stage == "recorded"
