"""Rows G5, G9, G10, G19 to G21: streams, devices and error modes of a CUDA capture."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import pytest
import torch

import treeplay
from support.interpreters import run_python
from support.recordings import another_stream, record, ten_times
from treeplay import ArgumentError, CaptureFailed, UsageError
from treeplay.graphs import Graph, graph
from treeplay.torch_seam import allocator

MODES = ("global", "thread_local", "relaxed")


def sleep_50_ms() -> None:
    torch.cuda._sleep(100_000_000)


def test_G5_nothing_begins_on_the_default_stream(cuda: str) -> None:
    recording = Graph(device=cuda)
    with pytest.raises(UsageError, match=r"default stream of cuda:0.*side stream"):
        recording.capture_begin()
    with pytest.raises(UsageError, match="default stream"):
        graph(recording, stream=torch.cuda.default_stream()).__enter__()
    x = torch.ones(3, device=cuda)
    with graph(recording):  # still empty, and usable
        y = x + 1
    recording.replay()
    assert y.tolist() == [2.0] * 3


def test_G5_a_capture_ends_on_the_stream_of_its_begin(cuda: str) -> None:
    x, recording = torch.ones(3, device=cuda), Graph(device=cuda)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    first.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(first):
        recording.capture_begin()
        y = x + 1
        with torch.cuda.stream(second), pytest.raises(UsageError, match=r"began on .* was ended on"):
            recording.capture_end()
        recording.capture_end()
    recording.replay()
    assert y.tolist() == [2.0] * 3


def forked(x: torch.Tensor, *, joins: bool) -> torch.Tensor:
    main, side = torch.cuda.current_stream(), another_stream()
    y = x * 2
    side.wait_stream(main)
    with torch.cuda.stream(side):
        z = y + 1
    y = y * 3
    if joins:
        main.wait_stream(side)
        return y - z
    return z


def test_G5_work_forked_and_joined_belongs_to_the_recording(cuda: str) -> None:
    x = torch.ones(1000, device=cuda)
    recording, y = record(cuda, lambda: forked(x, joins=True))
    x.fill_(5)
    recording.replay()
    assert float(y.sum()) == 1000 * (5 * 6 - 11)


def test_G5_an_unjoined_stream_breaks_the_capture(cuda: str) -> None:
    x = torch.ones(1000, device=cuda)
    with pytest.raises(CaptureFailed, match="unjoined"):
        record(cuda, lambda: forked(x, joins=False))
    recording, y = record(cuda, lambda: forked(x, joins=True))
    recording.replay()
    assert float(y.sum()) == 3000


@pytest.mark.gpu
def test_G5_work_on_another_device_is_refused_with_both_names(two_gpus: None) -> None:
    x = torch.ones(1000, device="cuda:1")
    with torch.cuda.device(0), pytest.raises(CaptureFailed, match=r"of cuda:0 .* of cuda:1"):
        record("cuda:0", lambda: x * 2)
    recording, y = record("cuda:1", lambda: x * 2)
    recording.replay()
    assert float(y.sum()) == 2000


@pytest.mark.gpu
def test_G9_a_recording_replays_on_its_own_device(two_gpus: None) -> None:
    x = torch.ones(1000, device="cuda:1")
    recording, y = record("cuda:1", lambda: ten_times(x))
    with torch.cuda.device(0):
        x.fill_(2)
        torch.cuda.synchronize(1)
        recording.replay()
        assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(1)
    assert float(y.sum()) == 12000


def test_G9_a_replay_does_not_wait(cuda: str) -> None:
    x = torch.ones(3, device=cuda)

    def body() -> torch.Tensor:
        sleep_50_ms()
        return x + 1

    recording, y = record(cuda, body)
    recording.replay()
    launches = []
    for _ in range(5):
        torch.cuda.synchronize()
        started = time.perf_counter()
        recording.replay()
        launches.append(time.perf_counter() - started)
        torch.cuda.synchronize()
        assert time.perf_counter() - started > 0.02  # the device was at work all the while
    assert min(launches) < 1e-3 and y.tolist() == [2.0] * 3


def test_G9_private_pools_may_run_at_the_same_time(cuda: str) -> None:
    inputs = [torch.full((1 << 16,), float(value), device=cuda) for value in (1, 2)]

    def body(x: torch.Tensor) -> torch.Tensor:
        for _ in range(50):
            x = x * 1.01 + 1
        return x

    recordings = [record(cuda, lambda x=x: body(x)) for x in inputs]
    streams, start = [torch.cuda.Stream(), torch.cuda.Stream()], torch.cuda.Event()
    for _ in range(20):
        start.record()
        for stream, (recording, _) in zip(streams, recordings, strict=True):
            with torch.cuda.stream(stream):
                start.wait()
                recording.replay()
        torch.cuda.synchronize()
        for x, (_, y) in zip(inputs, recordings, strict=True):
            assert torch.equal(y, body(x))


def test_G10_an_unknown_error_mode_changes_nothing(dev: str, x: torch.Tensor) -> None:
    recording = Graph(device=dev)
    for attempt in (
        recording.capture_begin,
        lambda capture_error_mode: graph(recording, None, None, capture_error_mode),
    ):
        with pytest.raises(ArgumentError, match="'global', 'thread_local', 'relaxed', found 'foo'"):
            attempt(capture_error_mode="foo")
    assert "empty" in repr(recording)


@pytest.mark.parametrize("mode", MODES)
def test_G10_every_mode_records(dev: str, x: torch.Tensor, mode: str) -> None:
    recording, y = record(dev, lambda: x + 1, capture_error_mode=mode)
    recording.replay()
    assert float(y.sum()) == 2000


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_G10_other_threads_may_allocate_meanwhile(cuda: str, mode: str) -> None:
    x, done, found = torch.ones(1000, device=cuda), threading.Event(), []

    def allocate() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append(torch.empty(1 << 28, device=cuda))
        done.set()

    def body() -> torch.Tensor:
        y = x + 1
        threading.Thread(target=allocate).start()
        assert done.wait(60)
        return y * 2

    recording, y = record(cuda, body, capture_error_mode=mode)
    recording.replay()
    assert float(y.sum()) == 4000 and len(found) == 1


def test_G10_the_low_level_default_is_global_and_our_own_recordings_are_thread_local(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes, real = [], torch.cuda.CUDAGraph.capture_begin

    def begin(self: torch.cuda.CUDAGraph, *args: Any, **kwargs: Any) -> None:
        modes.append(kwargs["capture_error_mode"])
        real(self, *args, **kwargs)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", begin)
    x = torch.ones(3, device=cuda)
    record(cuda, lambda: x + 1)
    assert modes == ["global"]
    program = treeplay.jit(lambda x: x * 2 - 1, lower="aten")
    for _ in range(4):
        assert program(x).tolist() == [1.0] * 3
    assert program.statistics().replays > 0 and set(modes[1:]) == {"thread_local"}


FROM_ITS_OWN_THREAD = """
import torch, treeplay
from treeplay.graphs import Graph, graph
x, event = torch.ones(1000, device="cuda"), torch.cuda.Event()
event.record()
g = Graph()
try:
    with graph(g, capture_error_mode="MODE"):
        y = x + 1
        try:
            event.query()  # unsafe while a capture is under way
        except RuntimeError:
            print("refused")
        y = y * 2
    g.replay()
    print(y.sum().item())
