"""An exception that came out of a program while it was only looked at: whose it is, and from which line."""

from __future__ import annotations

import os
from pathlib import Path

from treeplay.errors import ProgramRaised
from treeplay.observe.lines import is_users
from treeplay.values.location import Location
from treeplay.values.refusal import Reason

_OURS = f"{Path(__file__).parents[1]}{os.sep}"


def program_raised(error: Exception, running: str = "running without data") -> ProgramRaised:
    """An exception that came out of a program while it was only looked at."""
    where, is_own, file = None, False, ""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        file = code.co_filename
        is_own = is_users(file)
        if is_own:
            where = Location(file, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    reason = Reason(
        op=type(error).__name__,
        why=f"{running} raised: {str(error).splitlines()[0] if str(error) else 'no message'}",
        advice="make the line independent of tensors' values, or keep this program eager",
        where=where,
    )
    # What torch does not implement for a kind of tensor, it does not for the program either.
    is_treeplays = file.startswith(_OURS) and not isinstance(error, NotImplementedError)
    return ProgramRaised(reason, error, is_own=is_own, is_treeplays=is_treeplays)
