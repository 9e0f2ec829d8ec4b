"""Which code ran: the code objects that a block executed in this thread, library code included, and which builtins it called.

Noted by the interpreter itself: by `sys.monitoring` where there is one (Python 3.12), else by its profiler, which calls no
Python. A profiler of the user's is set aside for the block and put back.
"""

from __future__ import annotations

import cProfile
import logging
import re
import sys
from threading import get_ident
from types import BuiltinFunctionType, CodeType, MethodDescriptorType
from typing import Any, Protocol

import torch

from treeplay.guards.reads.machinery import is_of_a_trace
from treeplay.sandbox.signal_handlers import InFront, signal_handlers

_BASES = type.__dict__["__mro__"].__get__  # past metaclasses, which may be the user's
_NAMESPACE = type.__dict__["__dict__"].__get__


class RanCode(Protocol):
    """Notes code between `start` and `stop`; `pause` and `resume` leave out what is ours."""

    is_complete: bool
    """Not where somebody else's tool could not be set aside, or the profiler failed: then nobody knows what ran."""

    def start(self) -> None:
        """Begin to note, in this thread, but for what handlers of signals run."""

    def stop(self) -> None:
        """End it."""

    def pause(self) -> None:
        """Note nothing for a while."""

    def resume(self) -> None:
        """Go on noting."""

    def code(self) -> dict[int, CodeType]:
        """The code objects that ran, by `id`."""

    def builtins(self) -> dict[str, list[CodeType]]:
        """The builtin functions that were called, as `time.time`, each with the code that called it."""

    def methods(self) -> set[str]:
        """The methods of classes in C that were called, as `Random.random`."""

    def messages(self) -> set[str]:
        """The methods of loggers that were given a message and took it, as `info`."""

    def states_set(self) -> int:
        """How often random generators of torch's were given a state so far."""


def noting() -> RanCode:
    """What notes code in this version of Python."""
    return _Monitored() if hasattr(sys, "monitoring") else _Profiled()


class _Profiled:
    """By the profiler, some 50 ns an event."""

    def __init__(self) -> None:
        self._profile = cProfile.Profile(subcalls=True, builtins=True)
        self._entries: list[Any] = []  # once it has stopped
        self._theirs: Any = None
        self._is_on = False
        self.is_complete = True

    def start(self) -> None:
        self._theirs = sys.getprofile()
        if self._theirs is not None and not callable(self._theirs) and not isinstance(self._theirs, _Profiler):
            self._theirs, self.is_complete = None, False  # in C, as torch's is: nobody could put it back
            return
        if isinstance(self._theirs, _Profiler):
            self._theirs.disable()
        elif self._theirs is not None:
            sys.setprofile(None)
        self.resume()

    def stop(self) -> None:
        self.pause()
        theirs, self._theirs = self._theirs, None
        try:
            self._entries = _without_handlers(self._profile.getstats())
        except MemoryError:  # so it calls whatever was raised while it noted something, as by a signal's handler
            self.is_complete = False
        if theirs is not None:
            theirs.enable() if isinstance(theirs, _Profiler) else sys.setprofile(theirs)

    def pause(self) -> None:
        if self._is_on:
            self._profile.disable()
            self._is_on = False

    def resume(self) -> None:
        if not self._is_on and self.is_complete:
            self._profile.enable()
            self._is_on = True

    def code(self) -> dict[int, CodeType]:
        return {id(entry.code): entry.code for entry in self._entries if isinstance(entry.code, CodeType)}

    def builtins(self) -> dict[str, list[CodeType]]:
        found: dict[str, list[CodeType]] = {}
        calls: dict[str, int] = {}
        for entry in self._entries:
            for call in entry.calls or () if isinstance(entry.code, CodeType) else ():
                if isinstance(call.code, str) and call.code.startswith(_BUILTIN):
                    found.setdefault(call.code[len(_BUILTIN) : -1], []).append(entry.code)
                    calls[call.code] = calls.get(call.code, 0) + call.callcount
        # After a pause the profiler does not know the frames that it was paused in: what they called has no caller.
        everyone = list(self.code().values())
        for entry in self._entries:
            is_builtin = isinstance(entry.code, str) and entry.code.startswith(_BUILTIN)
            if is_builtin and entry.callcount > calls.get(entry.code, 0):
                found.setdefault(entry.code[len(_BUILTIN) : -1], []).extend(everyone)
        return found

    def methods(self) -> set[str]:
        found = (_METHOD.match(entry.code) for entry in self._entries if isinstance(entry.code, str))
        return {f"{match[2].rpartition('.')[2]}.{match[1]}" for match in found if match is not None}

    def messages(self) -> set[str]:
        ran = (entry for entry in self._entries if isinstance(entry.code, CodeType))
        took = (entry for entry in ran if any(call.code is _PASSES_ON for call in entry.calls or ()))
        return {entry.code.co_name for entry in took if entry.code in _TAKES_MESSAGES}

    def states_set(self) -> int:
        try:
            entries = self._profile.getstats()
        except MemoryError:  # as in `stop`
            self.is_complete = False
            return 0
        return sum(entry.callcount for entry in entries if entry.code in _SETS_A_STATE)


