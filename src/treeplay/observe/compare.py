"""Two results, however nested, compared leaf by leaf: are they equal, and if not, where and by which rule."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Literal

import torch

from treeplay.errors import ArgumentError
from treeplay.observe.leaf import Rules, has_rule, judge_leaf
from treeplay.values.verdict import LeafFailure, Rule, Verdict

_log = logging.getLogger("treeplay.compare")

_SEQUENCES = (list, tuple, deque, torch.nn.ParameterList)
_MAPPINGS = (Mapping, torch.nn.ParameterDict)


def same(
    ref: Any,
    res: Any,
    ref64: Any = None,
    *,
    tol: float | Literal["auto"] = 1e-4,
    exact_dtype: bool = True,
    equal_nan: bool = False,
    ignore_non_float: bool = False,
    stop_at_first: bool = False,
    on_message: Callable[[str], object] | None = None,
) -> Verdict:
    """Compare the result `res` with the reference `ref`; the verdict is true if they are equal.

    Sequences match by position whatever their kinds, dicts by keys, sets by equality, named tuples and
    dataclasses by field. Tensors must agree in shape and, with `exact_dtype`, in dtype (else the reference
    is cast). Floats are equal within `tol`, relative and absolute; "auto" takes what suits their precision.
    NaN equals NaN only with `equal_nan`. All else is compared exactly, or with `ignore_non_float` not at all.

    `ref64` is the reference computed in float64, nested like `ref` (None anywhere stands for "not known").
    With it, a float tensor that is not within `tol` passes too if its root mean squared error is at most
    2 times the reference's plus tol / 10. It is 3 times for half precision, below 1000 elements, for
    shapes (n, c, 1, 1), and from tol 0.02 on. Where `tol` is "auto", the absolute tolerance stands for it.

    Each failure goes to `on_message` as one line (to the error log if None); `stop_at_first` ends there.
    A difference never raises. Raises `ArgumentError` for an unusable `tol` or a `ref64` not nested like
    `ref`, `ArgumentTypeError` for tensors without data, and `UnsupportedLeafError` (a `RuntimeError`) for
    leaves of other types.
    """
    if tol != "auto" and not (isinstance(tol, (int, float)) and 0 <= tol < math.inf):
        raise ArgumentError(f'tol is "auto" or a finite number from 0 up, got {tol!r}')
    rules = Rules(tol, exact_dtype, equal_nan, ignore_non_float)
    walk = _CompareWalk(rules, stop_at_first=stop_at_first, on_message=on_message)
    with torch.no_grad():
        walk.visit(ref, res, ref64, "")
    return Verdict(tuple(walk.failures), walk.leaves, tuple(walk.hints))


class _CompareWalk:
    """Goes through reference, result and float64 reference in step, and gathers what is wrong."""

    def __init__(self, rules: Rules, *, stop_at_first: bool, on_message: Callable[[str], object] | None) -> None:
        self._rules = rules
        self._stops = stop_at_first
        self._on_message = on_message
        self._open: set[tuple[int, int]] = set()  # the containers we are inside of, so that cycles end
        self.failures: list[LeafFailure] = []
        self.hints: list[str] = []
        self.leaves = 0

    def visit(self, ref: Any, res: Any, ref64: Any, path: str) -> None:
        """Compare one value, leaf or container, at `path`."""
        if self._stops and self.failures:
            return
        ref, res, ref64 = _opened(ref), _opened(res), _opened(ref64)
        _check_float64(ref, ref64, path)
        kind, found = _kind(ref), _kind(res)
        if kind == found == "leaf":
            self._leaf(ref, res, ref64, path)
        elif kind != found:
            self._fail(path, "kind", f"expected {_titled(ref)}, found {_titled(res)}")
        elif kind == "set":
            if ref != res:
                self._fail(path, "set", f"expected {ref!r}, found {res!r}")
        elif (misfit := _misfit(ref, res)) is not None:
            self._fail(path, *misfit)
        else:
            self._children(ref, res, ref64, path)

    def _children(self, ref: Any, res: Any, ref64: Any, path: str) -> None:
        pair = id(ref), id(res)
        if pair in self._open:
            return
        self._open.add(pair)
        for step, key in _steps(ref, res):
            inner64 = None if ref64 is None else _at(ref64, key)
            self.visit(_at(ref, key), _at(res, key), inner64, path + step)
        self._open.remove(pair)

    def _leaf(self, ref: Any, res: Any, ref64: Any, path: str) -> None:
        self.leaves += 1
        failure = judge_leaf(ref, res, ref64, path=path, rules=self._rules, hint=self._hint(path))
        if failure is not None:
            self._say(failure)

    def _hint(self, path: str) -> Callable[[str], None]:
        def keep(text: str) -> None:
            hint = f"result{path}: {text}"
            self.hints.append(hint)
            (self._on_message or _log.warning)(hint)

        return keep

    def _fail(self, path: str, rule: Rule, reason: str) -> None:
        self._say(LeafFailure(path, rule, reason))

    def _say(self, failure: LeafFailure) -> None:
        self.failures.append(failure)
        (self._on_message or _log.error)(str(failure))


def _opened(value: Any) -> Any:
    """A nested tensor as the list of its tensors, each of its own shape; all else as it is."""
    return list(value.unbind()) if isinstance(value, torch.Tensor) and value.is_nested else value


def _kind(value: Any) -> str:
    if has_rule(value):
        return "leaf"
    if isinstance(value, _MAPPINGS):
        return "dict"
    if isinstance(value, _SEQUENCES):
        return "sequence"
    if isinstance(value, AbstractSet):
        return "set"
    return "dataclass" if dataclasses.is_dataclass(value) and not isinstance(value, type) else "leaf"


def _misfit(ref: Any, res: Any) -> tuple[Rule, str] | None:
    """Why two containers of one kind cannot be compared child by child, or None."""
    names, found = _field_names(ref), _field_names(res)
    is_by_field = names is not None and found is not None
    if is_by_field and (names, type(ref).__name__) != (found, type(res).__name__):
        return "kind", f"expected {_titled(ref)}, found {_titled(res)}"
    if isinstance(ref, _MAPPINGS):
        missing, extra = _ordered(set(ref) - set(res)), _ordered(set(res) - set(ref))
        return ("keys", f"missing {missing}, unexpected {extra}") if missing or extra else None
    if isinstance(ref, _SEQUENCES) and len(ref) != len(res):
        return "length", f"expected {len(ref)} items, found {len(res)}"
    return None


def _check_float64(ref: Any, ref64: Any, path: str) -> None:
    """Refuse a float64 reference of another structure: reading on would leave leaves unjudged."""
    if ref64 is None:
        return
    misfit = _misfit(ref, ref64) if _kind(ref) == _kind(ref64) else ("kind", f"found {_titled(ref64)}")
    if misfit is not None:
        raise ArgumentError(f"result{path}: the float64 reference is nested otherwise: {misfit[1]}")


def _steps(ref: Any, res: Any) -> Iterator[tuple[str, Any]]:
    """The children of `ref`: how the path goes on, and the position, key or field name."""
    names = _field_names(ref)
    if names is not None and _field_names(res) is not None:
        yield from ((f".{name}", _Field(name)) for name in names)
    elif isinstance(ref, _MAPPINGS):
        yield from ((f"[{_quoted(key)}]", key) for key in _ordered(ref))
    else:
        yield from ((f"[{index}]", index) for index in range(len(ref)))


class _Field(str):
    """The name of a field, as opposed to a key that is a string."""

    __slots__ = ()


def _at(container: Any, key: Any) -> Any:
    return getattr(container, key) if isinstance(key, _Field) else container[key]


def _field_names(value: Any) -> tuple[str, ...] | None:
    """The field names of a named tuple or a dataclass that is no other container, else None."""
    if isinstance(value, tuple):
        return getattr(value, "_fields", None)
    if _kind(value) == "dataclass":
        return tuple(field.name for field in dataclasses.fields(value))
    return None


def _ordered(keys: Iterable[Any]) -> list[Any]:
    """Keys in an order that does not hang on how the dict was filled: by type, and within a type by value."""
    by_type: dict[str, list[Any]] = {}
    for key in keys:
        by_type.setdefault(type(key).__qualname__, []).append(key)
    return [key for name in sorted(by_type) for key in _sorted(by_type[name])]


def _sorted(keys: list[Any]) -> list[Any]:
    try:
        return sorted(keys)
    except TypeError:
        return sorted(keys, key=repr)


def _quoted(key: Any) -> str:
    return '"' + key.replace('"', '\\"') + '"' if isinstance(key, str) else repr(key)


def _titled(value: Any) -> str:
    return f"a {type(value).__name__}" if not isinstance(value, torch.Tensor) else "a tensor"
