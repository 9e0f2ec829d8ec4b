"""The exception matrix: at each step of each way in an exception of each type is raised once, and what is left is looked at.

way in: jit, differentiable jit, capture, torch.compile, graphed callables, explicit graphs
step:   a function of treeplay's that one call of it comes to
after:  an `Exception` of ours is not the caller's business, but where a recording was asked for by name; anything else
        passes as it is. The call's effects happened once or not at all, nothing around it has changed, and the next calls
        are right
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import assert_same
from support.faults import raising_once, surroundings
from treeplay import driver, torch_compile
from treeplay.backend import job, wrapped
from treeplay.backend.autograd import differentiable
from treeplay.backend.recording import examine, replayed
from treeplay.backend.recording.compiled_graph import CompiledGraph as GraphToRecord
from treeplay.backend.recording.replayed import Replayed
from treeplay.backend.shapes import flat as shapes
from treeplay.device.host import HostDevice, recorder
from treeplay.graphs import Graph, callables, graph, make_graphed_callables
from treeplay.record import differentiable as recording_differentiable
from treeplay.record import front
from treeplay.trace import jit as tracing
from treeplay.trace import rerun
from treeplay.trace.opaque import program as opaque
from treeplay.trace.opaque import run as opaque_run
from treeplay.trace.run.tape import TraceTape
from treeplay.trace.signature import outcome
from treeplay.tree import observing


class UsersOwn(BaseException):
    """What a user may raise to get out of everything."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    kind.__name__: (lambda kind=kind: kind("told to"))  # type: ignore[misc]
    for kind in (
        KeyError,
        RuntimeError,
        MemoryError,
        AssertionError,
        RecursionError,
        torch.OutOfMemoryError,
        KeyboardInterrupt,
        UsersOwn,
    )
}
Owner = Any
Step = tuple[Owner, str, int]  # a function, and in which call it raises


