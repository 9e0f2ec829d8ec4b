"""A program that records itself and is replayed.

call 1   eager, with a log of its operators
call 2   traced on fakes, compared with call 1, lowered, recorded; the recording makes the call's effects
call 3+  replayed

On a GPU call 2 runs what was lowered as it is, and call 3 captures it and launches the graph for the first time.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast

import torch

from treeplay.device.holders import register
from treeplay.errors import ArgumentTypeError
from treeplay.locks import shared_lock
from treeplay.settings import settings
from treeplay.values.statistics import KeyFacts, RecordingFacts, Statistics

if TYPE_CHECKING:
    from treeplay.tree.cache import Cache
    from treeplay.tree.manager import Manager
    from treeplay.tree.table import Entry, Recording
    from treeplay.values.signature import Signature

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=torch.nn.Module)
OnRefusal = Literal["eager", "raise"]
Lower = Literal["auto", "inductor", "aten", "capture"]

_numbers = itertools.count()


def _reset(cache: Cache, lock: Any) -> None:
    with lock:
        cache.reset()


class _Bound:
    """What an object's `__dict__` keeps for one of its jitted methods. A copy of the object finds that it is not its own."""

    __slots__ = ("owner", "program")

    def __init__(self, owner: Any, program: Jitted[..., Any]) -> None:
        self.owner = owner
        self.program = program

    def __reduce__(self) -> Any:  # of recordings nothing is copied or pickled
        return type(None), ()


class Jitted(Generic[P, R]):
    """A program that is traced on its second call and replayed from then on; on a GPU from its third.

    Made by `treeplay.jit`. Threads that call it take turns at launches, never while the program's own code runs. Inside
    another jitted program, or under somebody's torch function or dispatch mode, it is the plain program. A default device is
    part of its key.
    """

    def __init__(
        self, program: Callable[P, R], *, lower: Lower, on_refusal: OnRefusal, name: str | None = None
    ) -> None:
        self.__wrapped__ = program
        self._lower = lower
        self._on_refusal = on_refusal
        self._name = str(name or getattr(program, "__qualname__", type(program).__name__))
        # One for each decorated function: an override and what it overrides are two methods of one object.
        self._key = f"{self._name} (jitted {next(_numbers)})"
        self._lock = shared_lock()
        if settings.enabled:
            _ = self._manager  # here, and not in the first call, which may be under modes of the user's
        if not isinstance(program, torch.nn.Module):
            functools.update_wrapper(self, program, updated=())
        if isinstance(program, FunctionType):
            # As any decorator does, but for what is ours. The state of an object that can be called stays its own.
            vars(self).update({name: value for name, value in vars(program).items() if not hasattr(self, name)})
        register(self)

    @functools.cached_property
    def _manager(self) -> Manager:
        """Made for a program that is not switched off: what it imports takes a second."""
        from treeplay import driver
        from treeplay.trace.observe import observe
        from treeplay.trace.opaque.program import plain_run
        from treeplay.tree.gate import Gate
        from treeplay.tree.manager import Manager

        # Not `self`, which is to go when it is dropped.
        program, lower, name = self.__wrapped__, self._lower, self._name

        def record(call: Any, log: Any) -> Recording:
            return driver.record(program, call, log, lower=lower, name=name)

        def make_for_all_sizes(call: Any, log: Any, changing: Any) -> Any:
            return driver.record_for_all_sizes(program, call, log, changing, name=name)

        watch = plain_run if lower == "capture" else observe
        gate = Gate(self._lock, is_opaque=lower == "capture")
        return Manager(
            program,
            record,
            watch,
            gate=gate,
            name=name,
            on_refusal=self._on_refusal,
            for_all_sizes=driver.for_all_sizes(make_for_all_sizes) if lower == "auto" else None,
        )

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # modules are empty by then
        """What recordings are made of refers to each other, and need not wait for Python's garbage collector. This comes at any
        moment, in any thread: not while somebody, or this very thread, is in the middle of something with them."""
        cache = self._cache()
        if cache is None or is_finalizing():
            return
        if self._lock._is_owned() or not self._lock.acquire(blocking=False):
            from treeplay.tree.tiers import compile_thread

            compile_thread.add(functools.partial(_reset, cache, self._lock))
            return
        try:
            cache.reset()
        finally:
            self._lock.release()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not settings.enabled:
            return self.__wrapped__(*args, **kwargs)
        out: R = self._manager.call(args, kwargs)
        return out

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Decorating a method: each instance gets a jitted program of its own, kept in its `__dict__`. For a class, which
        has none of its own to write to, it is a method of this program."""
        try:
            bound = instance.__dict__[self._key]
            if bound.owner is instance:
                return bound.program
        except (AttributeError, KeyError):
            pass
        return self if instance is None else self._bind(instance)

    def _bind(self, instance: Any) -> Any:
        if isinstance(instance, type):
            return MethodType(self, instance)
        method = cast(Any, self.__wrapped__).__get__(instance)
        program: Jitted[..., Any] = Jitted(method, lower=self._lower, on_refusal=self._on_refusal, name=self._name)
        try:
            instance.__dict__[self._key] = _Bound(instance, program)
        except (AttributeError, TypeError):
            raise ArgumentTypeError(
                f"jit: {self._name} is a method of {type(instance).__name__}, whose instances have no __dict__ to keep "
                "recordings in; jit the bound method instead"
            ) from None
        return program

    def statistics(self) -> Statistics:
        """What this program has done so far: a snapshot of plain values."""
        with self._lock:
            cache = self._cache()
            return _statistics(cache) if cache is not None else Statistics.of_none(self._name)

    def _cache(self) -> Cache | None:
        """Its recordings; None where it has been switched off since it was made."""
        manager = self.__dict__.get("_manager")
        return manager.cache if manager is not None else None

    def explain(self) -> str:
        """Each key with its recordings, what they take and write, and every refusal and re-recording with its cause."""
        from treeplay.report.text import explanation

        return explanation(self.statistics(), is_on=settings.enabled)

    def reset(self) -> None:
        """Forget every recording; the next call is a first call."""
        with self._lock:
            if (cache := self._cache()) is not None:
                cache.reset()

    def sources(self) -> list[str]:
        """The generated functions of each recording, as text: what a call runs; for gradients, what they run too."""
        with self._lock:
            cache = self._cache()
            return [recording.source for entry in (cache.table if cache else ()) for recording in entry.recordings]

    def __repr__(self) -> str:
        return f"<treeplay.jit of {self._name}>"

    def __reduce__(self) -> Any:
        if _is_at_its_name(self):
            return cast(str, self.__qualname__)  # type: ignore[attr-defined]
        return _rejit, (self.__wrapped__, self._lower, self._on_refusal)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        import copy

        return _rejit(copy.deepcopy(self.__wrapped__, memo), self._lower, self._on_refusal)


def _is_at_its_name(program: Any) -> bool:
    """Whether `program` decorates a function of a module, and is found there under the function's own name."""
    found: Any = sys.modules.get(getattr(program, "__module__", ""))
    for name in getattr(program, "__qualname__", "<none>").split("."):
        found = getattr(found, name, None)
    return found is program


