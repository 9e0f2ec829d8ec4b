"""Reads: which attributes of which objects a block read and assigned, by watching the reads themselves.

For the block, the classes of objects in reach have a `__getattribute__` and a `__setattr__` that note the name and go on to
what was there before, and Python modules are of a class that does so. Whatever asks for an attribute passes there:
instructions, `getattr` with a computed name, `vars`, `hasattr`, `attrgetter`, `copy`, C code (`hooks`). So what was not
noted was not read. Objects of classes that cannot be changed (those of extensions) are not watched: all of them counts as read.

`read.__dict__` is a read of all attributes, unless the instruction after it takes one entry by a constant name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from sys import _getframe  # by name: modules are watched while these are called
from threading import get_ident
from types import CodeType, ModuleType
from typing import Any

from treeplay.guards.entries import entry_of
from treeplay.guards.reads.hooks import Hook, ReadHooks, put_modules_back, send_to, take_out, watch_modules
from treeplay.guards.reads.machinery import is_of_a_patch, is_of_a_trace
from treeplay.guards.reads.names import entry_taken, names_in
from treeplay.guards.reads.ran import noting
from treeplay.observe.lines import is_users_or_text, user_location
from treeplay.sandbox.collection import without_callbacks
from treeplay.sandbox.signal_handlers import signal_handlers
from treeplay.sandbox.teardown import Teardown
from treeplay.torch_seam.flags import ConfigModule, is_setting
from treeplay.values.kinds import is_a, module_of, table_of
from treeplay.values.location import Location

WHOLE = "__dict__"
"""Stands among the names read of an object for all of them."""

# C code that goes on to read everything.
_WHOLE_BY = frozenset({"__getstate__", "__reduce__", "__reduce_ex__", "__dir__"})
_MODULES_ON_THE_WAY = ("torch._library.simple_registry",)


class ObjectReads:
    """What was read and assigned of one object: names in the order of their first use."""

    __slots__ = ("assigned", "object", "patched", "read", "stored_at", "was_empty")

    def __init__(self, value: Any) -> None:
        self.object = value
        self.read: dict[str, None] = {}
        self.assigned: dict[str, Any] = {}  # with what was there before the first time
        self.stored_at: dict[str, Location | None] = {}  # of those assigned, the user's line
        # Of torch's settings: the patches that are to put each back, the innermost last.
        self.patched: dict[str, list[int]] = {}
        self.was_empty = table_of(value) == {}  # when it was first met: it was just made, as a rule

    def note_patch(self, name: str, patch: int, *, begins: bool) -> None:
        """A patch sets a setting, or puts it back. One that ends before another that began in it stays, as its end does: what
        those two leave is not what was there before."""
        under_way = self.patched.setdefault(name, [])
        if not begins and under_way[-1:] == [patch]:
            under_way.pop()
        else:
            under_way.append(patch)


class Reads:
    """A context: inside it, this thread's reads and stores of attributes are noted, and the code that runs."""

    def __init__(
        self, classes: Iterable[type], modules: Iterable[ModuleType] = (), standing: ReadHooks | None = None
    ) -> None:
        self.objects: dict[int, ObjectReads] = {}
        self.code: dict[int, CodeType] | None = {}  # None: not known, so that any may have run
        self.builtins: dict[str, list[CodeType]] = {}  # builtin functions that were called, with their callers
        self.methods: set[str] = set()  # of classes in C, as `Random.random`, that were called
        self.messages: set[str] = set()  # the methods of loggers that were given a message and took it
        self.watched: set[type] = set()
        self._hooks = [hooks for hooks in (standing, ReadHooks(classes)) if hooks is not None]
        self._changed: list[Hook] = []
        self._modules: list[ModuleType] = []
        self._further = list(modules)  # which may be among those that are loaded
        self._watched_modules: set[int] = set()
        self._quiet = ExitStack()  # from what runs at any moment, and is none of the program's
        self._ran = noting()
        self._thread = 0
        # Told of what the program's own code is about to be given by a module, under which name, and of the code.
        self.meets: Callable[[ModuleType, str, CodeType], None] | None = None
        self.is_noting = False  # whether what runs now counts as the program

    def __enter__(self) -> Reads:
        self._thread = get_ident()
        try:
            for hooks in self._hooks:
                self.watched |= hooks.put_in(self._changed)
            watch_modules(self._further, self._modules)
            self._watched_modules = {*map(id, self._modules)}
        except BaseException:
            self._put_back()
            raise
        self._quiet.enter_context(without_callbacks())
        self._quiet.enter_context(signal_handlers.apart())
        self._ran.start()
        self.is_noting = True
        _watching.append(self)
        _tell_innermost()
        return self

    def __exit__(self, *_: Any) -> None:
        self.is_noting = False
        _watching.remove(self)
        _tell_innermost()
        steps = Teardown()
        steps.add("putting classes and modules back", self._put_back)
        steps.add("putting the collector's callbacks and handlers of signals back", self._quiet.close)
        steps.add("leaving the interpreter's events", self._ran.stop)
        steps.finish()
        self.objects = {
            key: noted
            for key, noted in self.objects.items()
            if module_of(type(noted.object)) not in _MODULES_ON_THE_WAY
        }
        for noted in self.objects.values():  # what a patch has left may be what was there
            noted.read |= {name: None for name, under_way in noted.patched.items() if under_way}
        self.code = None
        if self._ran.is_complete:
            self.code = {key: code for key, code in self._ran.code().items() if not is_of_a_trace(code)}
            for name, callers in self._ran.builtins().items():
                own = [code for code in callers if not is_of_a_trace(code)]
                if own:
                    self.builtins[name] = own
            self.methods = self._ran.methods()
            self.messages = self._ran.messages()

    @property
    def ran(self) -> Collection[CodeType]:
        """The code that ran, as far as it is known."""
        return (self.code or {}).values()

    def may_have_run(self, test: Callable[[CodeType], bool]) -> bool:
        """Whether `test` holds of some code that ran, or what ran is not known."""
        return self.code is None or any(map(test, self.ran))

    def all_names(self) -> set[str]:
        """The names of attributes that were read, and every name in the code that ran."""
        return {name for noted in self.objects.values() for name in noted.read}.union(*map(names_in, self.ran))

    def pause(self) -> bool:
        """Note nothing until `resume`; tells whether it noted before."""
        was_on = self.is_noting
        if was_on and get_ident() == self._thread:
            self.is_noting = False
            _tell_innermost()
            self._ran.pause()
            return True
        return False

    def resume(self) -> None:
        """Go on noting, after a `pause` that said it had."""
        self.is_noting = True
        _tell_innermost()
        self._ran.resume()

    def is_watched(self, value: Any) -> bool:
        """Whether every read of an attribute of `value` was noted."""
        cls = type(value)
        return id(value) in self._watched_modules if cls is ModuleType else cls in self.watched

    def names(self, value: Any, *, also_assigned: bool = False) -> dict[str, None]:
        """The attributes of `value` that were read, or only assigned."""
        noted = self.objects.get(id(value))
        if noted is None:
            return {}
        return {**noted.read, **dict.fromkeys(noted.assigned)} if also_assigned else noted.read

    def forget(self, but: Iterable[Any] = ()) -> None:
        """Drop the objects that were met, but for some, and all that attributes held before."""
        known = {id(value) for value in but}
        self.objects = {key: noted for key, noted in self.objects.items() if key in known}
        for noted in self.objects.values():
            noted.assigned = dict.fromkeys(noted.assigned)

    # --- noting ---------------------------------------------------------------------------------------------

    def _noted(self, value: Any) -> ObjectReads:
        noted = self.objects.get(id(value))
        if noted is None:
            noted = self.objects[id(value)] = ObjectReads(value)
        return noted

    def note(self, value: Any, name: str) -> None:
        """`value` was asked for `name`, by the code two frames below."""
        known = self.objects.get(id(value))
        if known is not None and name in known.read:  # nearly all reads are such
            return
        if not self.is_noting or signal_handlers.is_running or get_ident() != self._thread:
            return
        frame = _getframe(2)
        if is_of_a_trace(frame.f_code):
            return
        if name == WHOLE:
            # `dis`, which looks at the instructions, is not run by the program.
            self.pause()
            name = entry_taken(frame.f_code, frame.f_lasti) or WHOLE
            self.resume()
        elif name in _WHOLE_BY:
            name = WHOLE
        noted = self._noted(value)
        # What a program reads after it has assigned it is its own, unless a patch has put back what was there before.
        if name not in noted.assigned or noted.patched.get(name) == []:
            noted.read[name] = None
            if self.meets is not None and is_a(value, ModuleType) and is_users_or_text(frame.f_code.co_filename):
                self.pause()
                try:
                    self.meets(value, name, frame.f_code)
                finally:
                    self.resume()

    def states_set(self) -> int:
        """How often the program has given random generators of torch's a state so far."""
        return self._ran.states_set()

    def note_store(self, value: Any, name: str) -> None:
        """`name` of `value` will be assigned or deleted, by the code two frames below."""
        if self.is_noting and not signal_handlers.is_running and get_ident() == self._thread:
            frame = _getframe(2)
            code = frame.f_code
            if is_a(value, ModuleType) and is_of_a_trace(code):  # an import
                return
            is_of_settings = is_a(value, ConfigModule)
            if is_of_settings and not is_setting(value, name):  # what such a module notes of itself
                return
            noted = self._noted(value)
            if name not in noted.assigned:
                noted.assigned[name], noted.stored_at[name] = entry_of(value, name), user_location()
            if is_of_settings and is_of_a_patch(code):
                noted.note_patch(name, id(frame.f_locals["self"]), begins=code.co_name == "__enter__")
            elif is_of_settings:  # it may be set to what it is
                noted.read[name] = None

    # --- classes and modules ----------------------------------------------------------------------------------

    def _put_back(self) -> None:
        modules, self._modules = self._modules, []
        changed, self._changed = self._changed[::-1], []
        steps = Teardown()
        steps.add("putting classes back", lambda: take_out(changed))
        steps.add("putting modules back", lambda: put_modules_back(modules))
        steps.finish()


_watching: list[Reads] = []  # the innermost last; one thread traces at a time


def _tell_innermost() -> None:
    """Have the innermost be told, unless it is in a pause: nearly all reads of a trace are made in one."""
    send_to(_watching[-1] if _watching and _watching[-1].is_noting else None)
