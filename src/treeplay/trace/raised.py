"""An exception that came out of a program while it was only looked at: whose it is, and from which line."""

from __future__ import annotations

import traceback

from treeplay.errors import ProgramRaised
from treeplay.observe.lines import OURS, failed_call, is_users
from treeplay.values.refusal import Reason

_ANY = "make the line independent of tensors' values, or keep this program eager"
_WITHOUT_FAKE = 'register one, with the operator\'s register_fake, or record without a trace: lower="capture"'


def program_raised(error: BaseException, running: str = "running without data") -> ProgramRaised:
    """An exception that came out of a program while it was only looked at."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    file = files[-1] if files else ""
    reason = Reason(
        op=type(error).__name__,
        why=f"{running} raised: {str(error).splitlines()[0] if str(error) else 'no message'}",
        advice=_WITHOUT_FAKE if "no fake impl" in str(error) else _ANY,
        where=failed_call(error.__traceback__).where,
    )
    # What torch does not implement for a kind of tensor, it does not for the program either.
    is_treeplays = file.startswith(OURS) and not isinstance(error, NotImplementedError)
    return ProgramRaised(reason, error, is_own=is_users(file), is_treeplays=is_treeplays)
