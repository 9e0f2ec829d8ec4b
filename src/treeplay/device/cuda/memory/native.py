"""The functions of `addresses.c`, compiled when they are first wanted."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CDLL, PyDLL, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path

from treeplay.codegen.library import compile_library
from treeplay.observe.events import log_event

_SOURCE = Path(__file__).with_name("addresses.c")


@cache
def functions() -> CDLL | None:
    """Its functions; None on a machine without a C compiler. Takes a tenth of a second."""
    try:
        library = compile_library(_SOURCE)
    except OSError as error:
        log_event("recordings", f"captures take memory of their own: {error}")
        return None
    pieces = (c_size_t, c_uint64) * 2
    library.use_range.argtypes = (c_uint64, c_uint64, *pieces, *(c_void_p,) * 4, c_uint32)
    library.use_range.restype = None
    library.range_next.restype = c_uint64
    library.use_memory.argtypes = (*(c_uint64,) * 3, *(c_void_p,) * 6)
    library.use_memory.restype = None
    library.memory_end.restype = c_uint64
    for take in (library.take, library.take_memory):
        take.argtypes = (c_size_t, c_int, c_void_p)
        take.restype = c_void_p
    return library


@cache
def clear_stack() -> Callable[[], object]:
    """Its function of that name, which keeps Python's lock; one that does nothing on a machine without a C compiler."""
    library = functions()
    if library is None:
        return _nothing
    clear = PyDLL("", handle=library._handle).clear_stack
    clear.restype = None
    return clear


def _nothing() -> None:
    """Captures are right without it, and take longer to be compared."""
