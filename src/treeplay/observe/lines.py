"""Finds the user's line: of what is running, and of what went wrong, with the call that stands there."""

from __future__ import annotations

import ast
import dataclasses
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType, TracebackType

import torch

from treeplay.values.location import Location

TORCH = os.path.dirname(torch.__file__) + os.sep
OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_OPTIM = f"{TORCH}optim"
_PLUMBING = tuple(
    TORCH + part
    for part in ("_compile.py", "_dynamo", "_ops.py", "overrides.py", "_tensor.py", "utils/_python_dispatch.py")
)
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_TEXT = "<string>"
_SITE = tuple({sysconfig.get_paths()["purelib"] + os.sep, sysconfig.get_paths()["platlib"] + os.sep})
# An environment may use packages of another one, of the user or of the system, whose folders nothing of this Python's tells.
_NAMES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_TYPING = f"{os.sep}typing_extensions.py"  # a part of the standard library that is installed apart: any import runs it


def _is_installed(file: str) -> bool:
    return file.startswith(_SITE) or any(name in file for name in _NAMES)


@lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether a source file is the user's or a third party's, not torch's, ours or the standard library's."""
    if file.startswith(("<frozen", "<treeplay", _TEXT, TORCH, OURS)):
        return False
    return not file.endswith(_TYPING) if _is_installed(file) else not file.startswith(_STDLIB)


@lru_cache(maxsize=4096)
def is_user_file(file: str) -> bool:
    """Whether a source file is the user's own, not that of an installed package."""
    return is_users(file) and not _is_installed(file)


def is_users_or_text(file: str) -> bool:
    """Whether code of this file may be the program's: the user's or a third party's, or text that was run, as by `python -c`.

    Text has no lines to show, and what dataclasses write is text too: as the place of a mistake, `is_users` leaves it out."""
    return file == _TEXT or is_users(file)


def is_own_or_text(file: str) -> bool:
    """Whether code of this file may be the user's own, not that of an installed package."""
    return file == _TEXT or is_user_file(file)


def _innermost(is_wanted: Callable[[str], bool]) -> FrameType | None:
    """The innermost frame that runs in a file of this kind."""
    # The frame that called whichever function here asks.
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not is_wanted(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_location() -> Location | None:
    """Where the user's program is right now, or None outside of it."""
    frame = _innermost(is_users)
    return None if frame is None else _place(frame.f_code, frame.f_lineno, frame.f_back)


def own_location() -> Location | None:
    """The innermost line of the user's own that is running."""
    return _own_line(sys._getframe(1))


def with_own_line(where: Location | None) -> Location | None:
    """A place in a library that is spoken of while the user's own line that led there is running."""
    if where is None or where.called_from is not None or is_user_file(where.file):
        return where
    return dataclasses.replace(where, called_from=own_location())


def _place(code: CodeType, line: int, caller: FrameType | None) -> Location:
    """A line, called from the frame `caller`."""
    called_from = _own_line(caller) if not is_user_file(code.co_filename) else None
    return Location(code.co_filename, line, code.co_name, called_from)


def _own_line(frame: FrameType | None) -> Location | None:
    """The innermost line of the user's own, from this frame outwards."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) if frame is not None else None


def innermost_is_optimizer() -> bool:
    """Whether the innermost frame outside of treeplay, and of what torch puts around everything, is one of `torch.optim`."""
    frame = _innermost(_is_of_program)
    return frame is not None and frame.f_code.co_filename.startswith(_OPTIM)


def call_site() -> tuple[str, int]:
    """File and line of the innermost Python code that asked for the running operator, torch's own code included."""
    frame = _innermost(_asks_for_operators)
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


@lru_cache(maxsize=4096)
def _is_of_program(file: str) -> bool:
    return file.startswith(_OPTIM) or not file.startswith((OURS, TORCH))


@lru_cache(maxsize=4096)
def _asks_for_operators(file: str) -> bool:
    return not file.startswith((OURS, "<treeplay", *_PLUMBING))


_FRAME = re.compile(r'File "(.+?)", line (\d+), in (\S+)')


def location_in(stack_trace: str | None) -> Location | None:
    """The innermost line of the user's in the text of a stack trace, as torch notes it at the nodes of a graph."""
    places = [Location(file, int(line), function) for file, line, function in _FRAME.findall(stack_trace or "")]
    where = next((place for place in reversed(places) if is_users(place.file)), None)
    if where is None or is_user_file(where.file):
        return where
    return dataclasses.replace(
        where, called_from=next((place for place in reversed(places) if is_user_file(place.file)), None)
    )


@dataclass(frozen=True, slots=True)
class CallSite:
    """What stands at a user's line: the name of what is called there, the line, and the source of the expression.

    `x.sum().item()` has the name `item`. Without a call there, or without source, the name is None.
    """

    name: str | None
    where: Location | None
    source: str

    def keyword(self, name: str) -> str | None:
        """The source of a keyword argument of the call: `torch.rand(3, generator=mine)` has a generator `mine`."""
        tree = _parsed(self.source)
        keywords = tree.keywords if isinstance(tree, ast.Call) else []
        return next((ast.unparse(item.value) for item in keywords if item.arg == name), None)


def running_call() -> CallSite:
    """The call at the innermost line of the user's that is running."""
    frame = _innermost(is_users)
    if frame is None:
        return CallSite(None, None, "")
    return _call(frame.f_code, frame.f_lasti, _place(frame.f_code, frame.f_lineno, frame.f_back))


def failed_call(trace: TracebackType | None) -> CallSite:
    """The call at the innermost line of the user's in a traceback."""
    found: TracebackType | None = None
    own = _own_line(trace.tb_frame.f_back) if trace is not None else None
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(code.co_filename):
            found = trace
        if is_user_file(code.co_filename):
            own = Location(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    if found is None:
        return CallSite(None, None, "")
    code = found.tb_frame.f_code
    called_from = own if not is_user_file(code.co_filename) else None
    return _call(code, found.tb_lasti, Location(code.co_filename, found.tb_lineno, code.co_name, called_from))


_Positions = tuple[int | None, int | None, int | None, int | None]


def _call(code: CodeType, instruction: int, where: Location) -> CallSite:
    # `f_lasti` counts bytes, of which each instruction has two.
    positions = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    source = _segment(code.co_filename, positions) or where.source
    return CallSite(_called(source), where, source)


def _segment(file: str, positions: _Positions) -> str:
    """The source of the expression at these positions; empty where they are not known."""
    first, last, start, end = positions
    if first is None or last is None or start is None or end is None:
        return ""
    lines = [linecache.getline(file, number).encode() for number in range(first, last + 1)]
    lines[-1] = lines[-1][:end]  # columns count bytes
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace").strip()


def _called(source: str) -> str | None:
    match _parsed(source):
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name
        case ast.Subscript():
            return "indexing"
    return None


def _parsed(source: str) -> ast.expr | None:
    try:
        return ast.parse(source, mode="eval").body
    except SyntaxError:
        return None
