"""Rows G13, G14 and G+4: after any failure the process is as before, and can record again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest
import torch

from support.recordings import another_stream, record, reserved
from treeplay import CaptureFailed, UsageError
from treeplay.device.cuda import driver
from treeplay.device.cuda.capturing import capture
from treeplay.device.host import recorder
from treeplay.device.turns import turns
from treeplay.graphs import Graph, graph, is_current_stream_capturing
from treeplay.torch_seam import allocator


def usable(dev: str) -> bool:
    """Eager work, random numbers and a new recording are right, and nothing is left open."""
    x = torch.ones(1000, device=dev)
    eager = float((x + 1).sum()) == 2000 and bool((torch.rand(3, device=dev) < 1).all())
    recording, (y, r) = record(dev, lambda: (x * 3, torch.rand(3, device=dev)))
    recording.replay()
    first = r.clone()
    recording.replay()
    new_numbers = not torch.equal(first, r)
    return eager and new_numbers and float(y.sum()) == 3000 and not is_current_stream_capturing() and not turns.is_mine


def test_G13_an_exception_of_the_body_is_its_own(dev: str, x: torch.Tensor) -> None:
    recording = Graph(device=dev)
    with pytest.raises(KeyError, match="k"), graph(recording):
        x * 2
        raise KeyError("k")
    assert "failed" in repr(recording) and usable(dev)


@pytest.mark.parametrize("error", [KeyboardInterrupt, StopIteration, GeneratorExit, SystemExit])
def test_G13_unusual_exceptions_too(dev: str, x: torch.Tensor, error: type[BaseException]) -> None:
    with pytest.raises(error), graph(Graph(device=dev)):
        x * 2
        raise error
    assert usable(dev)


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "float": lambda x: float(x[0]),
    "nonzero": lambda x: x.nonzero(),
    "indexing": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x + 1),
    "tolist": lambda x: x.tolist(),
}


@pytest.mark.parametrize("op", READS)
def test_G3_G13_what_the_host_would_wait_for_is_refused_by_name(dev: str, x: torch.Tensor, op: str) -> None:
    with pytest.raises(CaptureFailed) as failure, graph(Graph(device=dev)):
        x * 2
        READS[op](x)
    assert failure.value.op == op and failure.value.where is not None
    assert failure.value.where.file == __file__
    assert usable(dev)


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "synchronize": lambda x: torch.cuda.synchronize(),
    "cpu": lambda x: (x * 2).cpu(),
    "copy_": lambda x: x.copy_(torch.zeros(1000)),
    "query": lambda x: torch.cuda.current_stream().record_event().query(),
}


@pytest.mark.parametrize("op", WAITS)
def test_G13_what_cuda_forbids_is_refused_by_name(cuda: str, op: str) -> None:
    x = torch.ones(1000, device=cuda)
    before = torch.cuda.current_stream()
    with pytest.raises(CaptureFailed) as failure, graph(Graph(device=cuda)):
        x * 2
        WAITS[op](x)
    assert failure.value.op == op and isinstance(failure.value.__cause__, RuntimeError)
    assert torch.cuda.current_stream() == before and usable(cuda)


def test_G13_a_refusal_that_the_body_swallows_still_breaks_the_capture(dev: str, x: torch.Tensor) -> None:
    def body() -> None:
        with contextlib.suppress(RuntimeError):
            x.sum().item()

    with pytest.raises(CaptureFailed):
        record(dev, body)
    assert usable(dev)


@pytest.mark.parametrize("failure", ["own", "item", "memory", "unjoined"])
def test_G13_the_memory_of_a_failed_capture_goes(cuda: str, failure: str) -> None:
    x = torch.ones(1 << 20, device=cuda)
    before = 0

    def body() -> None:
        y = [x + 1 for _ in range(20)]
        if failure == "own":
            raise KeyError("k")
        if failure == "item":
            y[0].sum().item()
        if failure == "memory":
            torch.zeros(2**40, device=cuda)
        side = another_stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y[0] + 1

    for _ in range(4):
        expected = {"own": KeyError, "memory": torch.OutOfMemoryError}.get(failure, CaptureFailed)
        try:
            record(cuda, body)
        except expected:
            pass
        else:
            pytest.fail("no error")
        assert usable(cuda)
        before = before or reserved()  # a spare workspace may have been made by the first
    assert reserved() == before


def test_G14_captures_do_not_nest(dev: str, x: torch.Tensor) -> None:
    outer = Graph(device=dev)
    with graph(outer):
        y = x + 1
        with pytest.raises(UsageError, match="do not nest"), graph(Graph(device=dev)):
            pass
        with pytest.raises(UsageError, match="do not nest"):
            Graph(device="cpu").capture_begin()
        y = y * 2
    outer.replay()
    assert float(y.sum()) == 4000 and usable(dev)


def test_G14_threads_take_turns(dev: str) -> None:
    wrong: list[object] = []

    def work(value: int) -> None:
        try:
            x = torch.full((1000,), float(value), device=dev)
            if dev == "cuda":
                torch.cuda.current_stream().synchronize()  # not the device: that would break the other's capture
            for _ in range(20):
                recording, y = record(dev, lambda: (x + 1) * 2, capture_error_mode="thread_local")
                recording.replay()
                if float(y.sum()) != (value + 1) * 2000:
                    wrong.append(float(y.sum()))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert wrong == [] and usable(dev)


STEPS = {
    "clear": (allocator, "clear_library_workspaces"),
    "stream": (torch.cuda, "set_stream"),
    "device": (torch.cuda, "set_device"),
    "end": (torch.cuda.CUDAGraph, "capture_end"),
    "reset": (torch.cuda.CUDAGraph, "reset"),
    "turn": (turns, "give_back"),
    "begin": (torch.cuda.CUDAGraph, "capture_begin"),
}


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_Gplus4_one_broken_step_of_the_teardown_leaves_the_others(
    cuda: str, monkeypatch: pytest.MonkeyPatch, step: str, raises: bool
) -> None:
    x, before = torch.ones(1000, device=cuda), torch.cuda.current_stream()
    owner, name = STEPS[step]
    real, error = getattr(owner, name), None

    def broken(*args: object, **kwargs: object) -> object:
        if is_broken:
            if name in ("set_stream", "set_device", "reset", "give_back"):  # done, and then it fails
                real(*args, **kwargs)
            raise OSError(step)
        return real(*args, **kwargs)

    is_broken = step == "begin"
    monkeypatch.setattr(owner, name, broken)
    try:
        with graph(Graph(device=cuda)):
            x + 1
            is_broken = True
            if raises:
                raise KeyError("k")
    except (KeyError, OSError, CaptureFailed) as caught:
        error = caught
    is_broken = False
    monkeypatch.undo()
    if raises and step != "begin":
        assert isinstance(error, KeyError)
        assert step == "end" or any(step in note for note in error.__notes__)
    else:
        assert isinstance(error, OSError) or step == "reset"  # which only failures need
    assert torch.cuda.current_stream() == before and usable(cuda)


HOST_STEPS = {
    "write": (recorder, "_put_back"),
    "reads": (recorder._HostReads, "__exit__"),
    "dispatch": (recorder.Recorder, "__exit__"),
    "turn": (turns, "give_back"),
}


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("step", HOST_STEPS)
def test_Gplus4_one_broken_step_of_the_teardown_on_the_cpu_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, step: str, raises: bool
) -> None:
    x = torch.ones(3)
    owner, name = HOST_STEPS[step]
    real = getattr(owner, name)

    def broken(*args: object, **kwargs: object) -> None:
        real(*args, **kwargs)
        raise OSError(step)

    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(KeyError if raises else OSError) as failure, graph(Graph(device="cpu")):
        x.add_(1)
        if raises:
            raise KeyError("k")
    monkeypatch.undo()
    assert not raises or any(step in note for note in failure.value.__notes__)
    assert x.tolist() == [1.0] * 3 and usable("cpu")


def test_Gplus4_steps_that_fail_one_after_the_other_are_all_told(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3)
    for step, (owner, name) in HOST_STEPS.items():
        real = getattr(owner, name)

        def broken(*args: object, real: Callable[..., None] = real, step: str = step) -> None:
            real(*args)
            raise OSError(step)

        monkeypatch.setattr(owner, name, broken)
    with pytest.raises(KeyError) as failure, graph(Graph(device="cpu")):
        x.add_(1)
        raise KeyError("k")
    monkeypatch.undo()
    assert all(any(step in note for note in failure.value.__notes__) for step in HOST_STEPS)
    assert x.tolist() == [1.0] * 3 and usable("cpu")


def test_a_broken_capture_is_ended_by_its_own_bookkeeping(cuda: str) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        driver.begin_capture(stream.cuda_stream)
        captured = driver.captured_graph(stream.cuda_stream)
        assert driver.is_capturing(stream.cuda_stream) and driver.count_nodes(captured) == 0
        driver.drop_capture(stream.cuda_stream)
    assert not driver.is_capturing(stream.cuda_stream) and driver.captured_graph(stream.cuda_stream) is None
    assert capture.allocations_elsewhere(0).keys() <= {1, 2, 3, 4, 5, 6, 7}
