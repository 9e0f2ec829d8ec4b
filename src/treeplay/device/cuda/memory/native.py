"""The functions of `addresses.c`, compiled when they are first wanted."""

from __future__ import annotations

import os
import subprocess
import tempfile
from ctypes import CDLL, c_int, c_size_t, c_uint32, c_uint64, c_void_p, cast
from functools import cache
from pathlib import Path

from treeplay.codegen.compiler import find_c_compiler
from treeplay.observe.events import log_event

_SOURCE = Path(__file__).with_name("addresses.c")
_MOST_SECONDS = 60


@cache
def functions() -> CDLL | None:
    """`use_range`, `range_next`, `take` and `give_back`; None on a machine without a C compiler. Takes a tenth of a second."""
    compiler = find_c_compiler()
    if compiler is None or os.name != "posix":
        return None
    with tempfile.TemporaryDirectory(prefix="treeplay-") as folder:
        path = Path(folder, "addresses.so")
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(path), str(_SOURCE)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_MOST_SECONDS)
            library = CDLL(str(path))
        except (OSError, subprocess.SubprocessError) as error:
            log_event("recordings", f"captures take memory of their own: {compiler} does not compile: {error}")
            return None
    pieces = (c_size_t, c_uint64) * 2
    library.use_range.argtypes = (c_uint64, c_uint64, *pieces, *(c_void_p,) * 4, c_uint32)
    library.use_range.restype = None
    library.range_next.restype = c_uint64
    library.take.argtypes = (c_size_t, c_int, c_void_p)
    library.take.restype = c_void_p
    return library


def address_of(library: CDLL, name: str) -> int:
    """Where a function of a library is."""
    return int(cast(getattr(library, name), c_void_p).value or 0)