def _statistics(cache: Cache) -> Statistics:
    cache.settle()
    tally, plain = cache.tally, cache.table.all_plain_calls()
    return Statistics(
        program=cache.name,
        calls=tally.went + tally.eager.total() + tally.raised.total(),
        replays=tally.went - plain.total(),
        eager_calls=tally.eager.total(),
        recordings=tally.recordings,
        refusals=tally.refusals,
        dropped=tally.dropped,
        keys=tuple(_key_facts(entry) for entry in cache.table),
        not_replayed=dict(tally.eager + plain + tally.raised),
    )


def _key_facts(entry: Entry) -> KeyFacts:
    return KeyFacts(
        arguments=entry.label,
        phase=entry.phase.value,
        eager_calls=entry.eager_calls.total(),
        recordings=tuple(_recording_facts(recording) for recording in entry.recordings),
        refusal=str(entry.reason) if entry.reason is not None else None,
        rerecorded_because=tuple(entry.causes),
        errors=tuple(entry.errors),
        differs=entry.differs,
        not_replayed=dict(sum((recording.plain_calls() for recording in entry.recordings), entry.eager_calls)),
        rerecorded=entry.rerecordings,
    )


def _constants(signature: Signature) -> tuple[str, ...]:
    """What a recording depends on, but for numbers that are inputs."""
    numbers = tuple(str(number.place) for number in signature.numbers)
    lines = signature.guarded.shown() if signature.guarded is not None else ()
    return tuple(line for line in lines if not (numbers and line.partition(" = ")[0].endswith(numbers)))


def _recording_facts(recording: Recording) -> RecordingFacts:
    signature, launch = recording.signature, recording.launch()
    return RecordingFacts(
        kind=signature.kind.value,
        lowering=recording.lowering,
        plan=str(recording.plan),
        operators=recording.operators,
        tensors=len(signature.inputs),
        numbers=len(signature.numbers),
        written=len(signature.mutated),
        slots=len(signature.writes),
        outputs=signature.outputs,
        scratch_bytes=launch.scratch_bytes,
        replays=recording.replays,
        seconds=recording.seconds | launch.seconds,
        passed_over=recording.details.get("passed over", ()),
        backward=recording.details["backward"]() if "backward" in recording.details else None,
        launch=launch,
        guards=str(signature.guarded or ""),
        guarded=_constants(signature),
        effects=tuple(f"{effect.op} at {effect.where}" for effect in recording.effects),
        tier=recording.tier,
        worth=recording.worth,
        audits=recording.audit.count if recording.audit is not None else 0,
        not_replayed=dict(recording.plain_calls()),
    )


def _rejit(program: Any, lower: Lower, on_refusal: OnRefusal) -> Any:
    if isinstance(program, Jitted):  # a decorated method, found by its name
        return program
    return Jitted(program, lower=lower, on_refusal=on_refusal)
