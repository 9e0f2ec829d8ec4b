"""Which code ran: the code objects that a block executed in this thread, library code included, and which builtins it called.

Noted by the interpreter's own profiler, which costs some 50 ns an event and calls no Python. A profiler of the user's is set
aside for the block and put back.
"""

from __future__ import annotations

import cProfile
import sys
from types import CodeType
from typing import Any


class Ran:
    """Notes code between `start` and `stop`; `pause` and `resume` leave out what is ours."""

    def __init__(self) -> None:
        self._profile = cProfile.Profile(subcalls=True, builtins=True)
        self._theirs: Any = None
        self._is_on = False
        self.is_complete = True  # no: somebody else's profiler could not be set aside

    def start(self) -> None:
        """Begin to note; what a profiler of the user's would see from here on is lost to it."""
        self._theirs = sys.getprofile()
        self._set_aside()
        self.resume()

    def stop(self) -> None:
        """End it, and put the user's profiler back."""
        self.pause()
        theirs, self._theirs = self._theirs, None
        if isinstance(theirs, _Profiler):
            theirs.enable()
        elif theirs is not None:
            sys.setprofile(theirs)

    def pause(self) -> None:
        """Note nothing for a while."""
        if self._is_on:
            self._profile.disable()
            self._is_on = False

    def resume(self) -> None:
        """Go on noting."""
        if not self._is_on and self.is_complete:
            try:
                self._profile.enable()
            except ValueError:  # from Python 3.12 on there is one profiler at a time
                self.is_complete = False
            else:
                self._is_on = True

    def code(self) -> dict[int, CodeType]:
        """The code objects that ran, by `id`."""
        self.pause()
        entries: Any = self._profile.getstats()
        return {id(entry.code): entry.code for entry in entries if isinstance(entry.code, CodeType)}

    def builtins(self) -> dict[str, list[CodeType]]:
        """The builtin functions that were called, as `time.time`, each with the code that called it."""
        self.pause()
        entries: Any = self._profile.getstats()
        found: dict[str, list[CodeType]] = {}
        for entry in entries:
            for call in entry.calls or () if isinstance(entry.code, CodeType) else ():
                if isinstance(call.code, str) and call.code.startswith(_BUILTIN):
                    found.setdefault(call.code[len(_BUILTIN) : -1], []).append(entry.code)
        return found

    def _set_aside(self) -> None:
        if isinstance(self._theirs, _Profiler):
            self._theirs.disable()
        elif self._theirs is not None:
            sys.setprofile(None)


_BUILTIN = "<built-in method "
_Profiler: Any = cProfile.Profile.__mro__[1]  # what the interpreter knows as the profiler, in C