class Layer(nn.Module):
    """Its weights are no random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(9.0).view(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight - 1


@dataclass
class World:
    """State, and a call that changes it: with non-commutative arithmetic, so that an effect that happens twice shows."""

    call: Callable[[torch.Tensor], Any]
    state: Callable[[], Any]


@dataclass(frozen=True)
class Way:
    """A way in: `make(wrap, device)` gives a world whose program is wrapped. `is_asked_for`: errors are raised to the caller.
    `on_gpu`: its steps are the same on a GPU."""

    make: Callable[[Callable[[Any], Any], str], World]
    wrap: Callable[[Any], Any]
    steps: dict[str, Step]
    is_asked_for: bool = False
    on_gpu: bool = True


def in_tensors(wrap: Callable[[Any], Any], device: str) -> World:
    total = torch.ones(3, device=device)

    def program(x: torch.Tensor) -> Any:
        total.mul_(3).add_(x)
        return total - x, total / 3 + x

    function = wrap(program)
    return World(lambda x: tuple(function(x)), lambda: [total])


def in_place(wrap: Callable[[Any], Any], device: str) -> World:
    total = torch.ones(3, device=device)
    slots = {"last": total}

    def program(x: torch.Tensor) -> Any:
        total.mul_(3).add_(x)
        slots["last"] = total * 2 - x
        return total - x, slots["last"] / 3

    return World(wrap(program), lambda: [total, slots["last"]])


def with_gradients(wrap: Callable[[Any], Any], device: str) -> World:
    weight = torch.tensor([1.0, -2.0, 3.0], device=device, requires_grad=True)
    state = {"last": torch.ones(3, device=device)}

    def program(x: torch.Tensor) -> torch.Tensor:
        state["last"] = (x * 2 - state["last"]).detach()
        return (x * 3 - weight) / (state["last"] * state["last"] + 1)

    function = wrap(program)

    def call(x: torch.Tensor) -> Any:
        out = function(x)
        return out.detach(), *torch.autograd.grad(out.pow(2).sum(), weight)

    return World(call, lambda: [weight.detach(), state["last"]])


def of_dynamo(wrap: Callable[[Any], Any], device: str) -> World:
    torch._dynamo.reset()
    weight, total = torch.tensor([1.0, -2.0, 3.0], device=device, requires_grad=True), torch.ones(3, device=device)

    def program(x: torch.Tensor) -> torch.Tensor:
        total.mul_(3).add_(x)
        return (x * 3 - weight) / (x * x + 1) - total.clone()

    function = wrap(program)

    def call(x: torch.Tensor) -> Any:
        out = function(x)
        return out.detach(), *torch.autograd.grad(out.pow(2).sum(), weight)

    return World(call, lambda: [weight.detach(), total])


def graphed(wrap: Callable[[Any], Any], device: str) -> World:
    """Each call wraps a layer anew, and calls it."""
    total = torch.ones(3)

    def call(x: torch.Tensor) -> Any:
        out = wrap(Layer())(x) - total * 2
        total.mul_(3).add_(x)
        return out.detach()

    return World(call, lambda: [total])


def explicit(wrap: Callable[[Any], Any], device: str) -> World:
    """Each call records a graph, and replays it."""
    total = torch.ones(3)

    def program(x: torch.Tensor) -> torch.Tensor:
        total.mul_(3).add_(x)
        return total - x

    return World(lambda x: wrap(program)(x), lambda: [total])


def _recorded(program: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        recording = Graph(device="cpu")
        with graph(recording):
            out = program(x)
        recording.replay()
        return out.clone()

    return call


def _replayed(program: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """What the backend records on a device, here on the CPU, where it has no need to."""

    def run(args: list[Any]) -> list[Any]:
        (x,) = args
        args.clear()
        return list(program(x))

    call = Replayed(GraphToRecord(run, "graph", ("x",)), HostDevice(), lambda: None, lambda reason: None)
    return lambda x: call([x])


WAYS: dict[str, Way] = {
    "jit": Way(
        in_place,
        lambda program: treeplay.jit(program, lower="aten"),
        {
            "reach": (observing, "survey_call", 1),
            "begin": (tracing, "Snapshot", 2),
            "operator": (TraceTape, "describe", 2),
            "signature": (outcome, "make_signature", 2),
            "guards": (tracing, "guards_of", 2),
            "plan": (front, "make_plan", 2),
            "lower": (driver, "make_lowered", 2),
            "record": (driver, "device_for", 2),
            "wrap": (driver, "make_recording", 2),
        },
    ),
    "differentiable": Way(
        with_gradients,
        lambda program: treeplay.jit(program, lower="aten"),
        {
            "trace": (outcome, "flat_results", 2),
            "second trace": (rerun, "look", 2),
            "second trace begins": (rerun, "Snapshot", 2),
            "wrap": (differentiable, "wrap_function", 2),
            "forward": (job, "compile_inner", 2),
            "around": (recording_differentiable, "emit_around", 2),
            "backward": (job, "refresh_layout", 2),
        },
    ),
    "capture": Way(
        in_place,
        lambda program: treeplay.jit(program, lower="capture"),
        {
            "prepare": (driver, "prepare", 2),
            "run": (opaque_run, "Snapshot", 2),
            "look": (opaque_run, "find_writes", 2),
            "signature": (opaque, "opaque_signature", 2),
            "record": (driver, "device_for", 2),
            "wrap": (driver, "make_recording", 2),
        },
    ),
    "torch.compile": Way(
        of_dynamo,
        lambda program: torch.compile(program, backend=torch_compile.backend, options={"inner": "aten"}),
        {
            "shapes": (shapes, "normalised", 1),
            "graph": (driver, "compile_flat", 1),
            "wrap": (wrapped, "wrap_function", 1),
            "facts": (examine, "inputs_of", 1),
            "forward": (job, "compile_inner", 1),
            "backward": (job, "refresh_layout", 1),
        },
    ),
    "a graph's recording": Way(
        in_tensors,
        _replayed,
        {
            "returns": (replayed, "survey_returns", 1),
            "call": (replayed, "emit_call", 1),
            "load": (replayed, "load_source", 1),
        },
        on_gpu=False,
    ),
    "graphed callables": Way(
        graphed,
        lambda layer: make_graphed_callables(layer, (torch.ones(3),)),
        {
            "original": (callables, "_original", 2),
            "body": (callables, "_body", 2),
            "record": (callables, "_record", 2),
            "commit": (callables, "_commit", 2),
            "operator": (recorder.Recorder, "_note", 2),
            "end": (recorder.Recorder, "end", 2),
        },
        is_asked_for=True,
        on_gpu=False,
    ),
    "explicit graphs": Way(
        explicit,
        _recorded,
        {
            "begin": (recorder.Recorder, "begin", 2),
            "operator": (recorder.Recorder, "_note", 2),
            "end": (recorder.Recorder, "end", 2),
        },
        is_asked_for=True,
        on_gpu=False,
    ),
}
ON_GPU = [(way, step, kind) for way, found in WAYS.items() if found.on_gpu for step in found.steps for kind in ERRORS]
MATRIX = [(way, step, kind) for way, found in WAYS.items() for step in found.steps for kind in ERRORS]
CALLS = 5


def check(way: str, step: str, kind: str, device: str = "cpu") -> None:
    """One cell of the matrix; an AssertionError of the test's says what is wrong."""
    found = WAYS[way]
    owner, name, when = found.steps[step]
    error = ERRORS[kind]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        world, twin = found.make(found.wrap, device), found.make(lambda program: program, device)
        for call in range(1, CALLS + 1):
            x = torch.full((3,), float(call), device=device)
            before, raised = surroundings(), None
            with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
                if call == when:
                    fault = raising_once(error, getattr(owner, name))
                    patch.setattr(owner, name, fault)
                    stack.callback(lambda fault=fault: _was_raised(fault, way, step))
                try:
                    out = world.call(x)
                except BaseException as caught:
                    raised = caught
            now = surroundings()
            assert now == before, [name for name in now if now[name] != before[name]]
            if raised is None:
                assert_same(out, twin.call(x))
                assert call != when or isinstance(error, Exception), "it was swallowed"
            else:
                assert call == when, f"call {call} raised {raised!r}"
                _check_raised(raised, error, is_asked_for=found.is_asked_for)
                if not are_equal(world.state(), twin.state()):  # the effects came before the exception
                    twin.call(x)
            assert_same(world.state(), twin.state(), f"state after call {call}")


def _check_raised(raised: BaseException, error: BaseException, *, is_asked_for: bool) -> None:
    if isinstance(error, Exception):
        assert is_asked_for, f"the caller got {raised!r}"
        assert raised is error or raised.__cause__ is error or isinstance(raised, treeplay.TreeplayError), repr(raised)
    else:
        assert raised is error, f"the caller got {raised!r}"


def _was_raised(fault: Any, way: str, step: str) -> None:
    assert not fault.__globals__["errors"], f"{way} never came to: {step}"


def are_equal(found: Any, expected: Any) -> bool:
    """Whether two nested values are equal bit for bit."""
    try:
        assert_same(found, expected)
    except AssertionError:
        return False
    return True
