"""An exception that came out of a program while it was only looked at: whose it is, and from which line."""

from __future__ import annotations

import traceback
from contextlib import suppress
from types import TracebackType

from treeplay.errors import ProgramRaised, Refusal
from treeplay.observe.lines import OURS, failed_call, is_users
from treeplay.sandbox.boundary import is_users_own, mark_users_own
from treeplay.sandbox.signal_handlers import signal_handlers
from treeplay.trace.turn import Busy
from treeplay.values.refusal import Reason

_ANY = "make the line independent of tensors' values, or keep this program eager"
_OTHER = "use other operators there, or keep this line outside of the program"
_OWN_RULE = 'put right what register_fake was given for it, or record without a trace: lower="capture"'
_WITHOUT_FAKE = 'register one, with the operator\'s register_fake, or record without a trace: lower="capture"'
_RULE = "_treeplay_rule_of"


def of_rule(error: Exception, operator: str) -> None:
    """Note that an exception comes from torch's rule for an operator on tensors without data."""
    with suppress(AttributeError):  # of a class without attributes
        setattr(error, _RULE, operator)


class SignalCheck:
    """A block that runs a program which is only looked at. If the handler of a signal raises in it, the run is worth nothing:
    what the program makes of that is for its caller if it is an exception, else the call is to run as it is (`Busy`).

    A class, since what it runs is none of the program's, and code of the standard library would count as that."""

    def __enter__(self) -> None:
        self._since = signal_handlers.raised

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if signal_handlers.raised == self._since:
            return
        if error is None or isinstance(error, Refusal):
            raise Busy from error
        mark_users_own(error)


def program_raised(error: BaseException, running: str = "running without data") -> ProgramRaised:
    """An exception that came out of a program while it was only looked at. One that the handler of a signal raised, or that
    came of it, goes on its way from here."""
    if is_users_own(error):
        raise error
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    file = files[-1] if files else ""
    op, what, advice = (
        type(error).__name__,
        f"{running} raised",
        _WITHOUT_FAKE if "no fake impl" in str(error) else _ANY,
    )
    if rule := getattr(error, _RULE, None):
        what = f"torch cannot tell the shape of its result without data. It raised {op}"
        op, advice = rule, _OWN_RULE if "." in rule else _OTHER  # torch's own have no namespace
    reason = Reason(
        op=op,
        why=f"{what}: {str(error).splitlines()[0] if str(error) else 'no message'}",
        advice=advice,
        where=failed_call(error.__traceback__).where,
    )
    # What torch does not implement for a kind of tensor, it does not for the program either.
    is_treeplays = file.startswith(OURS) and not isinstance(error, NotImplementedError)
    return ProgramRaised(reason, error, is_own=is_users(file), is_treeplays=is_treeplays)
