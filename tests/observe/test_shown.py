"""Values are shown by a short text, whatever their classes do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from treeplay.observe.shown import ShownText, shown
from treeplay.torch_seam.patched import ABSENT
from treeplay.values.signature import Gone


class Holder:
    pass


def function() -> None:
    pass


@dataclass(frozen=True)
class Raising:
    number: int

    def __repr__(self) -> str:
        raise RuntimeError(self.number)


class RaisingNumber(int):
    def __repr__(self) -> str:
        raise RuntimeError


class NoAttributes:
    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


SHOWN: dict[str, tuple[Any, str]] = {
    "number": (1.5, "1.5"),
    "text": ("ab", "'ab'"),
    "long text": ("a" * 100, "'" + "a" * 56 + "..."),
    "nothing": (ABSENT, "nothing"),
    "text in the place of a value": (ShownText("3 items"), "3 items"),
    "removed entry": (Gone(), "gone"),
    "tensor": (torch.ones(2), "a tensor float32[2]"),
    "list": ([1, 2], "[1, 2]"),
    "long list": (list(range(9)), "a list of 9"),
    "list of objects": ([Holder()], "a list of 1"),
    "class": (Holder, "type Holder"),
    "function": (function, "function function"),
    "object": (Holder(), "this Holder"),
    "NumPy's": (np.float64(1.5), "1.5"),
    "one that raises": (Raising(2), "this Raising"),
    "list of one that raises": ([RaisingNumber(2)], "this list"),
    "number that raises": (RaisingNumber(2), "this RaisingNumber"),
    "object without attributes": (NoAttributes(), "this NoAttributes"),
}


@pytest.mark.parametrize(("value", "text"), SHOWN.values(), ids=SHOWN)
def test_values_are_shown_shortly(value: Any, text: str) -> None:
    assert text in shown(value) and len(shown(value)) < 80
