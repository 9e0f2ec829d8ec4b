"""The watch over a function that is traced: it sees each call of a torch function, notes what it changes, and refuses what a
graph would lose.

The user's line of every call that changes a tensor in place is noted, with the arguments that it touches. What a trace does not
keep (setting `.data`, replacing a storage, a result that becomes a leaf) is refused there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from treeplay.observe.lines import location_in, user_location
from treeplay.torch_seam import fakes, fx, tensors
from treeplay.torch_seam.schemas import leaves_of
from treeplay.trace.run.whole import kept_whole
from treeplay.values.lists import one_by_one, writes_shared
from treeplay.values.location import Location
from treeplay.wrap.aot.plan.overlap import is_folded
from treeplay.wrap.aot.tracing import in_place
from treeplay.wrap.aot.tracing.dropout import done_as_eager, in_eagers_order
from treeplay.wrap.aot.tracing.findings import TraceFindings, refusal_to_wrap
from treeplay.wrap.aot.tracing.through_data import ThroughData

_LEAF = "a leaf Variable that requires grad, or a view of one, is being used in an in-place operation"
_FLAGS = frozenset(("requires_grad_", "detach_", "share_memory_"))
SHAPES = frozenset(
    ("t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_", "resize_", "resize_as_")
)
"""What changes a tensor's shape in place."""
_FOLDS = frozenset(("as_strided", "as_strided_", "unfold"))
"""What may give a view in which elements share memory, besides `expand`."""
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

_BATCH_NORMS = {
    torch.nn.functional.batch_norm: ("input", "running_mean", "running_var", "weight", "bias", "training"),
    torch.batch_norm: ("input", "weight", "bias", "running_mean", "running_var", "training"),
    torch.native_batch_norm: ("input", "weight", "bias", "running_mean", "running_var", "training"),
}


