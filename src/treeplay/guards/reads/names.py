"""The names that a piece of code uses: which globals it looks up, what it imports, which attributes it asks for.

Told by what an instruction does not do: every instruction with a name that is not one of an attribute counts as a look-up
among the globals, so that one which a newer Python adds is a read until it is known to be none.

What is said of code `within` holds of it and of the functions that it defines, and of theirs.
"""

from __future__ import annotations

import dis
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from types import CodeType

_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "LOAD_ATTR", "STORE_ATTR", "IMPORT_NAME"})
_STORES = frozenset({"STORE_GLOBAL", "STORE_NAME", "STORE_ATTR", "DELETE_GLOBAL", "DELETE_NAME", "DELETE_ATTR"})
_BETWEEN_NAMES = re.compile(r"[.{}\[\]!:]")  # in a string: of a way such as "a.b", or a format as "{0.a}"
_ATTRIBUTES = ("ATTR", "METHOD", "IMPORT_FROM", "SUPER")


@lru_cache(maxsize=8192)
def named_steps(code: CodeType) -> tuple[tuple[str, str], ...]:
    """The instructions of `code` itself that have a name, and the name. As `dis` finds them, in a tenth of the time: a large
    program has thousands of functions. A load of a method, which is called at once, is one everywhere (`LOAD_METHOD`)."""
    found, higher, raw = [], 0, code.co_code
    for at in range(0, len(raw), 2):
        opcode, arg = raw[at], raw[at + 1] | higher
        higher = arg << 8 if opcode == dis.EXTENDED_ARG else 0
        if opcode in _NAMED:
            opname = dis.opname[opcode]
            shift = _FLAGS.get(opname, 0)
            is_method = opname == "LOAD_ATTR" and shift and arg & 1
            found.append(("LOAD_METHOD" if is_method else opname, code.co_names[arg >> shift]))
    return tuple(found)


