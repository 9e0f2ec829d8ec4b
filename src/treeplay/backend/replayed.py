"""A compiled graph that a device replays, as a boxed callable.

    call 1 ── as compiled; its results show what is new memory ──▶ Work ── device.record ──▶ replay
    later  ── def call(args): made = replay(tensors); return [made[0], args[2], ...]

A GPU's launch function has these lines in it. Whoever calls the graph is told of it, and from then on calls it directly.
Nothing is recorded before there are real tensors, and the call that records runs once, like any other.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from treeplay.backend.returns import Returns, survey_returns, write_results
from treeplay.codegen import Source, Writer, hide_from_dynamo, list_of, load_source
from treeplay.codegen.idioms import is_exactly
from treeplay.device.holders import register
from treeplay.device.protocol import Births, Device, Recorded, Replay, Work
from treeplay.errors import InternalError, TreeplayError, UsageError
from treeplay.locks import shared_lock
from treeplay.observe.internal import tell_internal
from treeplay.sandbox.boundary import Boundary
from treeplay.values.launch import LaunchFacts
from treeplay.values.refusal import Reason
from treeplay.wrap.aot.compilers import Boxed

WrongKind = Callable[[Sequence[Any]], UsageError | None]

_MOST_LOOKS = 3
_OTHER = "other numbers than those recorded"


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A compiled graph and what a device has to know of it.

    `names` are its inputs'; `static` are those that stay where they are, `written` those that it writes. `draws`: whether it
    draws random numbers. `tells`: while it lasts, `run` tells of the memory that it allocates.
    """

    run: Boxed
    name: str
    names: tuple[str, ...]
    static: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    draws: bool = True
    tells: Callable[[Births], AbstractContextManager[None]] | None = None


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
    _recorded: Recorded | None = None
    _boxing: GraphBoxing | None = None  # of what is recorded
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

    def tell(self, listener: Callable[[Boxed], None]) -> None:
        """Have `listener` told, whenever that changes, of what does the same with nothing in between."""
        self._listeners.append(listener)

    def facts(self) -> LaunchFacts | None:
        """How it is launched by now; None before there is a recording."""
        return self._recorded.facts() if self._recorded is not None else None

    def plain_calls(self) -> Counter[str]:
        """Calls that ran the graph as it is compiled and launched nothing, by reason."""
        return self._plain_calls + (self._recorded.plain_calls if self._recorded is not None else Counter())

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
                self.forgotten()

    def _becomes(self, call: Boxed | None) -> None:
        """Do what `call` does from now on; None: the next call is a first call."""
        self._call = call
        for listener in self._listeners:
            listener(self if call is None else call)

    def _told(self) -> None:
        """A GPU has captured the graph, or given that up."""
        facts = self.facts()
        if facts is not None and facts.stage == "recorded":
            self.made()
        elif facts is not None and facts.stage == "not recorded":
            self.given_up(Reason(self.graph.name, f"it could not be captured: {facts.why}", "see the warning"))

    def _first(self, args: list[Any]) -> Sequence[Any]:
        with self._lock:
            if self._call is not None:
                return self._call(args)
            given = list(args)
            results = checked_run(self.graph, args)
            self._plain_calls["warm-up"] += 1
            try:
                with Boundary("recording a graph", reasons=(TreeplayError,)):
                    self._look(given, results)
            except InternalError as error:  # the graph has run: its results are what the caller gets
                self._becomes(counted(partial(checked_run, self.graph), self._plain_calls, "given up"))
                tell_internal(error, self.graph.name)
                self.given_up(Reason(self.graph.name, f"an error of treeplay's own: {error}", "report it"))
            return results

    def _look(self, given: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn from the results of a call what is new memory, and record from the next call on."""
        self._looks += 1
        returns = survey_returns(given, results)
        if not isinstance(returns, str):
            self._becomes(self._made(given, returns))
        elif self._looks == _MOST_LOOKS:
            self._becomes(counted(partial(checked_run, self.graph), self._plain_calls, "given up"))
            advice = "pass tensors that share no memory, or copies of them"
            self.given_up(Reason(op=self.graph.name, why=returns, advice=advice))

    def _made(self, given: Sequence[Any], returns: Returns) -> Boxed:
        """The call function for arguments like `given`."""
        places = tuple(at for at, arg in enumerate(given) if isinstance(arg, torch.Tensor))
        fixed = {at: arg for at, arg in enumerate(given) if not isinstance(arg, torch.Tensor)}
        wrong_kind = partial(_wrong_kind, self.graph.names[: len(given)], frozenset(places))
        run = partial(checked_run, self.graph, count=len(returns.refs), wrong_kind=wrong_kind)
        boxing = GraphBoxing(places, fixed, returns, counted(run, self._plain_calls, _OTHER), wrong_kind)
        recorded = self.device.record(_work(self.graph, boxing, run))

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
        self._recorded, self._boxing = recorded, boxing
        recorded.tell(told)
        if self.device.name == "cpu":  # which records at once, or when it is first replayed, and tells nobody
            self.made()
        return call

    def _loaded(self, boxing: GraphBoxing, replay: Replay) -> Boxed:
        """The call function around `replay`."""
        source = emit_call(self.graph.name, boxing, replay)
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


def checked_run(
    graph: CompiledGraph, args: list[Any], *, count: int | None = None, wrong_kind: WrongKind | None = None
) -> Sequence[Any]:
    """Run a graph as it is compiled: what compiled it owes an empty list and, where that is known, `count` results."""
    if wrong_kind is not None and (told := wrong_kind(args)) is not None:
        raise told
    results = graph.run(args)
    if args:
        raise InternalError(f"{graph.name} left {len(args)} values in the list of its arguments, which it has to empty")
    if count is not None and len(results) != count:
        raise InternalError(f"{graph.name} gave {len(results)} results, and {count} when it was recorded")
    return results


def _wrong_kind(names: Sequence[str], tensors: frozenset[int], given: Sequence[Any]) -> UsageError | None:
    """What to say of arguments of which one is a tensor, or is none, as it was not when the graph was recorded; else None."""
    if len(given) != len(names):
        return UsageError(f"expected {len(names)} arguments ({', '.join(names)}), found {len(given)}")
    for at, (name, value) in enumerate(zip(names, given, strict=True)):
        if isinstance(value, torch.Tensor) is not (at in tensors):
            expected = "a tensor" if at in tensors else "no tensor"
            return UsageError(f"argument {at} (`{name}`): expected {expected}, found {type(value).__name__}")
    return None


def counted(run: Boxed, calls: Counter[str], why: str) -> Boxed:
    """`run`, whose calls count under `why`."""

    def plain(args: list[Any]) -> Sequence[Any]:
        results = run(args)
        calls[why] += 1
        return results

    return plain


@dataclass(frozen=True, slots=True)
class GraphBoxing:
    """Before a replay: the arguments with tensors at `places` are taken out of their list, and with other values than `fixed`
    the graph runs `as_compiled`. After it, `returns` are put together of what was made."""

    places: tuple[int, ...]
    fixed: dict[int, Any]
    returns: Returns
    as_compiled: Boxed
    wrong_kind: WrongKind

    @contextmanager
    def around(self, text: Writer) -> Iterator[None]:
        """Lines around those that launch. The list is emptied last: a copy of it would take longer than some launches."""
        text.use("wrong_kind", self.wrong_kind)
        with text.block("try:"):
            for at, value in self.fixed.items():
                other = f"{text.use('as_compiled', self.as_compiled)}(args)"
                text.add(f"if not ({is_exactly(text, f'args[{at}]', value)}): return {other}")
            text.add(f"tensors = {list_of(f'args[{at}]' for at in self.places) if self.fixed else 'args'}")
            yield
        # Whoever calls compares types, mostly. They are asked for here when something failed, as it does before a launch.
        with text.block("except Exception as error:"):
            text.add("told = wrong_kind(args) if args else None", "args.clear()")
            text.add("if told is not None: raise told from error", "raise")

    def returned(self, text: Writer, made: Sequence[str]) -> None:
        """Lines that return a list of the results."""
        text.add(f"results = {write_results(text, self.returns, 'args', made)}", "args.clear()", "return results")

    def as_replay(self, call: Boxed) -> Replay:
        """A call function as one that takes tensors and gives new memory."""

        def replay(tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
            return self.returns.bases_of(call(self.arguments(tensors)))

        return replay

    def arguments(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """All arguments, in order."""
        given = {**self.fixed, **dict(zip(self.places, tensors, strict=True))}
        return [given[at] for at in range(len(given))]


def emit_call(name: str, boxing: GraphBoxing, replay: Replay) -> Source:
    """`call(args)` around a replay that is another function."""
    text = Writer(replay=replay)
    with text.block("def call(args):"):
        with boxing.around(text):
            text.add("made = replay(tensors, ())")
        boxing.returned(text, [f"made[{at}]" for at in range(len(boxing.returns.owners))])
    return text.source(f"replay of {name}", entry="call")


def _work(graph: CompiledGraph, boxing: GraphBoxing, run: Boxed) -> Work:
    """The graph as work over its tensors alone, which gives new memory alone."""
    body = boxing.as_replay(run)
    tensor_at = {place: at for at, place in enumerate(boxing.places)}
    return Work(
        graph.name,
        body,
        lambda tensors: body(tensors, ()),
        names=tuple(graph.names[at] for at in boxing.places),
        mutated=frozenset(tensor_at[at] for at in graph.written if at in tensor_at),
        state=frozenset(tensor_at[at] for at in graph.static if at in tensor_at),
        tells=graph.tells,
        draws=graph.draws,
        generators=tuple(value for value in boxing.fixed.values() if isinstance(value, torch.Generator)),
        has_run=True,
        # On the host a body is taped; nothing of it lies elsewhere than it is told.
        is_opaque=True,
        boxing=boxing,
    )
