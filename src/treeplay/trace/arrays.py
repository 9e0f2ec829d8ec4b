"""NumPy arrays among the settings of a program: what a recording froze of one is compared on each call."""

from __future__ import annotations

import sys
from typing import Any


def is_array(value: Any) -> bool:
    """Whether `value` is an array of NumPy's."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


class ArrayContent:
    """An array, and what was in it."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self._before = self._now()

    @property
    def is_the_same(self) -> bool:
        """Whether there still is what was in it."""
        return self._now() == self._before

    def _now(self) -> tuple[Any, ...]:
        return self.array.dtype.str, self.array.shape, self.array.tobytes()
