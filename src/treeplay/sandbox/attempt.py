"""What a piece of work gives or raises, handed out of the block that catches it.

except Exception as error:     a program that ran in here would find `error` in `sys.exc_info()`, would raise it by a bare
    return program()           `raise`, and would have it in the `__context__` of whatever it raises itself
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def attempt(work: Callable[..., Any], *args: Any) -> tuple[Any, list[Exception]]:
    """What `work` gives for `args`, and no error; or None, and the one error that it raised.

    The list is there to be emptied: an error that goes on to the user holds the frames that it comes through, and a frame that
    held the error would keep both, with all tensors of the call, until garbage is collected."""
    try:
        return work(*args), []
    except Exception as error:
        return None, [error]
