"""What a program does to objects that hold no Python objects, or that give items away, happens once in each call, as in eager.

A trace runs the program's Python as well: it counts up, takes an item or writes a line a second time, unless that is put back
or refused before it runs.
"""

from __future__ import annotations

import array
import configparser
import contextlib
import contextvars
import ctypes
import functools
import io
import multiprocessing
import queue
import sched
import socket
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from support import jit

Step = Callable[[torch.Tensor], torch.Tensor]
MAKERS: dict[str, Callable[[], Step]] = {}
CALLS = 7


def case(make: Callable[[], Step]) -> Callable[[], Step]:
    MAKERS[make.__name__] = make
    return make


def full(kind: Any) -> Any:
    made = kind()
    for item in range(50):
        made.put(item)
    return made


def taking(take: Callable[[], Any]) -> Step:
    return lambda x: x * take() - 1


@case
def queue_get() -> Step:
    items = full(queue.Queue)
    return lambda x: x * items.get() - 1


@case
def bound_get() -> Step:
    return taking(full(queue.LifoQueue).get)


@case
def simple_queue_get() -> Step:
    items = full(queue.SimpleQueue)
    return lambda x: x * items.get_nowait() - 1


@case
def bound_simple_get() -> Step:
    return taking(full(queue.SimpleQueue).get)


