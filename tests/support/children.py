"""What happens in a forked child."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def in_a_child(work: Callable[[], bool]) -> bool:
    """What `work` gives in a forked child, which may take some seconds."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
