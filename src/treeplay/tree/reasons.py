"""Why the manager runs a program as it is, or stops recording a key of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treeplay.errors import InternalError
from treeplay.trace.call import Call, home_of
from treeplay.tree.keys.key import passing
from treeplay.tree.table import Entry
from treeplay.values.location import Location
from treeplay.values.mismatch import Mismatch
from treeplay.values.refusal import Reason


def too_often(name: str, entry: Entry) -> Reason:
    """A key whose recordings keep being made anew, or that keeps changing before it has one."""
    what = "was recorded anew" if entry.was_recorded else "had changed since it was observed"
    return Reason(
        op="state",
        why=f"{name} {what} {entry.rerecordings} times, the last time because of {entry.causes[-1]}",
        advice="change tensors in place (p.copy_(...) under torch.no_grad()) instead of reassigning them, pass a number as an "
        "argument or keep it in a tensor (t.fill_(...)), or raise treeplay.settings.max_rerecordings",
        may_pass=True,  # as a warm-up is over at some time
    )


def not_faster(told: str) -> Reason:
    """A recording that takes no less than its program."""
    return Reason(
        op="recording",
        why=f"was not faster and went: {told}",
        advice="nothing needs to be done: calls run as they are, and it is tried again later; "
        "treeplay.settings.compare_with_eager = False keeps it",
    )


OF_FAKES = Reason(
    op="fake tensor",
    why="has no data to compute with, so calls with fake tensors among their arguments run eagerly",
    advice="pass tensors with data",
)


def broken_twice(error: InternalError) -> Reason:
    """An error of our own that came a second time."""
    return Reason(
        op="treeplay",
        why=f"an error of its own came twice: {str(error).splitlines()[0]}",
        advice="report it with its traceback, which treeplay.observe.internal_errors() gives; reset() tries again",
    )


def handles_errors(where: Location | None) -> Reason:
    """A program that goes on after an operator has failed, call for call."""
    return Reason(
        op="error",
        why="an operator fails on the values of many calls, which the program handles; a recording has the way without an "
        "error alone, so each of these calls was replayed for nothing",
        advice="decide with tensors (torch.where, cholesky_ex), or nothing: calls run as they are",
        where=where,
    )


def passing_object(program: Callable[..., Any], call: Call) -> Reason:
    """Arguments that are another object in each call."""
    return Reason(
        op=f"argument {passing(call)}",
        why="was another object in each call so far, and a recording is for the very object that it was made with, "
        "which the program may store, compare and read in any way",
        advice="pass what the program needs of it: tensors, numbers, strings, or a dataclass of them; or keep one object and "
        "change it",
        where=home_of(program),
    )


def under_mode(mode: str) -> Reason:
    """A mode of somebody else's around the call."""
    return Reason(
        op=mode,
        why="what it follows or checks inside of a program is not part of a recording, so calls under it run eagerly",
        advice="call it outside of this mode to have it replayed",
    )


def does_not_fit(broken: Mismatch | None) -> Reason:
    """A recording that does not fit the very call it was made for."""
    return Reason(
        op="recording",
        why=f"it does not fit the call it was made for: {broken or 'its arguments'}",
        advice="report this: it is a fault of treeplay's, not of the program",
    )
