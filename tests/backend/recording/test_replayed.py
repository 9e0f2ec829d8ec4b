"""A compiled graph that is replayed gives what it gives as compiled. On the CPU a tape stands in for a CUDA graph."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch

from treeplay.backend import job
from treeplay.backend.account import graph_reports
from treeplay.backend.recording.compiled_graph import CompiledGraph, checked_run, counting_calls
from treeplay.backend.recording.recorded import recorded_on
from treeplay.backend.recording.replayed import Replayed
from treeplay.device.cuda.device import CudaDevice
from treeplay.device.host import HostDevice
from treeplay.device.protocol import Recorded, Work
from treeplay.errors import InternalError, UsageError
from treeplay.values.launch import LaunchFacts
from treeplay.values.refusal import Reason


def body(args: list[Any]) -> list[Any]:
    x, w, size, nothing = args
    args.clear()
    assert nothing is None
    hidden = x @ w - size
    return [hidden, w, hidden.t(), None, w.t(), hidden.relu() * 2, size]


class Counted:
    def __init__(self, run: Any) -> None:
        self.run, self.calls = run, 0

    def __call__(self, args: list[Any]) -> Any:
        self.calls += 1
        return self.run(args)


def make(run: Any = body, *, device: str = "cpu", **facts: Any) -> tuple[Replayed, Counted, list[Reason]]:
    counted, reasons = Counted(run), []
    graph = CompiledGraph(counted, "graph 0", ("x", "w", "size", "nothing"), **facts)
    on = HostDevice() if device == "cpu" else CudaDevice(torch.device("cuda", 0))
    return Replayed(graph, on, lambda: None, reasons.append), counted, reasons


def assert_equal(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, torch.Tensor):
            assert torch.equal(one, other) and one.stride() == other.stride()
        else:
            assert one == other


def test_calls_with_other_tensors_and_weights_give_what_the_graph_gives() -> None:
    replayed, counted, _ = make(static=frozenset({1}))
    kept = []
    for number in range(6):
        x, w = torch.randn(3, 4), torch.randn(4, 4)
        args = [x, w, 2, None]
        found = replayed(args)
        assert args == [] and found[1] is w and found[2].data_ptr() == found[0].data_ptr()
        kept.append((found, body([x, w, 2, None])))
        assert counted.calls <= 2, f"call {number} ran the graph's Python"
    for found, expected in kept:  # results stay valid
        assert_equal(found, expected)


def test_another_number_runs_the_graph_as_compiled() -> None:
    replayed, counted, _ = make()
    x, w = torch.randn(3, 4), torch.randn(4, 4)
    for _ in range(3):
        replayed([x, w, 2, None])
    before = counted.calls
    assert_equal(replayed([x, w, 5, None]), body([x, w, 5, None]))
    assert counted.calls == before + 1
    assert_equal(replayed([x, w, 2, None]), body([x, w, 2, None]))


def test_written_inputs_are_written_once_a_call() -> None:
    def count(args: list[Any]) -> list[Any]:
        x, total = args
        args.clear()
        total.mul_(2).add_(x)
        return [total * x]

    replayed, _, _ = make(count, written=frozenset({1}))
    total, twin = torch.ones(3), torch.ones(3)
    for _ in range(5):
        x = torch.randn(3)
        assert_equal(replayed([x, total]), count([x, twin]))
        assert torch.equal(total, twin)


def test_a_graph_whose_views_cannot_be_told_apart_runs_as_compiled_and_says_so() -> None:
    def views(args: list[Any]) -> list[Any]:
        a, _ = args
        args.clear()
        return [a[1:2].view(1, 1)]

    replayed, counted, reasons = make(views)
    whole = torch.randn(4)
    for _ in range(5):
        assert_equal(replayed([whole[:3], whole[1:]]), [whole[1:2].view(1, 1)])
    assert len(reasons) == 1 and "memory that inputs 0, 1 share" in reasons[0].why and counted.calls == 5


def test_a_failing_graph_raises_its_own_error_in_each_call() -> None:
    def fails(args: list[Any]) -> list[Any]:
        args.clear()
        raise KeyError("k")

    replayed, _, _ = make(fails)
    for _ in range(2):
        with pytest.raises(KeyError):
            replayed([torch.ones(1)])


def test_the_call_function_is_straight_and_can_be_read() -> None:
    replayed, _, _ = make()
    for _ in range(2):
        replayed([torch.randn(3, 4), torch.randn(4, 4), 2, None])
    assert replayed.source is not None and "made = replay(" in replayed.source and " for " not in replayed.source
    facts = replayed.facts()
    assert facts is not None and facts.stage == "recorded"
    replayed.free()
    x, w = torch.randn(3, 4), torch.randn(4, 4)
    assert_equal(replayed([x, w, 2, None]), body([x, w, 2, None]))


def test_threads_share_a_recording() -> None:
    replayed, _, _ = make()
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                x, w = torch.randn(3, 4), torch.randn(4, 4)
                assert_equal(replayed([x, w, 2, None]), body([x, w, 2, None]))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_a_graph_of_torch_compile_is_recorded_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, with a tape of the CPU where a GPU would have a CUDA graph."""

    def on_a_tape(run: Any, module: Any, inputs: Any, roles: Any, report: Any) -> Any:
        return recorded_on(HostDevice(), run, module, roles, report)

    monkeypatch.setattr(job, "recorded", on_a_tape)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="treeplay", options={"inner": "aten"})
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (model, twin)]
    for _ in range(6):
        x = torch.randn(5, 4)
        losses = [net(x).square().sum() for net in (compiled, twin)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(*losses)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    reports = [report for report in graph_reports() if "recorded" in report.outcome]
    assert {report.direction for report in reports} >= {"forward", "backward"}
    torch.compiler.reset()


def keeps_places(args: list[Any]) -> list[Any]:
    x, w, _, _ = args
    args.clear()
    return [x @ w - 1, None, 3]


PATHS = ["warm", "recorded", "replayed", "with another number", "given up"]


def on(path: str, run: Any, device: str = "cpu") -> tuple[Replayed, list[Any]]:
    """A graph whose next call takes a path, and the arguments of that call."""
    replayed, _, _ = make(run, device=device)
    x, w = torch.randn(3, 4, device=device), torch.randn(4, 4, device=device)
    calls = {"warm": 0, "recorded": 1, "given up": 0}
    for _ in range(calls.get(path, 4)):
        replayed([x.clone(), w, 2, None])
    if path == "given up":
        replayed._call = counting_calls(partial(checked_run, replayed.graph), Counter(), "given up")
    return replayed, [x, w, 5 if path == "with another number" else 2, None]


@pytest.mark.parametrize("path", PATHS)
def test_T6_the_list_is_emptied_and_results_keep_places_and_types(path: str, device: str) -> None:
    replayed, args = on(path, keeps_places, device)
    expected = [args[0] @ args[1] - 1, None, 3]
    found = replayed(args)
    assert args == [] and [type(item) for item in found] == [torch.Tensor, type(None), int]
    assert_equal(found, expected)
    if path in ("recorded", "replayed"):
        facts = replayed.facts()
        assert facts is not None and facts.stage == "recorded" and facts.launches > 0


@pytest.mark.parametrize("path", PATHS)
def test_T6_a_graph_that_does_not_empty_its_list_is_an_error_of_treeplays(path: str) -> None:
    wrong: list[bool] = []

    def leaves(args: list[Any]) -> list[Any]:
        found = keeps_places(args[:])
        if not wrong:
            args.clear()
        return found

    replayed, args = on(path, leaves)
    wrong.append(True)
    if path == "replayed":  # which runs no graph
        assert len(replayed(args)) == 3 and args == []
        return
    with pytest.raises(InternalError, match="left 4 values in the list"):
        replayed(args)


@pytest.mark.parametrize("path", ["recorded", "with another number"])
def test_T6_another_number_of_results_is_an_error_of_treeplays(path: str) -> None:
    count: list[int] = []
    replayed, args = on(path, lambda args: [*keeps_places(args), *count])
    count.append(1)
    with pytest.raises(InternalError, match="gave 4 results, and 3"):
        replayed(args)


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("path", ["recorded", "replayed", "with another number"])
def test_T6_a_value_of_a_wrong_type_is_refused_by_position_before_anything_runs(
    path: str, at: int, device: str
) -> None:
    replayed, args = on(path, keeps_places, device)
    good, before = list(args), replayed.graph.run.calls
    args[at] = [1.0] if at == 0 else torch.ones(2, device=device)
    found, name = ("list", "x") if at == 0 else ("Tensor", "size")
    with pytest.raises(UsageError, match=rf"argument {at} \(`{name}`\): expected (a|no) tensor, found {found}"):
        replayed(args)
    assert replayed.graph.run.calls == before and args == []
    assert_equal(replayed([*good[:2], 2, None]), [good[0] @ good[1] - 1, None, 3])


class Capturing:
    """A device that captures, or fails to, when the work is first replayed, as a GPU does."""

    name = "a GPU"

    def __init__(self, stage: Any) -> None:
        self.stage: Any = "warming"
        self.becomes = stage

    def record(self, work: Work) -> Recorded:
        def subscribe(listener: Any) -> None:
            self.listener = listener

        def replay(tensors: list[torch.Tensor], numbers: Any) -> Any:
            if self.stage == "warming":
                self.stage = self.becomes
                self.listener(work.run, False)
            return work.run(tensors, numbers)

        return Recorded(replay, lambda: LaunchFacts(self.name, self.stage, why="no"), lambda: None, subscribe)


@pytest.mark.parametrize("stage", ["recorded", "not recorded"])
def test_D32_a_graph_counts_as_recorded_once_it_is_captured_and_else_says_why(stage: str) -> None:
    told: list[Any] = []
    graph = CompiledGraph(keeps_places, "graph 0", ("x", "w", "size", "nothing"))
    replayed = Replayed(graph, Capturing(stage), lambda: told.append("recorded"), told.append)  # type: ignore[arg-type]
    x, w = torch.randn(3, 4), torch.randn(4, 4)
    for call in range(5):
        assert_equal(replayed([x, w, 2, None]), [x @ w - 1, None, 3])
        assert len(told) == min(call, 1)
    assert told == ["recorded"] if stage == "recorded" else "could not be captured: no" in told[0].why
