"""Flat function → traced graphs and the facts that torch found, or a refusal with the user's line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from treeplay.errors import Refusal
from treeplay.observe.lines import failed_call, location_in, user_location
from treeplay.torch_seam import aot, fakes, flags, fx, tensors
from treeplay.torch_seam.aot import Traced
from treeplay.values.lists import one_by_one, writes_shared
from treeplay.values.location import Location
from treeplay.wrap.aot import in_place
from treeplay.wrap.aot.dropout import done_as_eager
from treeplay.wrap.aot.statistics import statistics_written

_LEAF = "a leaf Variable that requires grad, or a view of one, is being used in an in-place operation"
_REQUEST = re.compile(
    r"[^.\n]*\b(?:file an? |report (?:a |this )|open an? (?:issue|github))[^.\n]*(?:\.(?=\s|$)|$)", re.IGNORECASE
)
"""Where torch asks for a report: it is the user's program that it cannot trace."""
_KEEP = "return the tensor and read it after the call, or keep the computation in tensors (torch.where)"
_FLAGS = frozenset(("requires_grad_", "detach_", "share_memory_"))
SHAPES = frozenset(
    ("t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_", "resize_", "resize_as_")
)
"""What changes a tensor's shape in place."""
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


@dataclass(frozen=True, slots=True)
class TakenView:
    """A tensor at the end of a trace: its size, and the view steps that lead to it (None if it is made of other tensors)."""

    size: tuple[Any, ...]
    steps: list[Any] | None


@dataclass(slots=True)
class TraceFindings:
    """What was noticed while the function ran for the trace.

    `again`: which results are one object with an earlier one; `touched`: arguments that were changed in place,
    if only for a while; `versioned`: those of them whose version moves, as it does not for a write through `.data`, nor where a
    batch norm brings its statistics up to date;
    `grad_mode_after`: the grad mode that the function left, if another than it found; `reshaped_then_written`: what
    changed the shape of a tensor whose memory was written later; `writes`: the operations that
    change a tensor in place, with the user's lines; `reshaped`: arguments whose own shape was changed in place, if only for a
    while, with what they are in the end; `results`: all results, where there are such arguments; `rebased`: arguments to
    which the function gave another history, be it where gradients are off, as a custom function's `mark_dirty` does;
    `own`: which results are an argument itself, by result.
    """

    again: dict[int, int] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    versioned: set[int] = field(default_factory=set)
    writes: list[tuple[str, Location | None]] = field(default_factory=list)
    grad_mode_after: bool | None = None
    reshaped_then_written: tuple[str, Location | None] | None = None
    reshaped: dict[int, TakenView] = field(default_factory=dict)
    results: list[TakenView | None] = field(default_factory=list)
    rebased: set[int] = field(default_factory=set)
    own: dict[int, int] = field(default_factory=dict)

    def line(self) -> Location | None:
        """The first line that changed a tensor in place, if any did."""
        return self.writes[0][1] if self.writes else None

    def moves_version(self, argument: int) -> bool:
        """Whether autograd sees the writes to an argument."""
        return argument in self.versioned or argument not in self.touched


