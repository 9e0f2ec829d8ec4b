"""A compiled graph that a device replays, as a boxed callable.

    call 1 ── as compiled; its results show what is new memory ──▶ Work ── device.record ──▶ replay
    later  ── def call(args): made = replay(tensors); return [made[0], args[2], ...]

A GPU's launch function has these lines in it. Whoever calls the graph is told of it, and from then on calls it directly.
Nothing is recorded before there are real tensors, and the call that records runs once, like any other.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from treeplay.backend.recording.boxing import GraphBoxing, emit_boxed_call, work_of
from treeplay.backend.recording.compiled_graph import CompiledGraph, checked_run, counting_calls, wrong_kind_of
from treeplay.backend.recording.returns import Returns, survey_returns
from treeplay.backend.recording.saved_block import SavedBlock, plan_block, returns_for_block
from treeplay.codegen import hide_from_dynamo, load_source
from treeplay.device.holders import register
from treeplay.device.protocol import Device, Recorded, Replay
from treeplay.errors import InternalError, TreeplayError
from treeplay.locks import shared_lock
from treeplay.observe.internal import tell_internal
from treeplay.sandbox.boundary import Boundary
from treeplay.values.block import SavedLayout
from treeplay.values.boxed import Boxed
from treeplay.values.launch import LaunchFacts
from treeplay.values.refusal import Reason

_MOST_LOOKS = 3
_OTHER = "other numbers than those recorded"


@dataclass(eq=False)
class Replayed:
    """Boxed, like the graph. `made` is called once the device has the work, else `given_up` with the reason; `forgotten` when
    it is reset."""

    graph: CompiledGraph
    device: Device
    made: Callable[[], None]
    given_up: Callable[[Reason], None]
    forgotten: Callable[[], None] = lambda: None
    source: str | None = None
    known: Returns | None = None  # what it returns, if that is known before its first call
    _recorded: Recorded | None = None
    _boxing: GraphBoxing | None = None  # of what is recorded
    _twin: Callable[[], Replayed | None] = lambda: None  # the same graph, which takes a block
    _has_told: bool = False  # that the device has the work
    _call: Boxed | None = None
    _looks: int = 0
    _plain_calls: Counter[str] = field(default_factory=Counter)
    _lock: Any = field(default_factory=shared_lock)
    _listeners: list[Callable[[Boxed], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        register(self)

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        call = self._call
        return call(args) if call is not None else self._first(args)

    def subscribe(self, listener: Callable[[Boxed], None]) -> None:
        """Have `listener` told, whenever that changes, of what does the same with nothing in between."""
        self._listeners.append(listener)

    def facts(self) -> LaunchFacts | None:
        """How it is launched by now; None before there is a recording."""
        twin = self._twin()
        if twin is not None and (facts := twin.facts()) is not None:
            return facts
        return self._recorded.facts() if self._recorded is not None else None

    def plain_calls(self) -> Counter[str]:
        """Calls that ran the graph as it is compiled and launched nothing, by reason."""
        twin, calls = self._twin(), self._plain_calls + Counter()
        if self._recorded is not None:
            calls += self._recorded.plain_calls
        return calls + (twin.plain_calls() if twin is not None else Counter())

    def in_block(self, layout: SavedLayout, first: int) -> Replayed:
        """What does the same, called with the block that a forward has left where values that lie there would begin. It is
        recorded in its first call if this graph has run: what it returns is known, and kernels are compiled."""
        known = returns_for_block(self._boxing.returns, layout, first) if self._boxing is not None else None
        graph = self.graph.in_block(layout, first)
        twin = Replayed(graph, self.device, self._tell_made, self.given_up, self._forget, known=known)
        self._twin = weakref.ref(twin)  # which keeps this one
        return twin

    def free(self) -> None:
        """Give the recording's memory back; a later call makes it anew."""
        if self._recorded is not None:
            self._recorded.free()

    def reset(self) -> None:
        """Forget the recording; the next call is a first call."""
        with self._lock:
            recorded, self._recorded, self._boxing, self._looks = self._recorded, None, None, 0
            if self._call is not None:
                self._becomes(None)
            if recorded is not None:
                self._plain_calls += recorded.plain_calls
                recorded.free()
                self._forget()

    def _forget(self) -> None:
        self._has_told = False
        self.forgotten()

    def _tell_made(self) -> None:
        if not self._has_told:
            self._has_told = True
            self.made()

    def _becomes(self, call: Boxed | None) -> None:
        """Do what `call` does from now on; None: the next call is a first call."""
        self._call = call
        for listener in self._listeners:
            listener(self if call is None else call)

    def _told(self) -> None:
        """A GPU has captured the graph, or given that up."""
        facts = self.facts()
        if facts is not None and facts.stage == "recorded":
            self._tell_made()
        elif facts is not None and facts.stage == "not recorded":
            self.given_up(Reason(self.graph.name, f"it could not be captured: {facts.why}", "see the warning"))

    def _first(self, args: list[Any]) -> Sequence[Any]:
        with self._lock:
            if self._call is not None:
                return self._call(args)
            known, self.known = self.known, None
            # A copy: the graph empties `args`, and what it was given is looked at after it has run.
            given = list(args)
            results: Sequence[Any] = ()
            if known is None:
                results = checked_run(self.graph, args)
                self._plain_calls["warm-up"] += 1
            try:
                with Boundary("recording a graph", reasons=(TreeplayError,)):
                    if known is None:
                        self._look(given, results)
                    else:
                        self._becomes(self._made(given, known))
            except InternalError as error:  # if the graph has run, its results are what the caller gets
                self._becomes(counting_calls(partial(checked_run, self.graph), self._plain_calls, "given up"))
                tell_internal(error, self.graph.name)
                self.given_up(Reason(self.graph.name, f"an error of treeplay's own: {error}", "report it"))
            if known is None:
                return results
            del given  # so that each can die inside the graph
            return self(args)

    def _look(self, given: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn from the results of a call what is new memory, and record from the next call on."""
        self._looks += 1
        returns = survey_returns(given, results)
        if not isinstance(returns, str):
            self._becomes(self._made(given, returns, plan_block(returns, results, self.graph.inner)))
        elif self._looks == _MOST_LOOKS:
            self._becomes(counting_calls(partial(checked_run, self.graph), self._plain_calls, "given up"))
            advice = "pass tensors that share no memory, or copies of them"
            self.given_up(Reason(op=self.graph.name, why=returns, advice=advice))

    def _made(self, given: Sequence[Any], returns: Returns, block: SavedBlock | None = None) -> Boxed:
        """The call function for arguments like `given`."""
        places = tuple(at for at, arg in enumerate(given) if isinstance(arg, torch.Tensor))
        fixed = {at: arg for at, arg in enumerate(given) if not isinstance(arg, torch.Tensor)}
        wrong_kind = partial(wrong_kind_of, self.graph.names[: len(given)], frozenset(places))
        run = partial(checked_run, self.graph, count=len(returns.refs), wrong_kind=wrong_kind)
        boxing = GraphBoxing(places, fixed, returns, counting_calls(run, self._plain_calls, _OTHER), wrong_kind, block)
        recorded = self.device.record(work_of(self.graph, boxing, run))

        # Weak: what a recording tells must not keep it.
        owner_of = weakref.ref(self)

        def told(replay: Callable[..., Any], is_boxed: bool) -> None:
            owner = owner_of()
            if owner is None or owner._boxing is not boxing:  # it was reset
                return
            if is_boxed:
                hide_from_dynamo(replay, with_callees=True)
                owner._becomes(replay)
            else:
                owner._becomes(owner._loaded(boxing, _locked(owner._lock, replay)))
            owner._told()

        call = self._loaded(boxing, _locked(self._lock, recorded.replay))
        # Before it subscribes: `told` takes no notice of any boxing but this one.
        self._recorded, self._boxing = recorded, boxing
        recorded.subscribe(told)
        if self.device.name == "cpu":  # which records at once, or when it is first replayed, and tells nobody
            self._tell_made()
        return call

    def _loaded(self, boxing: GraphBoxing, replay: Replay) -> Boxed:
        """The call function around `replay`."""
        source = emit_boxed_call(self.graph.name, boxing, replay)
        self.source = source.text
        call: Boxed = load_source(source)
        hide_from_dynamo(call, with_callees=True)
        return call


def _locked(lock: Any, replay: Replay) -> Replay:
    """`replay`, one call at a time."""

    def locked(tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        with lock:
            return replay(tensors, numbers)

    return locked
