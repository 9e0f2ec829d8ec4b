"""A value as a short text, for telling what differs: whatever its class does when it is asked for one."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

from treeplay.torch_seam.patched import ABSENT
from treeplay.torch_seam.tensors import has_strides, spec_of
from treeplay.values.kinds import PLAIN, is_a
from treeplay.values.same import is_value
from treeplay.values.signature import Gone

_CONTAINERS = (list, tuple, set, dict)
_MOST = 60  # characters


class ShownText:
    """A text in the place of a value, such as a container's content that has changed as a whole."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


_WORDS = (ShownText, Gone, type(ABSENT))


def shown(value: Any) -> str:
    """A value as a short text; never a tensor's numbers, which would wait for its device."""
    try:
        return _shown(value)
    except Exception:  # of a `__repr__` or a `__getattr__` of the user's
        return f"this {type(value).__name__}"


def _shown(value: Any) -> str:
    if is_a(value, torch.Tensor):
        return f"a tensor {spec_of(value)}" if has_strides(value) else f"a {value.layout} tensor"
    if is_a(value, (*PLAIN, *_WORDS)):
        text = repr(value)
        return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."
    if type(value) in _CONTAINERS and len(value) <= 8:
        items = value.values() if type(value) is dict else value
        text = repr(value) if all(is_a(item, PLAIN) for item in items) else ""
        if 0 < len(text) <= _MOST:
            return text
    if is_a(value, _CONTAINERS):
        return f"a {type(value).__name__} of {len(value)}"
    if is_value(value) and not is_a(value, (type, FunctionType)):
        return repr(value)[:_MOST]
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return f"{type(value).__name__} {name}" if isinstance(name, str) else f"this {type(value).__name__}"
