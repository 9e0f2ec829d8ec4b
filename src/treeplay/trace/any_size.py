"""A traced program as a function of tensors whose sizes are symbols: what has to be so, and that it does what it did.

trace's signature ─ for_any_size ▶ signature with an input for each tensor argument ─ Rerun ▶ flat function
flat function ─ with known sizes ─┐
              └ with symbols ─────┴▶ the same operators with the same numbers, or a refusal

Python takes the branches that it takes for the sizes of the example, and each question that it asks of a symbol is noted. What
it does otherwise where it meets a symbol (it may ask for its type) shows in the operators.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.observe.lines import call_site, failed_call, user_location
from treeplay.torch_seam.fakes import new_fake_mode
from treeplay.torch_seam.modes import TorchDispatchMode
from treeplay.torch_seam.sizes import SymbolicSizes, enable_python_dispatcher, examples_in, fake_of
from treeplay.trace.call import Call
from treeplay.trace.log import LoggedCall, first_difference
from treeplay.trace.rerun import Rerun, is_passed
from treeplay.trace.signature.guarded import met_of
from treeplay.trace.turn import Busy
from treeplay.values.layout import Layout
from treeplay.values.location import Location
from treeplay.values.output import Fresh, Static, View, values_used
from treeplay.values.signature import Argument, Built, Input, Kind, Ref, Signature, values_in
from treeplay.values.sizes import not_for_all
from treeplay.values.spec import ANY_SIZE, TensorSpec
from treeplay.values.structure import as_written, paths

Changing = Mapping[int, frozenset[int]]
"""The dimensions whose sizes change, by the leaf of the arguments."""


def not_for_any_size(why: str, where: Location | None = None) -> Refusal:
    """Why a program is not compiled for all sizes."""
    return Refusal(not_for_all(why, where))


def meets_numpy(*_: Any) -> Any:
    """What NumPy meets in a symbol: a refusal, since its own numbers round otherwise."""
    raise not_for_any_size("NumPy computes with a size", user_location())


def signature_for_any_size(signature: Signature, call: Call, changing: Changing) -> Signature:
    """The signature of a flat function that has each tensor argument as an input, and gives back each result as a tensor of its
    own. Raises `Refusal` for a program that does more than compute new tensors."""
    why = _why_not(signature, call)
    if why is not None:
        raise not_for_any_size(why)
    refs = _apart(signature.refs)
    names = paths(call.structure)
    given = {item.source.index for item in signature.inputs if isinstance(item.source, Argument)}
    places: dict[int, int] = {}
    for at, leaf in enumerate(call.leaves):
        if isinstance(leaf, torch.Tensor):
            places.setdefault(id(leaf), at)
    others = (at for at in places.values() if at not in given)
    inputs = [
        *signature.inputs,
        *(Input(names[at], Argument(at), TensorSpec.of(call.leaves[at]), is_mutated=False) for at in others),
    ]
    leaves = tuple(
        _open(leaf, changing[at]) if at in changing and type(leaf) is TensorSpec else leaf
        for at, leaf in enumerate(signature.leaves)
    )
    return replace(
        signature,
        inputs=tuple(inputs),
        leaves=leaves,
        refs=refs,
        outputs=len({ref for ref in values_in(refs, ()) if isinstance(ref, Fresh)}),
        met=met_of(signature.guarded, leaves),
    )


def _why_not(signature: Signature, call: Call) -> str | None:
    if signature.kind is not Kind.INFERENCE:
        return "its results or its effects have to do with gradients"
    if signature.mutated or signature.writes or signature.schedules:
        return "it writes an argument or state"
    if call.has_numbers or call.arrays:
        return "an argument is a number that varies or a NumPy array"
    is_known = any(not isinstance(meeting.other, str) for meeting in signature.meetings)
    if signature.identity.themselves or signature.identity.slots or is_known:
        # It is given others, with symbols in them.
        return "the program can tell a container among the arguments from others like it"
    if not all(isinstance(part, (Fresh, View, Static)) for part in signature.values):
        return "it returns an argument, or a container that was there before"
    if any(map(_is_special, signature.values)):
        return "a result shares memory with an argument, or needs a gradient"
    return None


def _is_special(ref: Ref) -> bool:
    if isinstance(ref, View):
        is_plain = isinstance(ref.of, Fresh) and not (ref.requires_grad or ref.is_detached or ref.of.requires_grad)
        return not is_plain or ref.cast is not None
    return isinstance(ref, Fresh) and ref.requires_grad


def _apart(refs: Sequence[Ref]) -> tuple[Ref, ...]:
    """References to results each of which is a tensor of its own, in the order in which they are met."""
    numbers: dict[Ref, Fresh] = {}

    def apart(ref: Ref) -> Ref:
        if isinstance(ref, Built):
            return replace(ref, refs=tuple(map(apart, ref.refs)))
        if isinstance(ref, (Fresh, View)):
            return numbers.setdefault(ref, Fresh(len(numbers)))
        return ref

    return tuple(map(apart, refs))


def layouts_of_results(signature: Signature, made: Sequence[TensorSpec]) -> list[Layout | TensorSpec]:
    """How each result lies that such a flat function gives back. `made`: the outputs of the ordinary trace, of which results
    may be views."""
    refs = dict.fromkeys(ref for ref in values_in(signature.refs, ()) if isinstance(ref, (Fresh, View)))
    return [
        ref.layout if isinstance(ref, View) and ref.layout is not None else made[index]
        for ref, index in zip(refs, values_used(refs), strict=True)
    ]


def _open(spec: TensorSpec, changing: frozenset[int]) -> TensorSpec:
    shape = tuple(ANY_SIZE if at in changing else size for at, size in enumerate(spec.shape))
    return replace(spec, shape=shape, stride=(ANY_SIZE,) * len(shape))


def check_passed(signature: Signature, tensors: Sequence[torch.Tensor], changing: Changing) -> None:
    """Raise `Refusal` unless the program is passed what stands for each argument whose sizes change: where it finds its own
    tensor, it finds numbers."""
    for item, tensor in zip(signature.inputs, tensors, strict=True):
        if not isinstance(item.source, Argument) or item.source.index not in changing:
            continue
        if not is_passed(item, tensor):
            raise not_for_any_size(f"{as_written(item.name)} is also in the program's state, or has a gradient")
        is_plain = type(tensor) is torch.Tensor and not (tensor.is_conj() or tensor.is_neg() or vars(tensor))
        if not is_plain or item.begins is not None:
            raise not_for_any_size(f"{as_written(item.name)} is more than memory, shape and stride")


@dataclass(frozen=True, slots=True)
class _Called:
    entry: LoggedCall
    numbers: tuple[Any, ...]
    changes_nothing: bool

    def is_like(self, other: _Called) -> bool:
        # By `repr`: a NaN is like a NaN, and 1 is not 1.0.
        return self.entry.op == other.entry.op and list(map(repr, self.numbers)) == list(map(repr, other.numbers))


class _Operators(TorchDispatchMode):
    """Notes the operators that compute something, and the numbers that they are given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.called: list[_Called] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.namespace not in ("prim", "profiler"):
            entry = LoggedCall.of(func, user_location(), args, kwargs, call_site())
            numbers = tuple(examples_in((args, kwargs, result)))
            self.called.append(_Called(entry, numbers, changes_nothing=_changes_nothing(func, args, result)))
        return result


