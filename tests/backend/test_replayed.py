"""A compiled graph that is replayed gives what it gives as compiled. On the CPU a tape stands in for a CUDA graph."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch

from treeplay.backend import job
from treeplay.backend.account import graph_reports
from treeplay.backend.recorded import recorded_on
from treeplay.backend.replayed import Graph, Replayed
from treeplay.device.host import HostDevice
from treeplay.facts.refusal import Reason


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


def make(run: Any = body, **facts: Any) -> tuple[Replayed, Counted, list[Reason]]:
    counted, reasons = Counted(run), []
    graph = Graph(counted, "graph 0", ("x", "w", "size", "nothing"), **facts)
    return Replayed(graph, HostDevice(), lambda: None, reasons.append), counted, reasons


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
