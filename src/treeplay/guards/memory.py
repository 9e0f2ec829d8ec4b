"""Memory without objects of Python's: what a program can read of a NumPy array, an `array`, a `bytearray`, a `StringIO` and the
like, and of the attributes of a scripted module."""

from __future__ import annotations

import io
from typing import Any

from treeplay.torch_seam.scripts import ScriptModule, attributes_of
from treeplay.values.kinds import is_a
from treeplay.values.same import exact_key

BUFFERS = (io.StringIO, io.BytesIO)


def held(value: Any) -> Any:
    """What is in it, as a value that can be compared."""
    if is_a(value, BUFFERS):
        return None if value.closed else (buffer_content(value), buffer_class(value).tell(value))
    if is_a(value, ScriptModule):
        return exact_key(_frozen(attributes_of(value)))
    if not hasattr(value, "dtype"):
        return bytes(value)
    if value.dtype.hasobject:
        return value.shape, exact_key(tuple(value.ravel().tolist()))
    # A masked array would fill in what is masked, by a number that it looks for and keeps.
    parts = [value.data, value.mask] if hasattr(value, "mask") else [value]
    layout = str(value.dtype), value.shape, value.strides, value.flags.writeable
    return *layout, *(part.tobytes() for part in parts)


def size_of(value: Any) -> int:
    """How many bytes there are of it, or characters."""
    if is_a(value, BUFFERS):
        return len(buffer_content(value) or "")
    size: int | None = getattr(value, "nbytes", None)
    return len(bytes(value)) if size is None else size


def _frozen(value: Any) -> Any:
    """A copy, where TorchScript makes lists and dictionaries anew, as a value."""
    if type(value) is dict:
        return dict, *((key, _frozen(entry)) for key, entry in value.items())
    return (type(value), *map(_frozen, value)) if type(value) in (list, tuple) else value


def buffer_content(buffer: Any) -> Any:
    """All that is in a `StringIO` or `BytesIO`, whatever a class that is derived from it makes of its methods."""
    return None if buffer.closed else buffer_class(buffer).getvalue(buffer)


def buffer_class(buffer: Any) -> Any:
    """The class of Python's own that a buffer is of."""
    return io.StringIO if is_a(buffer, io.StringIO) else io.BytesIO