_WHOLE = frozenset(
    getattr(torch.ops.aten, name).default for name in ("alias", "detach", "expand", "view", "_unsafe_view", "reshape")
) | {torch.ops.aten.slice.Tensor}


def _changes_nothing(func: Any, args: Any, result: Any) -> bool:
    """Whether an operator shows all of its argument, as it is: torch leaves that out where it knows the sizes."""
    return func in _WHOLE and list(examples_in(result)) == list(examples_in(args[0]))


def check_same_operators(
    rerun: Rerun, tensors: Sequence[torch.Tensor], sizes: SymbolicSizes, fakes: Any, log: Sequence[LoggedCall]
) -> None:
    """Raise `Refusal` unless the program does the same for symbols as for the numbers that they are now, and for these what it
    did in its ordinary trace, whose `log` this is: there, arguments were real tensors."""
    mode = new_fake_mode()
    known = _operators(rerun, mode, [fake_of(tensor, mode) for tensor in tensors])
    entries = [called.entry for called in known]
    difference = first_difference(list(log), entries)
    if difference is not None:
        raise not_for_any_size(
            f"{difference.op} is given another number where arguments stand for others", difference.where
        )
    for one, other in itertools.zip_longest(_lines(log), _lines(entries)):
        if one != other:
            raise not_for_any_size("its Python does something else where arguments stand for others", other or one)
    runs = (
        [called for called in run if not called.changes_nothing]
        for run in (known, _operators(rerun, sizes.mode, fakes))
    )
    for before, after in itertools.zip_longest(*runs):
        if before is None or after is None or not before.is_like(after):
            found = (after or before).entry
            why = f"{found.op} is called or not, or otherwise, by whether a size is a number or stands for one"
            raise not_for_any_size(why, found.where)


def _lines(log: Sequence[LoggedCall]) -> Iterator[Location | None]:
    """The user's lines that called operators, each once as long as no other comes. Runs call other operators for the same."""
    every = (entry.where for entry in log if entry.op not in _IDLE)
    return (where for where, _ in itertools.groupby(every))


_IDLE = frozenset(
    (
        *("constant", "result", "aten.detach.default", "aten.alias.default", "aten.lift_fresh_copy.default"),
        "aten.clone.default",  # what dropout is that drops nothing, where a trace has no operator
    )
)


def _operators(rerun: Callable[..., Any], mode: Any, fakes: Sequence[Any]) -> list[_Called]:
    try:
        with enable_python_dispatcher(), mode, _Operators() as operators:  # some operators' C++ takes no symbols
            rerun(*fakes)
    except (Refusal, Busy):
        raise
    except Exception as error:
        where = failed_call(error.__traceback__).where
        raise not_for_any_size(f"it raises {type(error).__name__} where a size is no number: {error}", where) from error
    called: list[_Called] = operators.called
    return called