_NAMED = frozenset(dis.hasname)
# The bits behind the name's index, in which some instructions have more to say.
_FLAGS = {"LOAD_GLOBAL": 1} | ({"LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 2} if "LOAD_SUPER_ATTR" in dis.opmap else {})


@lru_cache(maxsize=8192)
def globals_in(code: CodeType) -> frozenset[str]:
    """Names that `code` itself may look up, assign or delete among its globals and the builtins."""
    return frozenset(
        name for opname, name in named_steps(code) if opname != "IMPORT_NAME" and not _is_of_attribute(opname)
    )


@lru_cache(maxsize=1024)
def steps_by_line(code: CodeType) -> dict[int, list[dis.Instruction]]:
    """The instructions of `code` itself, by the line that they are of."""
    found: dict[int, list[dis.Instruction]] = {}
    for step in dis.get_instructions(code):
        if step.positions is not None and step.positions.lineno is not None:
            found.setdefault(step.positions.lineno, []).append(step)
    return found


@lru_cache(maxsize=8192)
def asks_for_a_type(code: CodeType) -> bool:
    """Whether `code` itself uses `type`, but to ask its own object, `type(self)`, or to make one, `type(other)(...)`."""
    if "type" not in globals_in(code):
        return False
    steps = [*dis.get_instructions(code)]
    for before, step, after in zip(steps, steps[1:], steps[2:], strict=False):
        is_use = step.argval == "type" and step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        if is_use and after.argval != "self" and before.opname != "PUSH_NULL":
            return True
    return False


@lru_cache(maxsize=8192)
def imports_in(code: CodeType) -> frozenset[str]:
    """The modules that `code` itself imports, with the packages they are in; relative ones as they are written."""
    names = [name for opname, name in named_steps(code) if opname == "IMPORT_NAME"]
    return frozenset(name.rsplit(".", at)[0] for name in names for at in range(name.count(".") + 1))


@lru_cache(maxsize=8192)
def names_in(code: CodeType) -> frozenset[str]:
    """Every name in `code` itself, and each string in it that could be one."""
    strings = {part for text in code.co_consts if isinstance(text, str) for part in _BETWEEN_NAMES.split(text)}
    return frozenset(code.co_names) | {text for text in strings if text.isidentifier()}


@lru_cache(maxsize=8192)
def computes_names(code: CodeType) -> bool:
    """Whether `code` itself may ask for attributes whose names it does not spell out."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _IDLE]
    for at, step in enumerate(steps):
        is_named = step.opcode in dis.hasname and not _is_of_attribute(step.opname)
        if is_named and step.argval in ASKING and not (step.argval in _BY_NAME and _is_spelled_out(steps[at + 1 :])):
            return True
    return not ASKING.keys().isdisjoint({*code.co_freevars, *code.co_varnames})


@lru_cache(maxsize=8192)
def takes_tables(code: CodeType, *, of_self: bool = False) -> bool:
    """Whether `code` itself takes the `__dict__` of something, which may be a class, for more than an entry that it spells out.

    That of `self` is an object's, whose reads are noted; it counts if `of_self`."""
    if "__dict__" not in {*code.co_names, *code.co_consts}:
        return False
    steps = [*dis.get_instructions(code)]
    taken = [at for at, step in enumerate(steps) if step.argval == "__dict__"]
    return any(
        (of_self or steps[at - 1].argval != "self") and entry_taken(code, steps[at].offset) is None for at in taken
    )


@lru_cache(maxsize=8192)
def asks_its_own(code: CodeType) -> bool:
    """Whether `code` itself asks for `__getattribute__`, `__setattr__` and `__delattr__` of `super()` alone, or to call them
    with the object that it got as its first argument: then, as a method, it is its own object that it reads or changes."""
    steps = _steps_of_calls(code)
    for at, here in enumerate(steps):
        # Python 3.12 has one instruction for `super().name`; before that, `super` is called and the name is loaded.
        if here.argval in BEHIND and "SUPER" not in here.opname:
            before = steps[at - 1] if at else None
            is_of_super = at > 1 and before is not None and before.opname == "CALL" and before.arg == 0
            if not (is_of_super and steps[at - 2].argval == "super") and not _are_parameters(code, steps[at + 1 :], 1):
                return False
    return True


@lru_cache(maxsize=8192)
def _passes_on(code: CodeType) -> bool:
    """Whether a class's own `__getattribute__` or `__getattr__` asks the next one for the name that it was asked for, and for
    nothing else."""
    steps = _steps_of_calls(code)
    asking = [at for at, step in enumerate(steps) if step.argval == "__getattribute__"]
    is_kept = not any(
        step.opname in ("STORE_FAST", "DELETE_FAST") and step.argval == _name_asked(code) for step in steps
    )
    return is_kept and all(
        _are_parameters(code, steps[at + 1 :], 2) or _are_parameters(code, steps[at + 1 :], 1, first=1) for at in asking
    )


def _name_asked(code: CodeType) -> str | None:
    """The second parameter of a method."""
    return code.co_varnames[1] if code.co_argcount > 1 else None


def _are_parameters(code: CodeType, steps: list[dis.Instruction], count: int, *, first: int = 0) -> bool:
    """Whether the first instructions load so many of the function's parameters, from a `first` one on."""
    wanted = code.co_varnames[first : first + count]
    loads = [step.argval for step in steps[:count] if step.opname == "LOAD_FAST"]
    return code.co_argcount >= first + count and loads == [*wanted]


def _steps_of_calls(code: CodeType) -> list[dis.Instruction]:
    left_out = (*_IDLE, "PRECALL", "PUSH_NULL", "COPY_FREE_VARS")
    return [step for step in dis.get_instructions(code) if step.opname not in left_out]


@lru_cache(maxsize=1024)
def entry_taken(code: CodeType, at: int) -> str | None:
    """The one name that the instructions around a load of `__dict__` look up in it; None if they do anything else."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("PRECALL", "NOP")]
    here = next((index for index, step in enumerate(steps) if step.offset == at), None)
    if here is None or steps[here].argval != "__dict__":
        return None
    after = [*steps[here + 1 : here + 4], None, None, None]
    one, two, before = after[0], after[1], steps[here - 2] if here >= 2 else None
    if one is None or two is None:
        return None
    if one.opname == "LOAD_CONST" and isinstance(one.argval, str) and two.opname == "BINARY_SUBSCR":
        return one.argval
    if one.argval == "get" and two.opname == "LOAD_CONST" and isinstance(two.argval, str):
        return two.argval
    if one.opname == "CONTAINS_OP" and before is not None and isinstance(before.argval, str):
        is_constant = before.opname == "LOAD_CONST" and steps[here - 1].opname.startswith("LOAD_FAST")
        return before.argval if is_constant else None
    return None


BEHIND = frozenset({"__getattribute__", "__setattr__", "__delattr__"})
_IDLE = ("NOP", "EXTENDED_ARG", "RESUME")
_CALL = "PRECALL" if "PRECALL" in dis.opmap else "CALL"  # Python 3.11 has one before each CALL
_BY_NAME = frozenset({"getattr", "hasattr"})
ASKING = {function.__name__: function for function in (getattr, hasattr, vars, dir)}
"""What asks for attributes whose names the code that calls it need not spell out, by its name."""


def _is_spelled_out(steps: list[dis.Instruction]) -> bool:
    """Whether the second argument of a call is a constant, told by how deep the stack is while the arguments are put there."""
    depth, is_constant = 0, False
    for step in steps:
        if step.opname == _CALL and depth in (2, 3) and step.arg == depth:
            return is_constant
        # An argument that is chosen by a branch: the depth of the stack tells nothing then.
        if step.opcode in dis.hasjabs or step.opcode in dis.hasjrel:
            return False
        before, depth = (
            depth,
            depth + dis.stack_effect(step.opcode, step.arg if step.opcode >= dis.HAVE_ARGUMENT else None),
        )
        if depth <= 2:
            is_constant = (before, depth) == (1, 2) and step.opname == "LOAD_CONST" and isinstance(step.argval, str)
        if depth < 0:
            return False
    return False


def _is_of_attribute(opname: str) -> bool:
    return any(part in opname for part in _ATTRIBUTES)


# What a function names that reads or assigns attributes behind the back of a class.
_OF_A_CLASS = frozenset(
    {"__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__init__", "__new__", "__post_init__"}
)
NAMESPACES = frozenset(
    {"globals", "eval", "exec", "f_globals", "__globals__", "__builtins__", "currentframe", "_getframe"}
)


def goes_behind(code: CodeType) -> bool:
    """Whether a function asks for attributes in a way that the object's class is not told of. The methods that a class has
    for this pass it on to the next one, of attributes that were noted when they were called; constructors fill new objects."""
    if code.co_name in _OF_A_CLASS:
        return "__getattribute__" in code.co_names and not _passes_on(code)
    return not BEHIND.isdisjoint(code.co_names)


def inner_code(code: CodeType) -> Iterator[CodeType]:
    """The code of functions that are defined inside."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from inner_code(constant)


@lru_cache(maxsize=4096)
def globals_within(code: CodeType) -> frozenset[str]:
    """Names that `code`, or a function it defines, may look up, assign or delete among its globals and the builtins."""
    return _and_within(globals_within, code, globals_in(code))


@lru_cache(maxsize=4096)
def names_within(code: CodeType) -> frozenset[str]:
    """Every global, attribute and method name in `code` and in the functions it defines."""
    return _and_within(names_within, code, code.co_names)


@lru_cache(maxsize=4096)
def values_within(code: CodeType) -> frozenset[str]:
    """The names read or written as values, so that `opt.step()` does not count as a use of a number named `step`."""
    names = {name for opname, name in named_steps(code) if opname in _READS}
    return _and_within(values_within, code, names.union(code.co_freevars, code.co_cellvars))


_OF_VALUES = frozenset({"LOAD_ATTR", "IMPORT_FROM"})


@lru_cache(maxsize=4096)
def loaded_as_values(code: CodeType, names: frozenset[str]) -> frozenset[str]:
    """Of these names, those of attributes that `code`, or a function it defines, loads and does not call at once."""
    own: set[str] = set()
    # Most code that has such a name calls it, which takes no list of all instructions to see.
    if not names.isdisjoint(code.co_names) and any(
        opname in _OF_VALUES and name in names for opname, name in named_steps(code)
    ):
        steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
        own = {
            step.argval
            for before, step in itertools.pairwise(steps)
            if step.opname in _OF_VALUES and not is_for_a_call(before) and not is_for_a_call(step)
        }
    return _and_within(lambda inner: loaded_as_values(inner, names), code, own & names)


def is_for_a_call(step: dis.Instruction) -> bool:
    """Whether a load makes room for a call beside the function: the load of the function itself does so, or of its owner."""
    return bool(step.opname in ("LOAD_GLOBAL", "LOAD_ATTR") and (step.arg or 0) & _FLAGS.get(step.opname, 0))


@lru_cache(maxsize=4096)
def stores_within(code: CodeType) -> frozenset[str]:
    """The names of globals and attributes that `code`, or a function it defines, assigns or deletes."""
    stored = {name for opname, name in named_steps(code) if opname in _STORES}
    return _and_within(stores_within, code, stored)


@lru_cache(maxsize=4096)
def strings_within(code: CodeType) -> frozenset[str]:
    """The string constants of `code` and of the functions it defines: keys that it may look up."""
    return _and_within(strings_within, code, {constant for constant in code.co_consts if isinstance(constant, str)})


def _and_within(ask: Callable[[CodeType], frozenset[str]], code: CodeType, own: Iterable[str]) -> frozenset[str]:
    """What `ask` says of the functions that `code` defines, added to what is its own."""
    return frozenset(own).union(*(ask(inner) for inner in code.co_consts if isinstance(inner, CodeType)))
