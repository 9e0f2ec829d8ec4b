"""A callable that replays what was recorded of it, and runs the original where nothing recorded fits.

call ─▶ other mode, or inside of a capture ──────────────────────────▶ original
 └────▶ key of the keywords ─▶ contract ─▶ recording ─▶ replay
             └─ new: record      └─ broken: UsageError, or the original with on_mismatch="eager"
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

import torch

from treeplay.codegen import hide_from_dynamo
from treeplay.device.holders import register
from treeplay.device.host.recorder import is_recording
from treeplay.errors import InternalError, TreeplayError, UsageError
from treeplay.graphs.body import autocast_of
from treeplay.graphs.contract import NO_KEYWORDS, Keywords, take_keywords
from treeplay.graphs.guarded import checked_tensor, guard
from treeplay.graphs.node import PendingCall, ReplayedCall
from treeplay.graphs.order import ReplayRun
from treeplay.graphs.original import KeyState, Original
from treeplay.graphs.record import EagerBody
from treeplay.graphs.recorded import Outputs, RecordedBody, surface_of
from treeplay.locks import shared_lock
from treeplay.observe import counters, warn_once
from treeplay.observe.events import log_event
from treeplay.observe.internal import tell_internal
from treeplay.observe.lines import user_location
from treeplay.sandbox.boundary import Boundary
from treeplay.settings import settings
from treeplay.values.graph import CallableStatistics

KEPT_REASONS = 64
"""How many reasons for eager calls are told apart."""

OnMismatch = Literal["raise", "eager"]


class Record(Protocol):
    """Records a call with new constants. If it may fail, a body that cannot be captured gives an entry that says so."""

    def __call__(
        self, args: tuple[Any, ...], keywords: Keywords, kwargs: dict[str, Any], *, may_fail: bool
    ) -> KeyState: ...


class GraphedCallable:
    """Callable like the original. Owns its recordings, the least recently used of which goes first.

    As the `forward` of a module it is copied and pickled as the original: a copy has memory of its own.
    """

    def __init__(self, original: Original, record: Record, *, outputs: Outputs, on_mismatch: OnMismatch) -> None:
        # Without its attributes, which would become attributes of this object.
        functools.update_wrapper(self, original.function, updated=())
        self.original = original
        self._record = record
        self._outputs = outputs
        self._on_mismatch = on_mismatch
        self._entries: OrderedDict[Hashable, KeyState] = OrderedDict()
        # The question of the device alone: the one for all devices costs microseconds.
        on_cuda = original.modes.device.type == "cuda"
        self._is_capturing = torch.cuda.is_current_stream_capturing if on_cuda else is_recording
        self._lock = shared_lock()
        self._eager: Counter[str] = Counter()
        self._made = 0
        self._dropped = (0, 0)  # replays and copies of recordings that are gone
        register(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Replay if the call fits a recording; see the module's picture."""
        if self.original.is_in_other_mode():
            return self._run_eagerly("the training flag is another", args, kwargs)
        if self._is_capturing():
            return self._run_eagerly("called inside of a capture, which records it", args, kwargs)
        try:
            recorded, leaves = self._fitting(args, kwargs)
        except (UsageError, InternalError) as error:  # nothing has run for this call
            if self._on_mismatch == "raise":
                raise
            why = str(error)
            if isinstance(error, InternalError):
                tell_internal(error, self.original.label)
                why = f"an error of treeplay's own: {error}"
            recorded = EagerBody(why)
        if isinstance(recorded, EagerBody):
            return self._run_eagerly(recorded.reason, args, kwargs)
        return self._replay(recorded, leaves)

    def adopt(self, key: Hashable, entry: KeyState) -> None:
        """Take in what was recorded for `key`."""
        with self._lock:
            self._entries[key] = entry
            self._entries.move_to_end(key)
            self._made += 1
            while len(self._entries) > settings.max_recordings_per_program:
                self._drop(self._entries.popitem(last=False)[1])
        counters.add("graphed callables", "recordings")
        log_event("recordings", f"{self.original.label}: a graphed callable")
        if isinstance(entry.recorded, EagerBody):
            counters.add("graphed callables", "not recorded")
            warn_once(f"treeplay runs {self.original.label} unrecorded: {entry.recorded.reason}")

    def statistics(self) -> CallableStatistics:
        """What has happened so far."""
        with self._lock:
            recorded = [entry.recorded for entry in self._entries.values() if isinstance(entry.recorded, RecordedBody)]
            return CallableStatistics(
                label=self.original.label,
                recordings=self._made,
                kept=sum(entry.recorded is not None for entry in self._entries.values()),
                replays=self._dropped[0] + sum(item.calls for item in recorded),
                copied_tensors=self._dropped[1] + sum(item.copied for item in recorded),
                eager_calls=self._eager.total(),
                eager_because=tuple(self._eager.items()),
            )

    def reset(self) -> None:
        """Forget the recordings; the next call of each key records anew. A result that is yet to be differentiated keeps the
        recording that made it."""
        with self._lock:
            for key, entry in self._entries.items():
                self._drop(entry)
                self._entries[key] = replace(entry, recorded=None)

    def _drop(self, entry: KeyState) -> None:
        if isinstance(entry.recorded, RecordedBody):
            replays, copies = self._dropped
            self._dropped = (replays + entry.recorded.calls, copies + entry.recorded.copied)

    def _fitting(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[RecordedBody | EagerBody, list[Any]]:
        """The recording for a call and the call's tensors in its order; raises `UsageError` if none fits."""
        keywords = take_keywords(kwargs) if kwargs else NO_KEYWORDS
        entry = self._entries.get(keywords.key)
        if entry is None or entry.recorded is None:
            entry = self._record_now(args, keywords, kwargs)
        elif len(self._entries) > 1:
            with self._lock:
                if keywords.key in self._entries:  # another thread's call may have dropped it
                    self._entries.move_to_end(keywords.key)
        leaves = [checked_tensor(leaf) for leaf in entry.contract.gather(args, keywords.tensors)]
        entry.contract.check(leaves, with_gradients=torch.is_grad_enabled())
        self._check_state(entry)
        if entry.recorded is None:  # `reset` came in between
            return self._fitting(args, kwargs)
        if isinstance(entry.recorded, RecordedBody) and entry.recorded.forward.written:
            entry.contract.check_apart(leaves, entry.recorded.forward.written)
        if entry.roster.written:
            entry.contract.check_is_no_state(leaves, entry.roster.written)
        return entry.recorded, leaves

    def _record_now(self, args: tuple[Any, ...], keywords: Keywords, kwargs: dict[str, Any]) -> KeyState:
        with self._lock:
            known = self._entries.get(keywords.key)
            if known is not None and known.recorded is not None:  # another thread was faster
                return known
            first = next(iter(self._entries.values()))
            leaves = first.contract.gather(args, ())
            replace(first.contract, expected=first.contract.expected[: len(leaves)]).check(
                leaves, with_gradients=self.original.modes.has_gradients
            )
            self._check_state(first)
            with Boundary("recording a call", reasons=(TreeplayError,)):
                entry = self._record(args, keywords, kwargs, may_fail=self._on_mismatch == "eager")
            self.adopt(keywords.key, entry)
            return entry

    def _check_state(self, entry: KeyState) -> None:
        label, modes = self.original.label, self.original.modes
        if not entry.roster.is_unchanged():
            raise UsageError(
                f"{label} is not what was recorded: {entry.roster.difference()}. Wrap it again after such a change; new values "
                "in the same memory (load_state_dict, an optimizer's step) need none"
            )
        autocast = autocast_of(modes.device)
        if autocast is not None and autocast is not modes.autocast:
            raise UsageError(
                f"{label} is called under autocast to {autocast}, recorded with {modes.autocast or 'autocast off'}: wrap it "
                "under torch.autocast(..., cache_enabled=False)"
            )
        if not modes.has_gradients and torch.is_grad_enabled() and entry.needs_gradient:
            raise UsageError(
                f"{label} is called for gradients and was wrapped without: wrap it outside of torch.no_grad()"
            )

    def _replay(self, recorded: RecordedBody, leaves: list[Any]) -> Any:
        where = user_location() if self._outputs == "guard" else None
        call = PendingCall(recorded, leaves, where)
        with recorded.order.lock:
            if recorded.backward is not None and torch.is_grad_enabled():
                outputs = ReplayedCall.apply(call, *surface_of(recorded, leaves))  # type: ignore[no-untyped-call]
            elif torch.is_grad_enabled():
                with torch.no_grad():
                    outputs = call.run()
            else:
                outputs = call.run()
            if self._outputs == "guard":
                outputs = _guarded(call, outputs)
        packing = recorded.forward.packing
        return outputs[0] if packing.is_single else packing.pack(outputs)

    def _run_eagerly(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        line = reason.splitlines()[0]
        self._eager[line if line in self._eager or len(self._eager) < KEPT_REASONS else "other reasons"] += 1
        counters.add("graphed callables", "eager calls")
        return self.original.function(*args, **kwargs)

    def __reduce__(self) -> Any:
        module, function = self.original.module, self.original.function
        if module is not None and getattr(function, "__func__", None) is type(module).forward:
            return _forward_of, (module,)
        return _same, (function,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        make, given = self.__reduce__()
        return make(*copy.deepcopy(given, memo)) if make is _forward_of else self

    def __repr__(self) -> str:
        return f"<graphed {self.original.label}, {len(self._entries)} recordings>"


hide_from_dynamo(GraphedCallable.__call__, with_callees=True)


def original_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a graphed callable was made from; any other function as it is."""
    return function.original.function if isinstance(function, GraphedCallable) else function


def own_forward(module: torch.nn.Module) -> Callable[..., Any]:
    """A module's forward as it was before it was graphed, which does not keep the module."""
    method = original_of(module.forward)
    if getattr(method, "__self__", None) is not module:
        return method
    found, name = weakref.WeakMethod(method), type(module).__name__

    def forward(*args: Any, **kwargs: Any) -> Any:
        bound = found()
        if bound is None:
            raise UsageError(f"the forward of a {name} was called that is gone: keep the module, not its forward alone")
        return bound(*args, **kwargs)

    functools.update_wrapper(forward, method, updated=())
    forward.__wrapped__ = forward.__func__ = method.__func__  # type: ignore[attr-defined]
    forward.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    return forward


def _forward_of(module: torch.nn.Module) -> Callable[..., Any]:
    return types.MethodType(type(module).forward, module)


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _guarded(call: PendingCall, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    recorded = call.recorded
    ticket = recorded.output_ticket(call.time)
    run = ReplayRun(recorded.label, recorded.calls, where=call.where)
    return [guard(tensor, ticket, run, index) for index, tensor in enumerate(outputs)]
