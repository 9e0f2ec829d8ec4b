"""What happens when a recording on a GPU cannot be made: the call runs once, the reason is told, and all goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from treeplay.device.cuda.capturing.attempt import attempt_capture
from treeplay.device.cuda.lane import lane_of
from treeplay.device.protocol import Work
from treeplay.errors import CaptureFailed, InternalError
from treeplay.observe import counters, internal_errors
from treeplay.values.refusal import Reason

pytestmark = pytest.mark.gpu


def counting() -> tuple[Any, torch.Tensor]:
    """A program whose effects show how often it ran: n becomes 3 n + 1."""
    count = torch.ones(4, device="cuda")

    def program(x: torch.Tensor) -> torch.Tensor:
        count.mul_(3).add_(1)
        return x * count

    return treeplay.jit(program, on_refusal="raise"), count


def expected(calls: int) -> float:
    value = 1.0
    for _ in range(calls):
        value = value * 3 + 1
    return value


def launch_of(program: Any) -> Any:
    return program.statistics().keys[0].recordings[-1].launch


@pytest.mark.parametrize(
    "error",
    [
        CaptureFailed(Reason(op="some_kernel", why="cannot be captured", advice="leave it out")),
        torch.OutOfMemoryError("CUDA out of memory"),
        InternalError("a broken rule of ours"),
        RuntimeError("an error that nobody expected"),
        KeyError("an error that nobody expected"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_capture_that_fails_leaves_a_program_that_runs_unrecorded(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("treeplay.device.cuda.recording.capture_work", fail)
    program, count = counting()
    with pytest.warns(UserWarning, match="unrecorded|as it is"):
        for calls in range(1, 7):
            x = torch.full((4,), float(calls), device="cuda")
            assert program(x).tolist() == [calls * expected(calls)] * 4
            assert count.tolist() == [expected(calls)] * 4
    launch = launch_of(program)
    assert launch.stage == "not recorded" and str(error).splitlines()[0] in launch.why
    assert str(error).splitlines()[0] in program.explain()
    is_ours = not isinstance(error, (CaptureFailed, torch.OutOfMemoryError))
    assert sum(counters["internal errors"].values()) == is_ours == len(internal_errors())


@pytest.fixture
def little_memory() -> Iterator[Any]:
    """Call it to leave hardly more memory than is in use."""
    total = torch.cuda.get_device_properties(0).total_memory

    def limit(room: int) -> float:
        torch.cuda.empty_cache()
        fraction = (torch.cuda.memory_reserved() + room) / total
        torch.cuda.set_per_process_memory_fraction(fraction)
        return fraction

    yield limit
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_step_whose_tensors_fill_the_memory_is_recorded(little_memory: Any) -> None:
    program: Any = treeplay.jit(lambda x: x.sum() * 2 - 1, on_refusal="raise")
    x = torch.ones(2**26, device="cuda")
    wanted = float(x.sum() * 2 - 1)
    for _ in range(2):
        assert float(program(x)) == wanted
    little_memory(2**24)  # a sixteenth of the tensor
    for _ in range(3):
        assert float(program(x)) == wanted
    assert launch_of(program).stage == "recorded"


def test_T7_addresses_of_a_capture_do_not_count_for_a_limit(little_memory: Any) -> None:
    """Neither do those of gradients, which a launch makes where the last ones lay."""
    net = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(6))).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    program: Any = treeplay.jit(step, lower="inductor", on_refusal="raise")
    for number in range(2):
        program(torch.full((16, 2048), number - 1.5, device="cuda"))
    limit = little_memory(48 << 20)  # half of the gradients
    for number in range(2, 6):
        program(torch.full((16, 2048), number - 1.5, device="cuda"))
    assert launch_of(program).stage == "recorded", launch_of(program).why
    assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(limit)


def test_out_of_memory_while_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    program: Any = treeplay.jit(lambda x: (x * 2 - 1).sum(), lower="aten", on_refusal="raise")
    x = torch.ones(2**20, device="cuda")
    wanted = float((x * 2 - 1).sum())
    for _ in range(2):
        assert float(program(x)) == wanted

    def nothing_left(*_: Any) -> int:
        raise torch.OutOfMemoryError("told to")

    with monkeypatch.context() as patched, pytest.warns(UserWarning, match="unrecorded"):
        patched.setattr("treeplay.device.cuda.memory.mapping.make_memory", nothing_left)
        assert float(program(x)) == wanted
    assert float(program(x)) == wanted
    assert "told to" in launch_of(program).why
    program.reset()
    for _ in range(4):
        assert float(program(x)) == wanted
    assert launch_of(program).stage == "recorded"


def test_a_host_read_in_an_opaque_program_is_refused_with_its_line() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    jitted: Any = treeplay.jit(program, lower="capture", on_refusal="raise")
    x = torch.ones(3, device="cuda")
    jitted(x)
    with pytest.raises(treeplay.Refusal) as caught:
        jitted(x)
    assert caught.value.reason.where is not None and caught.value.reason.where.file == __file__
    assert (x + 1).tolist() == [2.0] * 3


def test_an_exception_of_an_opaque_program_is_its_own() -> None:
    fails = [False]

    def program(x: torch.Tensor) -> torch.Tensor:
        if fails[0]:
            raise KeyError("mine")
        return x * 3 - 1

    jitted: Any = treeplay.jit(program, lower="capture", on_refusal="raise")
    x = torch.ones(3, device="cuda")
    jitted(x)
    fails[0] = True
    for _ in range(3):
        with pytest.raises(KeyError, match="mine"):
            jitted(x)
    fails[0] = False
    for _ in range(4):
        assert jitted(x).tolist() == [2.0] * 3


def test_a_side_stream_inside_an_opaque_program() -> None:
    side = torch.cuda.Stream()

    def program(x: torch.Tensor) -> torch.Tensor:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            y = x * 3
        z = x - 1
        main.wait_stream(side)
        return y * z

    jitted: Any = treeplay.jit(program, lower="capture")
    for number in range(6):
        x = torch.full((1000,), float(number), device="cuda")
        assert torch.equal(jitted(x), x * 3 * (x - 1))


def test_the_same_program_from_two_threads() -> None:
    model = nn.Linear(64, 64).cuda().eval()
    program: Any = treeplay.jit(model, on_refusal="raise")
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            generator = torch.Generator("cuda").manual_seed(seed)
            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(30):
                    x = torch.randn(8, 64, device="cuda", generator=generator)
                    torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-4)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_random_numbers_may_be_drawn_elsewhere_while_a_program_is_captured() -> None:
    drawn: list[torch.Tensor] = []

    def draw() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            drawn.append(torch.rand(3, device="cuda"))

    def body(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()
        return [tensors[0] * 3 - 1]

    def run(tensors: list[torch.Tensor], numbers: Any) -> list[torch.Tensor]:
        return body(tensors)

    x = torch.ones(3, device="cuda")
    torch.manual_seed(5)
    attempt_capture(Work("work", run, body, draws=False), [x], lane_of(x.device)).drop()
    torch.manual_seed(5)
    assert torch.equal(drawn[0], torch.rand(3, device="cuda"))
