"""Flat function → traced graphs and the facts that torch found, or a refusal with the user's line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from treeplay.errors import Refusal
from treeplay.facts.location import Location
from treeplay.facts.refusal import Reason
from treeplay.observe.lines import failed_call, user_location
from treeplay.wrap.aot import torch_private
from treeplay.wrap.aot.torch_private import Traced

_LEAF = "a leaf Variable that requires grad, or a view of one, is being used in an in-place operation"
_FLAGS = frozenset(("requires_grad_", "detach_", "share_memory_"))
_DUNDERS = frozenset(
    (
        "__setitem__",
        "__iadd__",
        "__isub__",
        "__imul__",
        "__itruediv__",
        "__ifloordiv__",
        "__imod__",
        "__ipow__",
        "__iand__",
        "__ior__",
        "__ixor__",
        "__ilshift__",
        "__irshift__",
        "__imatmul__",
        "__idiv__",
    )
)


@dataclass(slots=True)
class Seen:
    """What was noticed while the function ran for the trace.

    `again`: which results are one object with an earlier one; `touched`: arguments that were changed in place,
    if only for a while; `writes`: the operations that change a tensor in place, with the user's lines.
    """

    again: dict[int, int] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    writes: list[tuple[str, Location | None]] = field(default_factory=list)

    def line(self) -> Location | None:
        """The first line that changed a tensor in place, if any did."""
        return self.writes[0][1] if self.writes else None


class _Watch(TorchFunctionMode):
    """Notes the user's line of every call that changes a tensor in place."""

    def __init__(self, seen: Seen, inputs: Sequence[Any], leaves: Sequence[bool]) -> None:
        super().__init__()
        self.seen = seen
        self.inputs = [(k, value) for k, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        self.leaves = [value for value, is_leaf in zip(inputs, leaves, strict=True) if is_leaf]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if _is_in_place(name):
            where = user_location()
            self.seen.writes.append((name, where))
            if args and isinstance(args[0], torch.Tensor):
                self._touch(name, args[0], where)
        return func(*args, **(kwargs or {}))

    def _touch(self, name: str, target: torch.Tensor, where: Location | None) -> None:
        self.seen.touched.update(k for k, value in self.inputs if torch_private.shares_storage(target, value))
        is_tracked = torch.is_grad_enabled() and target.requires_grad and name not in _FLAGS
        # In a trace arguments are no leaves themselves, so autograd does not raise what it would in eager mode.
        if is_tracked and any(leaf is target or (target._is_view() and leaf is target._base) for leaf in self.leaves):
            raise refusal("write", f"{name}: {_LEAF}", where, "write to it under torch.no_grad()")


def _is_in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name in _DUNDERS


class _Module(torch.nn.Module):
    """A flat function in the form that torch traces, under watch."""

    def __init__(self, function: Callable[..., Any], seen: Seen, leaves: Sequence[bool]) -> None:
        super().__init__()
        self.leaves = leaves
        self.function = function
        self.seen = seen

    def forward(self, *inputs: Any) -> list[Any]:
        self.seen.writes.clear()
        self.seen.touched.clear()
        with _Watch(self.seen, inputs, self.leaves):
            results = list(self.function(*inputs))
        first: dict[int, int] = {}
        self.seen.again = {
            k: first[id(result)]
            for k, result in enumerate(results)
            if isinstance(result, torch.Tensor) and first.setdefault(id(result), k) != k
        }
        return results


@contextlib.contextmanager
def captured(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    decompositions: dict[Any, Any] | None,
    *,
    functional_random: bool = False,
) -> Iterator[tuple[Traced, Seen]]:
    """The traced function. What cannot be traced is a `Refusal`; what the caller's block raises passes through."""
    seen = Seen()
    with contextlib.ExitStack() as stack:
        try:
            module = _Module(function, seen, [is_leaf(value) for value in inputs])
            traced = stack.enter_context(
                torch_private.traced(module, inputs, decompositions, functional_random=functional_random)
            )
        except Refusal:
            raise
        except Exception as error:
            where = failed_call(error.__traceback__).where or seen.line()
            raise refusal("trace", f"{type(error).__name__}: {error}", where) from error
        yield traced, seen


def is_leaf(sample: Any) -> bool:
    """Whether an argument is a leaf that needs a gradient: then autograd sees no write to it."""
    return isinstance(sample, torch.Tensor) and sample.requires_grad and sample.is_leaf


def refusal(op: str, why: str, where: Location | None, advice: str = "run this function without treeplay") -> Refusal:
    """A refusal to wrap the function."""
    return Refusal(Reason(op, why, advice, where))