@case
def queue_of_an_object() -> Step:
    class Worker:
        def __init__(self) -> None:
            self.queue = full(queue.PriorityQueue)

        def step(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.queue.get(timeout=1) - 1

    return Worker().step


@case
def file_of_lines() -> Step:
    lines = tempfile.TemporaryFile("w+")  # noqa: SIM115
    lines.writelines(f"{item}\n" for item in range(60))
    lines.seek(0)
    return lambda x: x * float(lines.readline()) - 1


@case
def file_of_bytes() -> Step:
    data = tempfile.TemporaryFile()  # noqa: SIM115
    data.write(bytes(range(60)))
    data.seek(0)
    return taking(lambda: data.read(1)[0])


@case
def end_of_a_pipe() -> Step:
    here, there = multiprocessing.Pipe()
    for item in range(60):
        there.send(item)
    return lambda x: x * here.recv() - 1


@case
def end_of_a_socket() -> Step:
    here, there = socket.socketpair()
    there.send(bytes(range(60)))
    return lambda x: x * here.recv(1)[0] - (1 if there else 2)


@case
def queue_put() -> Step:
    items = queue.SimpleQueue()

    def step(x: torch.Tensor) -> torch.Tensor:
        items.put(1)
        return x * items.qsize() - 1

    return step


@case
def numpy_array() -> Step:
    counts = np.zeros(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        counts[1] += 1
        return x * float(counts[1]) - 1

    return step


@case
def numpy_array_that_is_not_read() -> Step:
    counts = np.zeros(3, dtype=int)

    def step(x: torch.Tensor) -> torch.Tensor:
        counts[1:] += 1
        return x * 2 - 1

    step.state = lambda: counts.tolist()  # type: ignore[attr-defined]
    return step


@case
def numpy_objects() -> Step:
    kept = np.array([0, None], dtype=object)

    def step(x: torch.Tensor) -> torch.Tensor:
        kept[0] += 1
        return x * kept[0] - 1

    return step


@case
def masked_array() -> Step:
    counts = np.ma.masked_array([0.0, 5.0], mask=[False, True])

    def step(x: torch.Tensor) -> torch.Tensor:
        counts[0] += 1
        return x * float(counts[0]) - 1

    return step


@case
def typed_array() -> Step:
    counts = array.array("d", [0.0])

    def step(x: torch.Tensor) -> torch.Tensor:
        counts[0] += 1
        counts.append(0)
        return x * (counts[0] + len(counts)) - 1

    return step


@case
def bytes_that_change() -> Step:
    counts = bytearray(4)

    def step(x: torch.Tensor) -> torch.Tensor:
        counts[2] += 1
        return x * counts[2] - 1

    return step


@case
def view_of_memory() -> Step:
    counts = memoryview(bytearray(4)).cast("i")

    def step(x: torch.Tensor) -> torch.Tensor:
        counts[0] += 1
        return x * counts[0] - 1

    return step


@case
def number_of_c() -> Step:
    count = ctypes.c_int(0)

    def step(x: torch.Tensor) -> torch.Tensor:
        count.value += 1
        return x * count.value - 1

    return step


@case
def shared_value() -> Step:
    count = multiprocessing.Value("i", 0)

    def step(x: torch.Tensor) -> torch.Tensor:
        count.value += 1
        return x * count.value - 1

    return step


@case
def lines_read() -> Step:
    lines = io.StringIO("".join(f"{item}\n" for item in range(60)))
    return lambda x: x * float(lines.readline()) - 1


@case
def bytes_read() -> Step:
    data = io.BytesIO(bytes(range(60)))
    return lambda x: x * data.read(1)[0] - 1


@case
def text_written() -> Step:
    text = io.StringIO()

    def step(x: torch.Tensor) -> torch.Tensor:
        text.write("line\n")
        return x * 2 - 1

    step.state = text.getvalue  # type: ignore[attr-defined]
    return step


@case
def context_variable() -> Step:
    count = contextvars.ContextVar("count", default=0)
    count.set(2)

    def step(x: torch.Tensor) -> torch.Tensor:
        count.set(count.get() + 1)
        return x * count.get() - 1

    return step


@case
def of_this_thread() -> Step:
    kept = threading.local()
    kept.count, kept.seen = 0, [0]

    def step(x: torch.Tensor) -> torch.Tensor:
        kept.count += 1
        kept.seen.append(1)
        return x * (kept.count + len(kept.seen)) - 1

    return step


@case
def of_this_thread_in_a_class_of_its_own() -> Step:
    class Counted(threading.local):
        seen: list[int] = []

        def __init__(self) -> None:
            self.count = 0

        def bump(self) -> int:
            self.count += 1
            self.seen.append(1)
            return 10 * self.count + len(self.seen)

    return taking(Counted().bump)


@case
def attribute_of_a_partial() -> Step:
    bound = functools.partial(int)
    bound.count = 0  # type: ignore[attr-defined]

    def step(x: torch.Tensor) -> torch.Tensor:
        bound.count += 1  # type: ignore[attr-defined]
        return x * bound.count - 1  # type: ignore[attr-defined]

    return step


@case
def cached_list() -> Step:
    @functools.cache
    def made() -> list[int]:
        return [0]

    def step(x: torch.Tensor) -> torch.Tensor:
        made()[0] += 1
        return x * made()[0] - 1

    return step


@case
def weak_keys() -> Step:
    class Key:
        pass

    key, counts = Key(), weakref.WeakKeyDictionary()
    counts[key] = 0

    def step(x: torch.Tensor) -> torch.Tensor:
        counts[key] += 1
        return x * counts[key] - 1

    return step


@case
def exits() -> Step:
    stack = contextlib.ExitStack()

    def step(x: torch.Tensor) -> torch.Tensor:
        stack.callback(int)
        return x * len(stack._exit_callbacks) - 1

    return step


@case
def configuration() -> Step:
    config = configparser.ConfigParser()
    config["run"] = {"count": "0"}

    def step(x: torch.Tensor) -> torch.Tensor:
        config["run"]["count"] = str(int(config["run"]["count"]) + 1)
        return x * int(config["run"]["count"]) - 1

    return step


@case
def scheduled() -> Step:
    events = sched.scheduler(lambda: 0.0)

    def step(x: torch.Tensor) -> torch.Tensor:
        events.enter(1, 1, int)
        return x * len(events.queue) - 1

    return step


@case
def text_with_a_write_of_its_own() -> Step:
    class Counted(io.StringIO):
        written = 0

        def write(self, text: str) -> int:
            Counted.written += 1
            return super().write(text)

    text = Counted()

    def step(x: torch.Tensor) -> torch.Tensor:
        text.write("line\n")
        return x * len(text.getvalue()) - 1

    step.state = lambda: Counted.written  # type: ignore[attr-defined]
    return step


@case
def bytes_that_somebody_views() -> Step:
    data = io.BytesIO(bytes(4))
    view = data.getbuffer()

    def step(x: torch.Tensor) -> torch.Tensor:
        view[1] += 1
        return x * data.getvalue()[1] - 1

    return step


@case
def records_with_objects() -> Step:
    table = np.array([(1, None)], dtype=[("count", int), ("what", object)])
    return lambda x: x * int(table["count"][0]) - 1


@case
def functions_and_pointers_of_c() -> Step:
    number = ctypes.c_int(3)
    pointer, function = ctypes.pointer(number), ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 2)

    def step(x: torch.Tensor) -> torch.Tensor:
        pointer.contents.value += 1
        return x * (function() + number.value) - 1

    return step


@pytest.mark.filterwarnings("ignore:treeplay runs")
@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("lower", ["aten", "capture"])
@pytest.mark.parametrize("name", MAKERS)
def test_an_effect_happens_once_in_each_call(name: str, lower: str, needs_gradient: bool) -> None:
    step, other = MAKERS[name](), MAKERS[name]()
    jitted = jit(step, lower=lower, on_refusal="eager")
    x = (torch.arange(3.0) + 1).requires_grad_(needs_gradient)
    found, expected = ([call(x).detach() for _ in range(CALLS)] for call in (jitted, other))
    assert all(map(torch.equal, found, expected))
    assert getattr(step, "state", int)() == getattr(other, "state", int)()


@pytest.mark.filterwarnings("ignore:treeplay runs")
def test_an_array_that_is_only_read_is_recorded_and_one_of_a_tensor_may_be_written() -> None:
    scale, memory = np.full(2, 3.0), np.zeros(3, dtype=np.float32)
    state = torch.from_numpy(memory)

    def step(x: torch.Tensor) -> torch.Tensor:
        state.add_(x)
        return state * float(scale[0]) - memory.size

    recorded = jit(step)
    for number in range(1, 6):
        assert torch.equal(recorded(torch.ones(3)), torch.full((3,), number * 3.0) - 3)
    assert recorded.statistics().replays and memory.tolist() == [5.0] * 3


def test_what_another_thread_writes_while_a_program_that_only_reads_is_traced_stays() -> None:
    memory, scale, first = np.zeros(3), 2.0, threading.Lock()
    began, written = threading.Event(), threading.Event()

    def write() -> None:
        began.wait(60)
        memory[:] = 7
        written.set()

    def step(x: torch.Tensor) -> torch.Tensor:
        if not first.acquire(blocking=False):  # as in the second run: nothing puts a lock back
            began.set()
            written.wait(60)
        return x * scale - memory.size

    writer = threading.Thread(target=write)
    writer.start()
    recorded = jit(step, on_refusal="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            assert torch.equal(recorded(torch.ones(3)), torch.full((3,), -1.0))
    writer.join(60)
    assert written.is_set() and memory.tolist() == [7.0] * 3


class Logged(torch.Tensor):
    """A tensor whose class notes what is asked of it."""

    log: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.log.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.filterwarnings("ignore:treeplay runs")
@pytest.mark.parametrize("where", ["an argument", "in an argument", "unused", "state"])
def test_a_class_of_tensors_is_asked_as_often_as_in_eager(where: str) -> None:
    def given() -> Any:
        return torch.arange(3.0).as_subclass(Logged)

    kept = given()

    def step(x: Any, y: Any) -> Any:
        if where == "unused":
            return x * 2 - 1
        return (x - y["of it"] if where == "in an argument" else kept - x if where == "state" else x - y) * 2

    def arguments() -> tuple[Any, Any]:
        x = torch.arange(3.0) - 5
        return x, {"of it": given()} if where == "in an argument" else x if where == "state" else given()

    def asked(run: Step) -> list[str]:
        Logged.log.clear()
        run(*arguments())  # type: ignore[call-arg]
        return [*Logged.log]

    jitted, expected = jit(step, on_refusal="eager"), asked(step)  # type: ignore[arg-type]
    assert [asked(jitted) for _ in range(CALLS)] == [expected] * CALLS
    repr(jitted.explain())
    assert [*Logged.log] == expected
