"""Memory without tensors: what a program can read of a NumPy array, an `array`, a `bytearray` and the like."""

from __future__ import annotations

from typing import Any

from treeplay.values.same import exact_key


def held(value: Any) -> Any:
    """What is in it, as a value that can be compared."""
    if not hasattr(value, "dtype"):
        return bytes(value)
    if value.dtype.hasobject:
        return value.shape, exact_key(tuple(value.ravel().tolist()))
    # A masked array would fill in what is masked, by a number that it looks for and keeps.
    parts = [value.data, value.mask] if hasattr(value, "mask") else [value]
    return str(value.dtype), value.shape, value.strides, *(part.tobytes() for part in parts)