class LineWatch(TorchFunctionMode):
    """Notes the user's line of every call that changes a tensor in place. `is_exact`: operators are those that eager calls."""

    def __init__(
        self,
        seen: TraceFindings,
        inputs: Sequence[Any],
        leaves: Sequence[bool],
        names: Sequence[str],
        *,
        is_exact: bool = False,
    ) -> None:
        super().__init__()
        self.seen = seen
        self.is_exact = is_exact
        self.names = names
        self.data = ThroughData()
        self.reshaped: list[tuple[torch.Tensor, tuple[str, Location | None]]] = []
        self.born: dict[int, tuple[torch.Tensor, Location | None]] = {}
        self.told: list[tuple[torch.Tensor, Location | None]] = []
        self.inputs = [(k, value) for k, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        self.folded = [value for _, value in self.inputs if is_folded(value)]
        self.leaves = [value for value, is_leaf in zip(inputs, leaves, strict=True) if is_leaf]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").partition(".")[0]  # of an operator without its overload
        kwargs = kwargs or {}
        if _is_in_place(name) and not args:  # what is written is given by name
            args, kwargs = _first_of(kwargs)
        if name == "__set__" and func.__self__ is torch.Tensor.requires_grad:
            func, name = torch.Tensor.requires_grad_, "requires_grad_"  # which is the same
        if name == "__set__":
            self._refuse_setting(func)
        if name == "set_":
            self._refuse_replacing(args[0])
        if name == "requires_grad_" and not any(args[0] is value for _, value in self.inputs):
            self.told.append((args[0], user_location()))  # which is nobody's concern as long as it stays inside
        elif name == "detach_" and not any(tensors.shares_storage(args[0], value) for _, value in self.inputs):
            pass  # the trace's own tensor loses its history as the user's would
        elif _is_in_place(name):
            where = _line()
            self.seen.writes.append((name, where))
            if args and isinstance(args[0], torch.Tensor):
                self._touch(name, args[0], where)
        changed = _statistics_written(func, args, kwargs)
        self.seen.touched |= {
            k for k, value in self.inputs if any(tensors.shares_storage(one, value) for one in changed)
        }
        result = done_as_eager(func, args, kwargs)
        if result is None:
            self._refuse_failing(name, args, kwargs)
            written = in_place.written_tensors(args, kwargs, is_in_place=_is_in_place(name) and name not in SHAPES)
            self._refuse_enlarged(name, written)
            self._refuse_folded(name, written)
            with in_place.lying_as_before(written), kept_whole(name, args, kwargs, is_exact=self.is_exact):
                run = _run_list if name.startswith("_foreach_") and name.endswith("_") else _run
                result = in_place.viewed(name, args, run(in_eagers_order(func, args, kwargs), args, kwargs))
        if kwargs and fakes.is_outgrown(kwargs.get("out")):
            why = "gives the tensor at `out` another size, which a trace does not follow"
            raise refusal_to_wrap(name or "out", why, user_location(), "make that tensor with the size of the result")
        self.data.note(func, _given_of(self.data.tensors, args, kwargs), result)
        if isinstance(result, torch.Tensor):
            self._note_leaf(result)
        self._note_folded(name, args, kwargs, result)
        return result

    def _refuse_failing(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        why = in_place.why_eager_raises(name, args, kwargs)
        if why is not None:
            raise refusal_to_wrap(name, f"fails when it runs: {why}", _line())

    def _refuse_enlarged(self, name: str, written: Sequence[torch.Tensor]) -> None:
        if any(map(in_place.is_enlarged, written)):
            where = _line()
            raise refusal_to_wrap(name, "writes through an expanded view, which a trace does to rounding only", where)

    def _note_folded(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note views in which elements share memory, and views of such."""
        sources = _given_of(self.folded, args, kwargs)
        for view in result if isinstance(result, (tuple, list)) else (result,):
            if not isinstance(view, torch.Tensor) or any(view is other for other in self.folded):
                continue
            is_of_one = any(tensors.shares_storage(view, other) for other in sources)
            if is_of_one or (name in _FOLDS and is_folded(view)):
                self.folded.append(view)

    def _refuse_folded(self, name: str, written: Sequence[torch.Tensor]) -> None:
        """Refuse a write through what shows memory more than once: each of its values would be computed of the old ones."""
        if name not in _FLAGS and any(one is other for one in written for other in self.folded):
            why, advice = "writes to a tensor whose own elements share memory", "write to a clone, or without treeplay"
            raise refusal_to_wrap(name, why, _line(), advice)

    def _refuse_setting(self, func: Any) -> None:
        if func.__self__ is torch.Tensor.data:
            why = "is set on a tensor, which a trace does not keep"
            advice = "write in place by a method: x.data.mul_(...) for x.data *= ..., x.copy_(...) under no_grad()"
            raise refusal_to_wrap("data", why, user_location(), advice)

    def _refuse_replacing(self, target: Any) -> None:
        advice = "copy the data into it, or run this function without treeplay"
        for k, value in self.inputs:
            if target is value or target is getattr(value, "elem", None):  # what a functional tensor is made of
                told = f"the storage of argument `{self.names[k]}` is replaced"
                raise refusal_to_wrap("set_", told, user_location(), advice)
        # Afterwards a traced tensor shows neither its new size nor, if it was resized, with what it shares memory.
        told = "gives a tensor the storage of another, which a trace does not follow"
        raise refusal_to_wrap("set_", told, _line(), advice)

    def _note_leaf(self, result: torch.Tensor) -> None:
        """Keep leaves made inside."""
        if result.requires_grad and result.is_leaf and not any(result is value for _, value in self.inputs):
            self.born[id(result)] = result, user_location()

    def refuse_leaves(self, results: Sequence[Any]) -> None:
        """Refuse a new leaf or a view made under no_grad: it would come out of the graph with a history."""
        for result in results:
            # What a custom function made may have a history by now.
            if id(result) in self.born and result.is_leaf and not self._is_viewed_again(result):
                why, advice = "a result needs a gradient and has no history", "return it detached, or make it outside"
                raise refusal_to_wrap("leaf", why, self.born[id(result)][1], advice)
            for leaf, where in self.told:
                if isinstance(result, torch.Tensor) and tensors.shares_storage(result, leaf):
                    raise refusal_to_wrap(
                        "requires_grad_", "changes how autograd sees a result, which a trace does not keep", where
                    )

    def _is_viewed_again(self, result: torch.Tensor) -> bool:
        """Whether it is a view of an argument, which each call takes anew, and takes without history if all of it runs so."""
        return not torch.is_grad_enabled() and any(tensors.shares_storage(result, value) for _, value in self.inputs)

    def _touch(self, name: str, target: torch.Tensor, where: Location | None) -> None:
        if name in SHAPES:
            self.reshaped.append((target, (name, where)))
        elif self.seen.reshaped_then_written is None:
            self.seen.reshaped_then_written = next(
                (told for tensor, told in self.reshaped if tensors.shares_storage(target, tensor)), None
            )
        touched = {k for k, value in self.inputs if tensors.shares_storage(target, value)}
        self.seen.touched |= touched
        if target not in self.data:
            self.seen.versioned |= touched
        is_tracked = torch.is_grad_enabled() and target.requires_grad and name not in _FLAGS
        # In a trace arguments are no leaves themselves, so autograd does not raise what it would in eager mode.
        if is_tracked and any(leaf is target or (target._is_view() and leaf is target._base) for leaf in self.leaves):
            raise refusal_to_wrap("write", f"{name}: {_LEAF}", where, "write to it under torch.no_grad()")


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


def _given_of(known: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Those of the tensors `known` that a call is given, by position, by name or in a list."""
    given = leaves_of((args, kwargs)) if known else ()
    return [one for one in known if any(leaf is one for leaf in given)]


def _first_of(kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call in which all are given by name, with the first one by position."""
    first = next((name for name in ("input", "self") if name in kwargs), None)
    return (() if first is None else (kwargs[first],)), {name: kwargs[name] for name in kwargs if name != first}


def _is_in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name in _DUNDERS


def _statistics_written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The running statistics that a call brings up to date, which eager does without telling autograd; none for other functions
    than batch norms in training."""
    names = _BATCH_NORMS.get(func)
    if names is None:
        return []
    given = dict(zip(names, args, strict=False)) | {**kwargs}
    found = (given.get("running_mean"), given.get("running_var"))
    return [one for one in found if isinstance(one, torch.Tensor)] if given.get("training") else []


def _line() -> Location | None:
    """The user's line: the one that a captured graph notes at the node that runs, or else the one that is running."""
    return location_in(fx.stack_of_current_node()) or user_location()
