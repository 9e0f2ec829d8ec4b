"""Symbolic numbers: what they were in the example that they came from, how they meet NumPy's, and how they are divided."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from sys import _getframe  # by name: modules are watched while this is called
from types import CodeType
from typing import Any

import torch

from treeplay.torch_seam.dynamo import skip_code
from treeplay.torch_seam.patched import ABSENT, Shared, all_wanted, stand_in

NAMES = {"math": math, "torch": torch}
"""What expressions of symbolic numbers, as Python, may name beside builtin functions."""


def has_symbols(values: Iterable[Any]) -> bool:
    """Whether any value is a symbolic number, or a tensor with one in its sizes, strides or offset."""
    return any(map(_is_symbolic, values))


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(
            isinstance(number, torch.SymInt) for number in (*value.size(), *value.stride(), value.storage_offset())
        )
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def example_of(number: Any) -> Any:
    """What a number of a graph was in the call that the graph was captured with; itself, where it depends on what tensors hold.
    Makes no guard of it."""
    return number.node.hint if isinstance(number, torch.SymInt) and number.node.has_hint() else number


def asks_for_value(error: BaseException | None) -> bool:
    """Whether an error came of the question what a number is of which that is not known."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # which imports sympy: half a second

    while error is not None and not isinstance(error, GuardOnDataDependentSymNode):
        error = error.__cause__
    return error is not None


def are_same(one: Sequence[int | torch.SymInt], other: Sequence[int | torch.SymInt]) -> bool:
    """Whether numbers are the same for whatever their symbols stand for. Makes no guard of it."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # which imports sympy: half a second

    return len(one) == len(other) and all(
        statically_known_true(mine == others) for mine, others in zip(one, other, strict=True)
    )


def has_example(value: Any) -> bool:
    """Whether that is known of a value: a tensor, for its sizes, or a whole number. It is not where a size depends on what
    tensors hold."""
    if isinstance(value, torch.Tensor):
        return all(map(has_example, (*value.size(), *value.stride(), value.storage_offset())))
    if isinstance(value, torch.SymInt):
        return bool(value.node.has_hint())
    return not isinstance(value, torch.SymFloat | torch.SymBool)


@contextlib.contextmanager
def numpy_asks(meet: Callable[..., Any]) -> Iterator[None]:
    """Where a number of NumPy's and a symbolic one meet, `meet(symbol, ufunc, method, *operands)` gives the result; NumPy
    alone would take the symbol for any object, and its own number for one of Python's of another precision."""
    with contextlib.ExitStack() as stack:
        for owner in (torch.SymFloat, torch.SymInt):
            stack.enter_context(_asks(owner, "__array_ufunc__", meet))
        yield


def integers_rounded(rounded: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """`round` of a symbolic integer gives `rounded(symbol, digits)`, and not the symbol whatever the digits."""
    return _asks(torch.SymInt, "__round__", rounded)


@contextlib.contextmanager
def methods_answer(methods: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Symbolic integers and floats have these methods, each of which is given the one that torch has there, or None."""
    with contextlib.ExitStack() as stack:
        for owner in (torch.SymFloat, torch.SymInt):
            for name, method in methods.items():
                stack.enter_context(_asks(owner, name, partial(method, vars(owner).get(name))))
        yield


@contextlib.contextmanager
def attributes_asked(answer: Callable[[Any, str, CodeType], Any]) -> Iterator[None]:
    """Attributes of a symbolic number, its `__class__` for `isinstance` and `match` too, are what `answer(symbol, name, code
    that asks)` gives; `ABSENT`: its own."""

    def ask(self: Any, name: str) -> Any:
        given = answer(self, name, _getframe(1).f_code)
        return object.__getattribute__(self, name) if given is ABSENT else given

    skip_code(ask.__code__, with_callees=True)  # Dynamo may be at work in another thread
    owners: tuple[Any, ...] = (torch.SymInt, torch.SymFloat, torch.SymBool)
    for owner in owners:
        stand_in(ask, ABSENT)
        owner.__getattribute__ = ask
    try:
        yield
    finally:
        for owner in owners:
            del owner.__getattribute__


def floats_divided(divide: Callable[[Any, Any], Any]) -> contextlib.AbstractContextManager[None]:
    """For a block in this thread, `a // b` of symbolic numbers, of which one is a float or meets one, gives `divide(a, b)`. Of
    itself torch gives the floor of the quotient, which is rounded: for 10 // 0.1 that is 100.0, and 99.0 in Python."""
    return all_wanted(_FLOOR_DIVISIONS, divide)


def divided_as_known(one: Any, other: Any) -> Any:
    """`one // other` of what they are in this trace, which is fixed by that."""
    return as_known(one) // as_known(other)


def as_known(number: Any) -> Any:
    """What a symbolic number is in this trace, which fixes it; another number as it is."""
    kind = {torch.SymFloat: float, torch.SymInt: int}.get(type(number))
    return number if kind is None else kind(number)


def _floor_division(divide_of: Callable[[Any, Any, Any], Any]) -> Callable[..., Callable[[Any, Any], Any]]:
    def make(original: Callable[[Any, Any], Any], wanted: Callable[[], Any]) -> Callable[[Any, Any], Any]:
        def floordiv(self: Any, other: Any) -> Any:
            divide = wanted()
            is_float = isinstance(self, torch.SymFloat) or isinstance(other, (float, torch.SymFloat))
            if divide is None or not is_float or not isinstance(other, (int, float, torch.SymInt, torch.SymFloat)):
                return original(self, other)
            return divide_of(divide, self, other)

        skip_code(floordiv.__code__, with_callees=True)  # Dynamo may be at work in another thread
        return floordiv

    return make


_FLOOR_DIVISIONS = [
    Shared(owner, name, _floor_division(divide_of))
    for owner in (torch.SymFloat, torch.SymInt)
    for name, divide_of in (
        ("__floordiv__", lambda divide, self, other: divide(self, other)),
        ("__rfloordiv__", lambda divide, self, other: divide(other, self)),
    )
]


def unlogged() -> contextlib.AbstractContextManager[None]:
    """For a block in this thread, torch logs nothing of what is computed with symbolic numbers: it would ask for the levels of
    loggers, which are none of the program's reads."""
    return _LOG.wanted()


class _LogOfOthers:
    """Torch's log of what is computed with symbolic numbers, of other threads alone."""

    def __init__(self, log: Any, is_wanted: Callable[[], bool]) -> None:
        self._log, self._is_wanted = log, is_wanted

    def debug(self, *message: Any) -> None:
        if not self._is_wanted():
            self._log.debug(*message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


_LOG = Shared("torch.fx.experimental.sym_node", "sym_node_log", _LogOfOthers)


@contextlib.contextmanager
def _asks(owner: Any, method: str, answer: Callable[..., Any]) -> Iterator[None]:
    before = vars(owner).get(method)

    def asked(*args: Any, **kwargs: Any) -> Any:
        return answer(*args, **kwargs)

    skip_code(asked.__code__, with_callees=True)  # Dynamo may be at work in another thread
    stand_in(asked, ABSENT if before is None else before)
    setattr(owner, method, asked)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, method)
        else:
            setattr(owner, method, before)