except treeplay.CaptureFailed as error:
    print("failed")
"""


@pytest.mark.parametrize(("mode", "printed"), [("thread_local", "refused failed"), ("relaxed", "4000.0")])
def test_G10_only_in_relaxed_mode_the_capturing_thread_may_do_the_unsafe(cuda: str, mode: str, printed: str) -> None:
    assert " ".join(run_python(FROM_ITS_OWN_THREAD.replace("MODE", mode))[0].split()) == printed


FROM_ANOTHER_THREAD = """
import threading, torch, treeplay
from treeplay.graphs import Graph, graph
x, done, event = torch.ones(1000, device="cuda"), threading.Event(), torch.cuda.Event()
event.record()
def ask():
    try:
        event.query()  # unsafe while a capture is under way
    except RuntimeError:
        print("refused")
    done.set()
g = Graph()
try:
    with graph(g, capture_error_mode="MODE"):
        y = x + 1
        threading.Thread(target=ask).start()
        done.wait(60)
        y = y * 2
    g.replay()
    print(y.sum().item())
except treeplay.CaptureFailed as error:
    print("failed")
g = Graph()
with graph(g):
    z = x * 3
g.replay()
print(z.sum().item())
"""


OTHERS = [("global", "refused failed 3000.0"), ("thread_local", "4000.0 3000.0"), ("relaxed", "4000.0 3000.0")]


@pytest.mark.parametrize(("mode", "printed"), OTHERS)
def test_G10_only_in_global_mode_another_thread_breaks_the_capture(cuda: str, mode: str, printed: str) -> None:
    assert " ".join(run_python(FROM_ANOTHER_THREAD.replace("MODE", mode))[0].split()) == printed


def spied(monkeypatch: pytest.MonkeyPatch, order: list[str]) -> None:
    def spy(owner: object, name: str, label: str) -> None:
        real = getattr(owner, name)

        def call(*args: object, **kwargs: object) -> object:
            order.append(label)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    spy(torch.cuda, "synchronize", "wait")
    spy(gc, "collect", "collect")
    spy(torch.cuda, "empty_cache", "device memory")
    spy(allocator, "give_back_pinned_memory", "pinned memory")
    spy(torch.cuda, "set_stream", "stream")
    spy(torch.cuda.CUDAGraph, "capture_begin", "begin")
    spy(torch.cuda.CUDAGraph, "capture_end", "end")


@pytest.mark.parametrize("collects", [False, True])
def test_G19_G20_steps_in_and_out_are_taken_in_order(
    cuda: str, monkeypatch: pytest.MonkeyPatch, collects: bool
) -> None:
    x, order, recording = torch.ones(3, device=cuda), [], Graph(device=cuda)
    spied(monkeypatch, order)
    with graph(recording, collect_garbage=collects):
        x + 1
    collect = ["collect"] if collects else []
    assert order == ["wait", *collect, "device memory", "pinned memory", "stream", "begin", "end", "stream"]


@pytest.mark.parametrize("collects", [False, True])
def test_G19_garbage_is_collected_on_request_only(dev: str, x: torch.Tensor, collects: bool) -> None:
    class Holder:
        pass

    gc.collect()
    gc.disable()
    try:
        holder = Holder()
        holder.itself, holder.tensor = holder, torch.ones(3, device=dev)
        alive = weakref.ref(holder)
        del holder
        with graph(Graph(device=dev), collect_garbage=collects):
            assert (alive() is None) == collects
            x + 1
    finally:
        gc.enable()


def test_G20_the_stream_is_restored_when_ending_fails(cuda: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, before, recording = torch.ones(3, device=cuda), torch.cuda.current_stream(), Graph(device=cuda)

    def fails(self: object) -> None:
        raise ValueError("cannot end")

    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda.CUDAGraph, "capture_end", fails)
        with pytest.raises(ValueError, match="cannot end"), graph(recording):
            x + 1
    assert torch.cuda.current_stream() == before and not torch.cuda.is_current_stream_capturing()
    again, y = record(cuda, lambda: x + 1)
    again.replay()
    assert y.tolist() == [2.0] * 3


def test_G20_exceptions_are_not_swallowed(dev: str) -> None:
    context = graph(Graph(device=dev))
    context.__enter__()
    error = KeyError("k")
    with pytest.raises(KeyError) as raised:
        assert context.__exit__(KeyError, error, None) is None
        raise error
    assert raised.value is error


def test_G21_one_side_stream_serves_all_captures(cuda: str) -> None:
    streams = [record(cuda, lambda: (torch.ones(3, device=cuda), torch.cuda.current_stream())[1])[1] for _ in range(2)]
    assert streams[0] == streams[1] != torch.cuda.default_stream()


def test_G21_an_explicit_stream_is_used_as_given(cuda: str) -> None:
    mine = torch.cuda.Stream()
    _, seen = record(cuda, lambda: (torch.ones(3, device=cuda), torch.cuda.current_stream())[1], stream=mine)
    assert seen == mine


def test_G21_a_capture_comes_after_the_work_queued_before(cuda: str) -> None:
    x = torch.zeros(1000, device=cuda)
    mine = torch.cuda.Stream()
    with torch.cuda.stream(mine):
        mine.wait_stream(torch.cuda.default_stream())
        sleep_50_ms()
        x.fill_(7)
        recording, y = record(cuda, lambda: x + 1)
        recording.replay()
        assert float(y.sum()) == 8000


@pytest.mark.gpu
def test_G21_the_side_stream_is_of_the_captured_device(two_gpus: None) -> None:
    _, seen = record("cuda:1", lambda: (torch.ones(3, device="cuda:1"), torch.cuda.current_stream())[1])
    assert seen.device.index == 1
