"""Symbolic numbers beside NumPy's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from treeplay.torch_seam.patched import ABSENT, stand_in


@contextlib.contextmanager
def numpy_asks(meet: Callable[..., Any]) -> Iterator[None]:
    """Where a number of NumPy's and a symbolic one meet, `meet(symbol, ufunc, method, *operands)` gives the result; NumPy
    alone would take the symbol for any object, and its own number for one of Python's of another precision."""
    with contextlib.ExitStack() as stack:
        for owner in (torch.SymFloat, torch.SymInt):
            stack.enter_context(_asks(owner, meet))
        yield


@contextlib.contextmanager
def _asks(owner: Any, meet: Callable[..., Any]) -> Iterator[None]:
    before = vars(owner).get("__array_ufunc__")

    def asked(*args: Any, **kwargs: Any) -> Any:
        return meet(*args, **kwargs)

    stand_in(asked, ABSENT if before is None else before)
    owner.__array_ufunc__ = asked
    try:
        yield
    finally:
        if before is None:
            del owner.__array_ufunc__
        else:
            owner.__array_ufunc__ = before
