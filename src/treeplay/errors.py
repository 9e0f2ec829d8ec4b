"""Everything treeplay raises, named by whose fault it is; each class also derives from the nearest builtin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

from treeplay.values.location import Location
from treeplay.values.refusal import Reason

if TYPE_CHECKING:  # it imports torch
    from treeplay.values.place import Trail


class TreeplayError(Exception):
    """Base of every error of this package."""


class ArgumentError(TreeplayError, ValueError):
    """A call of treeplay's own functions was given an argument it cannot use (the caller's to fix)."""


class ArgumentTypeError(TreeplayError, TypeError):
    """A call of treeplay's own functions was given an argument of a type it cannot use (the caller's to fix)."""


class Explained(TreeplayError, RuntimeError):
    """An error that carries its reason as a plain fact: what, where, why, and how to fix it."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason

    @classmethod
    def of(cls, op: str, why: str, advice: str, where: Location | None = None) -> Self:
        """One with the reason that has these fields."""
        return cls(Reason(op, why, advice, where))

    def at(self, where: Location | None) -> Self:
        """The error, at this line where it named none."""
        if self.reason.where is None:
            self.reason = replace(self.reason, where=where)
            self.args = (str(self.reason),)
        return self

    @property
    def op(self) -> str:
        """The operation that cannot be done."""
        return self.reason.op

    @property
    def where(self) -> Location | None:
        """The user's line, where it is known."""
        return self.reason.where

    @property
    def advice(self) -> str:
        """What to change so that it can."""
        return self.reason.advice


class Refusal(Explained):
    """A program cannot be recorded (the program's to fix).

    `reason` is the plain fact; `op`, `where` and `advice` are its fields. Raised with `on_refusal="raise"`;
    by default the program runs eagerly instead and the same text is warned once:

        @treeplay.jit(on_refusal="raise")
        def step(x):
            return x * x.sum().item()     # Refusal: item: reads a tensor's value on the host ...

    `others`: what else is in the way, where that was looked for (`treeplay.check`).
    """

    others: tuple[Reason, ...] = ()
    counted: tuple[Trail, ...] = ()
    """The ways to places of state where the program puts another number on each call. Nobody else sees this."""
    needed: tuple[Trail, ...] = ()
    """Those to numbers of state that were to be inputs, and whose values the program needs. Nobody else sees this."""
    is_of_other: bool = False
    """Whether the program is refused with plain numbers in the place of inputs, too. Nobody else sees this."""
    may_last: bool = False
    """Of one that is too early: whether all later calls may be so too, as where a cache drops in each call what the next one
    needs. Nobody else sees this."""


class TooEarly(Refusal):
    """This call cannot be recorded, and a later one can: it makes what the others will only change."""


class Differing(Refusal):
    """This call was given another number than the last one, which a recording would freeze. If that was a setting that
    somebody changed, a later call can be recorded; if it differs in each call, none can."""


class Unrecorded(Refusal):
    """A graph of `torch.compile` is not recorded, and its options demand that it is (`record_or_fail`)."""


class ProgramRaised(Refusal):
    """The program raised while it ran without data. Whether that is its own doing, only an eager run can tell.

    `error` is what it raised. `is_own`: its own code raised, not a torch function that it called; `is_treeplays`: code of
    treeplay's did, under what it called.
    """

    def __init__(self, reason: Reason, error: BaseException, *, is_own: bool, is_treeplays: bool) -> None:
        super().__init__(reason)
        self.error = error
        self.is_own = is_own
        self.is_treeplays = is_treeplays


class RanOtherwise(Refusal):
    """A program that is recorded as it runs did something else than when it was rehearsed. It has run: its effects have
    happened once, and `result` is what it returned."""

    def __init__(self, reason: Reason, result: object) -> None:
        super().__init__(reason)
        self.result = result


class TakenBack(TreeplayError, RuntimeError):
    """A replay raised, and everything is as it was before it: the call runs eagerly instead. Nobody else sees this."""


class DidNotPass(TreeplayError, ValueError):
    """Values did not pass the checks of a replayed program, which is taken back for that. Nobody else sees this."""


class NoNumber(TreeplayError, ArithmeticError):
    """Of the numbers of a call, Python computes none for a replay: a division by zero, say. Nothing has run: the call runs
    eagerly instead. Nobody else sees this."""


class StaleRecordingWarning(UserWarning):
    """A recording was replayed that its program had moved on from, by something that no guard can see; see `settings.audit`."""


class UsageError(TreeplayError, RuntimeError):
    """A function was called in a state, on a stream or in an order in which it cannot be (the caller's to fix)."""


class PatternChanged(UsageError):
    """A compiled function that writes to its arguments was called with arguments that share memory in another way than
    those it was compiled for, or with a parameter that needs a gradient only now. Nothing has run. `torch.compile` and
    `treeplay.jit` compile again by themselves."""


class CaptureFailed(Explained):
    """A capture was broken by what it contains (the program's to fix). Nothing of it has run.

    `reason` is the plain fact; `op`, `where` and `advice` are its fields:

        with treeplay.graphs.graph(g):
            x.sum().item()                # CaptureFailed: item: reads a tensor's value on the host ...
    """


class StaleOutput(TreeplayError, RuntimeError):
    """Memory of a recording was to be read after a later replay reused it (the caller's to fix: copy it in time)."""


class LoweringError(TreeplayError, RuntimeError):
    """A lowering cannot take a graph (ours or the compiler's to fix); another lowering is tried next."""


class InternalError(TreeplayError, RuntimeError):
    """A rule of treeplay's own is broken, or an exception that nobody expected was raised in treeplay (ours to fix: please
    report it with its traceback, which `treeplay.observe.internal_errors()` gives).

    By default the call it came in runs as it is, with one warning; `on_refusal="raise"` raises it instead.
    """

    text: str = ""  # with the traceback, once it has reached the user
