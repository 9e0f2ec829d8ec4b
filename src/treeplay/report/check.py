"""`treeplay.check`: can a program be recorded, and if not, all that is in the way. Nothing is compiled and nothing is recorded.

program, arguments ─▶ run once eagerly, with a log ─▶ trace on fakes, on behind refusals ─▶ compare the two ─▶ CheckOutcome
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

from treeplay.backend.autograd.differentiable import trace_flat
from treeplay.errors import ArgumentTypeError, Refusal
from treeplay.record.differentiable import run_wrap
from treeplay.record.front import Front, run_front
from treeplay.trace.call import Call, call_of
from treeplay.trace.going_on import EagerReads
from treeplay.trace.observe import Log, observe
from treeplay.trace.traced import Trace
from treeplay.tree.keys.key import label_of, make_key
from treeplay.values.kinds import module_of
from treeplay.values.plan import Plan
from treeplay.values.refusal import Reason
from treeplay.values.signature import Kind


@dataclasses.dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The outcome of a check: either what would be recorded and how, or the reasons why not. True if it can be recorded."""

    call: Call
    traced: Trace | None = None
    plan: Plan | None = None
    reasons: tuple[Reason, ...] = ()
    backward: str | None = None  # of a differentiable program: what its backward gives

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        what = f"with {label_of(self.call)}" if self.call.leaves else "without arguments"
        if self.reasons:
            return "\n".join([f"cannot be recorded {what}", *map(str, self.reasons)])
        kind = self.traced.signature.kind.value if self.traced is not None else "program"
        effects = self.traced.effects if self.traced is not None else ()
        return "\n".join([f"can be recorded {what}: {kind}, {self.plan}", *map(str, effects)])


def check(program: Callable[..., Any], *args: Any, **kwargs: Any) -> CheckOutcome:
    """Say whether `program` can be recorded for calls like this one, and if not, all that can be found to be in the way.

    The program runs once eagerly, with all its effects, and is then traced on tensors without data. Behind a read on the host
    the trace goes on with what the eager run read there, and finds what comes after it. What the program raises is raised.

        print(treeplay.check(step, x, y))
    """
    if not callable(program):
        raise ArgumentTypeError(f"check: expected a callable or a module, found {type(program).__name__}")
    jitted: Any = program if is_jitted(program) else None  # it is checked as the plain program
    return examine(
        jitted.__wrapped__ if jitted is not None else program,
        call_of(args, kwargs, takes_arrays=True),
        lambda run: run(),
    )


def is_jitted(program: Any) -> bool:
    """Whether a program is jitted already: a function or method, or a module, whose class is derived from one of ours too."""
    return any(module_of(cls) in ("treeplay.program", "treeplay.module") for cls in type(program).__mro__)


def examine(program: Callable[..., Any], call: Call, running: Callable[[Callable[[], Any]], Any]) -> CheckOutcome:
    """Take a call through the stages up to the plan. `running` runs what it is given, which runs the program eagerly."""

    def run() -> Any:
        with reads:
            return observe(program, call)

    reads = EagerReads()
    try:
        make_key(call)
        _, log = running(run)
        if log.failure is not None:
            raise log.failure
        reads.log = log
        front = _front(program, call, log, reads)
        traced, plan, backward = front.traced, front.plan, None
        if traced.signature.kind is Kind.DIFFERENTIABLE:
            _, _, wrapped = run_wrap(program, call, front, trace_flat)
            backward = wrapped.backward().removeprefix("not asked for yet; ")
    except Refusal as refusal:
        return CheckOutcome(call, reasons=tuple(map(_without_callers, (refusal.reason, *refusal.others))))
    return CheckOutcome(call, traced=traced, plan=plan, backward=backward)


def _front(program: Callable[..., Any], call: Call, log: Log, reads: EagerReads) -> Front:
    """The stages up to the plan, with what the program counts as inputs."""
    while True:
        try:
            return run_front(program, call, log, {}, lower="auto", eager_reads=reads)
        except Refusal as refusal:
            counted = tuple(trail for trail in refusal.counted if trail not in call.state)
            if not counted:
                raise
            call = dataclasses.replace(call, state=(*call.state, *counted))


def _without_callers(reason: Reason) -> Reason:
    """`reason` without a line that is only our caller's: no line of the program was running, as in a bare nn.Module."""
    frame, callers = sys._getframe(1), set()
    while frame is not None:
        callers.add((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back  # type: ignore[assignment]
    if reason.where is not None and (reason.where.file, reason.where.function) in callers:
        return dataclasses.replace(reason, where=None)
    return reason