class _Monitored:
    """By `sys.monitoring`, which tells of every thread: of ours, each function is noted once, and its calls of builtins."""

    def __init__(self) -> None:
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
        self._code: dict[int, CodeType] = {}
        # Of builtins, by `id`: to compare code is to compare its constants.
        self._callers: dict[str, dict[int, CodeType]] = {}
        self._methods: set[str] = set()
        self._known: dict[tuple[int, str], type] = {}  # of which `_methods` tells, by the `id` of the class
        self._messages: set[str] = set()
        self._states_set = 0
        self._thread = 0
        self._is_on = False
        self.is_complete = True

    def start(self) -> None:
        monitoring, events = self._monitoring, self._monitoring.events
        self._thread = get_ident()
        try:
            monitoring.use_tool_id(_TOOL, "treeplay")
        except ValueError:  # another tool has the number
            self.is_complete = False
            return
        monitoring.register_callback(_TOOL, events.PY_START, self._on_start)
        monitoring.register_callback(_TOOL, events.CALL, self._on_call)
        self._is_on = True
        monitoring.set_events(_TOOL, events.PY_START)
        monitoring.restart_events()  # of code that was noted before, and was not to be told of again

    def stop(self) -> None:
        self._is_on = False
        if not self.is_complete:
            return
        monitoring, events = self._monitoring, self._monitoring.events
        # Each by itself: to free the number takes back neither events nor callbacks.
        monitoring.set_events(_TOOL, 0)
        for code in self._code.values():
            monitoring.set_local_events(_TOOL, code, 0)
        monitoring.register_callback(_TOOL, events.PY_START, None)
        monitoring.register_callback(_TOOL, events.CALL, None)
        monitoring.free_tool_id(_TOOL)

    def pause(self) -> None:
        self._is_on = False

    def resume(self) -> None:
        self._is_on = True

    def code(self) -> dict[int, CodeType]:
        return dict(self._code)

    def builtins(self) -> dict[str, list[CodeType]]:
        return {name: list(callers.values()) for name, callers in self._callers.items()}

    def methods(self) -> set[str]:
        return self._methods

    def messages(self) -> set[str]:
        return self._messages

    def states_set(self) -> int:
        return self._states_set

    def _on_start(self, code: CodeType, _: int) -> Any:
        if not self._is_on or signal_handlers.is_running or get_ident() != self._thread:
            return None
        if code is _PASSES_ON:  # by a call with `**`, of which Python 3.12 tells nothing
            caller = sys._getframe(1).f_back
            self._messages |= {caller.f_code.co_name} if caller is not None else set()
        if id(code) not in self._code and not is_of_a_trace(code):
            self._code[id(code)] = code
            self._monitoring.set_local_events(_TOOL, code, self._monitoring.events.CALL)
        return self._monitoring.DISABLE if code is not _PASSES_ON else None  # once is enough

    def _on_call(self, code: CodeType, _: int, function: object, __: object) -> None:
        if not self._is_on or signal_handlers.is_running or get_ident() != self._thread:
            return
        if type(function) is MethodDescriptorType:
            self._note_method(function.__objclass__, function.__name__)
        elif type(function) is BuiltinFunctionType:
            self._note_method(type(function.__self__), function.__name__)
            module = getattr(function, "__module__", None)
            name = f"{module}.{function.__name__}" if isinstance(module, str) else function.__name__
            self._callers.setdefault(name, {})[id(code)] = code

    def _note_method(self, cls: type, name: str) -> None:
        """Of the class that has the method: an object of a class derived from `Random` draws by `Random.random`."""
        self._states_set += cls is _GENERATOR and name in _SETTERS
        if (id(cls), name) not in self._known:
            self._known[id(cls), name] = cls
            owner = next((base for base in _BASES(cls) if name in _NAMESPACE(base)), cls)
            self._methods.add(f"{owner.__name__}.{name}")


def _without_handlers(entries: list[Any]) -> list[Any]:
    """The profile without what handlers of signals called, and nobody else."""
    waiting = [entry for entry in entries if entry.code is _HANDLES]
    if not waiting:  # as a rule
        return entries
    by_id, gone = {id(entry.code): entry for entry in entries}, {id(_HANDLES)}
    calls = {key: entry.callcount for key, entry in by_id.items()}
    while waiting:
        for call in waiting.pop().calls or ():
            key = id(call.code)
            calls[key] = calls.get(key, 0) - call.callcount
            if not calls[key] and key in by_id and key not in gone:
                gone.add(key)
                waiting.append(by_id[key])
    return [entry for entry in entries if id(entry.code) not in gone]


_HANDLES = InFront.__call__.__code__
_TOOL = 4  # one of the numbers that Python gives to nobody
_BUILTIN = "<built-in method "
_PASSES_ON = logging.Logger._log.__code__
_TAKES_MESSAGES = frozenset(
    getattr(logging.Logger, name).__code__ for name in ("debug", "info", "warning", "error", "critical", "log")
)
_GENERATOR = torch.Generator  # by name: modules are watched while code is noted
_SETTERS = ("set_state", "graphsafe_set_state", "manual_seed", "seed")
_SETS_A_STATE = frozenset(f"<method '{name}' of 'torch._C.Generator' objects>" for name in _SETTERS)
_METHOD = re.compile(r"<method '(\w+)' of '([\w.]+)' objects>")
_Profiler: Any = cProfile.Profile.__mro__[1]  # what the interpreter knows as the profiler, in C