class _LineWatch(TorchFunctionMode):
    """Notes the user's line of every call that changes a tensor in place."""

    def __init__(
        self, seen: TraceFindings, inputs: Sequence[Any], leaves: Sequence[bool], names: Sequence[str]
    ) -> None:
        super().__init__()
        self.seen = seen
        self.names = names
        self.data: list[torch.Tensor] = []
        self.reshaped: list[tuple[torch.Tensor, tuple[str, Location | None]]] = []
        self.born: dict[int, tuple[torch.Tensor, Location | None]] = {}
        self.told: list[tuple[torch.Tensor, Location | None]] = []
        self.inputs = [(k, value) for k, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        self.leaves = [value for value, is_leaf in zip(inputs, leaves, strict=True) if is_leaf]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").partition(".")[0]  # of an operator without its overload
        if name == "__set__":
            self._refuse_setting(func)
        if name == "set_":
            self._refuse_replacing(args[0])
        if name == "requires_grad_" and not any(args[0] is value for _, value in self.inputs):
            self.told.append((args[0], user_location()))  # which is nobody's concern as long as it stays inside
        elif name == "detach_" and not any(tensors.shares_storage(args[0], value) for _, value in self.inputs):
            pass  # the trace's own tensor loses its history as the user's would
        elif _is_in_place(name):
            where = location_in(fx.stack_of_current_node()) or user_location()
            self.seen.writes.append((name, where))
            if args and isinstance(args[0], torch.Tensor):
                self._touch(name, args[0], where)
        kwargs = kwargs or {}
        written = statistics_written(func, args, kwargs)
        self.seen.touched |= {
            k for k, value in self.inputs if any(tensors.shares_storage(one, value) for one in written)
        }
        result = done_as_eager(func, args, kwargs)
        if result is None:
            self._refuse_failing(name, args, kwargs)
            written = in_place.written_by(args, kwargs, is_in_place=_is_in_place(name) and name not in SHAPES)
            self._refuse_enlarged(name, written)
            with in_place.lying_as_before(written):
                run = _run_list if name.startswith("_foreach_") and name.endswith("_") else _run
                result = in_place.viewed(name, args, run(func, args, kwargs))
        if kwargs and fakes.is_outgrown(kwargs.get("out")):
            why = "gives the tensor at `out` another size, which a trace does not follow"
            raise refusal(name or "out", why, user_location(), "make that tensor with the size of the result")
        if isinstance(result, torch.Tensor):
            self._note(func, args, result)
        return result

    def _refuse_failing(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        why = in_place.why_not(name, args, kwargs)
        if why is not None:
            raise refusal(
                name, f"fails when it runs: {why}", location_in(fx.stack_of_current_node()) or user_location()
            )

    def _refuse_enlarged(self, name: str, written: Sequence[torch.Tensor]) -> None:
        if any(map(in_place.is_enlarged, written)):
            where = location_in(fx.stack_of_current_node()) or user_location()
            raise refusal(name, "writes through an expanded view, which a trace does to rounding only", where)

    def _refuse_setting(self, func: Any) -> None:
        for name in ("data", "requires_grad"):
            if func.__self__ is getattr(torch.Tensor, name):
                raise refusal(name, "is set on a tensor, which a trace does not keep", user_location())

    def _refuse_replacing(self, target: Any) -> None:
        for k, value in self.inputs:
            if target is value or target is getattr(value, "elem", None):  # what a functional tensor is made of
                told = f"the storage of argument `{self.names[k]}` is replaced"
                advice = "copy the data into it, or run this function without treeplay"
                raise refusal("set_", told, user_location(), advice)

    def _note(self, func: Any, args: Sequence[Any], result: torch.Tensor) -> None:
        """Keep tensors that came through `.data`, views of them included, and leaves made inside."""
        is_data = func is torch.Tensor.data.__get__ or getattr(func, "__self__", None) is torch.Tensor.data  # type: ignore[attr-defined]
        if is_data or (self.data and any(arg is data for arg in args for data in self.data)):
            self.data.append(result)
        if result.requires_grad and result.is_leaf and not any(result is value for _, value in self.inputs):
            self.born[id(result)] = result, user_location()

    def refuse_leaves(self, results: Sequence[Any]) -> None:
        """A new leaf, or a view made under no_grad, would come out of the graph with a history."""
        for result in results:
            if id(result) in self.born and result.is_leaf:  # what a custom function made may have a history by now
                raise refusal("leaf", "a result needs a gradient and has no history", self.born[id(result)][1])
            for leaf, where in self.told:
                if isinstance(result, torch.Tensor) and tensors.shares_storage(result, leaf):
                    raise refusal(
                        "requires_grad_", "changes how autograd sees a result, which a trace does not keep", where
                    )

    def _touch(self, name: str, target: torch.Tensor, where: Location | None) -> None:
        if name in SHAPES:
            self.reshaped.append((target, (name, where)))
        elif self.seen.reshaped_then_written is None:
            self.seen.reshaped_then_written = next(
                (told for tensor, told in self.reshaped if tensors.shares_storage(target, tensor)), None
            )
        touched = {k for k, value in self.inputs if tensors.shares_storage(target, value)}
        self.seen.touched |= touched
        if not any(target is data for data in self.data):
            self.seen.versioned |= touched
        is_tracked = torch.is_grad_enabled() and target.requires_grad and name not in _FLAGS
        # In a trace arguments are no leaves themselves, so autograd does not raise what it would in eager mode.
        if is_tracked and any(leaf is target or (target._is_view() and leaf is target._base) for leaf in self.leaves):
            raise refusal("write", f"{name}: {_LEAF}", where, "write to it under torch.no_grad()")


def _history(value: Any) -> Any:
    return value.grad_fn if isinstance(value, torch.Tensor) else None


def _run(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


def _run_list(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Write the tensors of a list, one after the other where some share memory."""
    given = [*args, *kwargs.values()]
    if not isinstance(given[0], (list, tuple)) or not writes_shared(given, tensors.shares_storage):
        return func(*args, **kwargs)
    for one, named in one_by_one(args, kwargs):
        result = func(*one, **named)
    return result if result is None else given[0]


def _taken(tensor: torch.Tensor) -> TakenView:
    return TakenView(tuple(tensor.size()), fakes.view_steps(tensor))


def _is_in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name in _DUNDERS


class _WatchedFunction(torch.nn.Module):
    """A flat function in the form that torch traces, under watch. Modes are afterwards what they were."""

    def __init__(
        self,
        function: Callable[..., Any],
        seen: TraceFindings,
        leaves: Sequence[bool],
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.leaves = leaves
        object.__setattr__(self, "function", function)  # as a child module its parameters would be lifted by the trace
        self.seen = seen
        self.names = names if names is not None else [f"arg{k}" for k in range(len(leaves))]
        self.mode = torch.is_grad_enabled()

    def forward(self, *inputs: Any) -> list[Any]:
        self.seen.writes.clear()
        self.seen.touched.clear()
        self.seen.versioned.clear()
        self.seen.reshaped_then_written = None
        histories = [_history(value) for value in inputs]
        with _LineWatch(self.seen, inputs, self.leaves, self.names) as watch, _autocast_kept(), self._grad_mode_noted():
            function: Any = self.function
            results = list(function(*inputs))
            watch.refuse_leaves(results)
        self.seen.rebased |= {k for k, value in enumerate(inputs) if _history(value) is not histories[k]}
        self.seen.reshaped = {k: _taken(value) for k, value in enumerate(inputs) if fakes.is_reshaped(value)}
        self.seen.results = [
            _taken(result) if isinstance(result, torch.Tensor) and self.seen.reshaped else None for result in results
        ]
        places = {id(value): k for k, value in enumerate(inputs) if isinstance(value, torch.Tensor)}
        self.seen.own = {k: places[id(result)] for k, result in enumerate(results) if id(result) in places}
        first: dict[int, int] = {}
        self.seen.again = {
            k: first[id(result)]
            for k, result in enumerate(results)
            if isinstance(result, torch.Tensor) and first.setdefault(id(result), k) != k
        }
        return results

    @contextlib.contextmanager
    def _grad_mode_noted(self) -> Iterator[None]:
        before = torch.is_grad_enabled()
        try:
            yield
            if before == self.mode:  # torch runs a function again with gradients off, where none are needed
                after = torch.is_grad_enabled()
                self.seen.grad_mode_after = after if after != before else None
        finally:
            flags.set_grad_enabled(before)


@contextlib.contextmanager
def _autocast_kept() -> Iterator[None]:
    """Refuse a function that leaves another autocast state than it found, and put that back."""
    before = flags.autocast_state()
    try:
        yield
        if flags.autocast_state() != before:
            raise refusal("autocast", "the function leaves another autocast state than it found", user_location())
    finally:
        flags.set_autocast_state(before)


@contextlib.contextmanager
def captured(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    decompositions: dict[Any, Any] | None,
    *,
    writes_inside: bool | None = None,
    names: Sequence[str] | None = None,
) -> Iterator[tuple[Traced, TraceFindings]]:
    """The traced function; with `writes_inside` its graph does what writes it can itself.

    What cannot be traced is a `Refusal`; what the caller's block raises passes through."""
    seen = TraceFindings()
    with contextlib.ExitStack() as stack:
        try:
            module = _WatchedFunction(function, seen, [is_leaf(value) for value in inputs], names)
            traced = stack.enter_context(aot.traced(module, inputs, decompositions, writes_inside=writes_inside))
        except Refusal:
            raise
        except Exception as error:
            where = failed_call(error.__traceback__).where or location_in(str(error)) or seen.line()
            if isinstance(error, fakes.DataDependentOutputException):
                raise refusal(
                    "item", "reads a tensor's value on the host, which a compiled graph cannot", where, _KEEP
                ) from None
            what, _, _ = str(error).partition("\n\nWhile executing ")  # where a graph was run node by node
            raise refusal("trace", f"{type(error).__name__}: {_REQUEST.sub('', what).strip()}", where) from error
        yield traced, seen


def is_leaf(sample: Any) -> bool:
    """Whether an argument is a leaf that needs a gradient: then autograd sees no write to it."""
    return isinstance(sample, torch.Tensor) and sample.requires_grad and sample.is_leaf


def refusal(op: str, why: str, where: Location | None, advice: str = "run this function without treeplay") -> Refusal:
    """A refusal to wrap the function."""
    return Refusal.of(op, why, advice, where)
