"""The log of one run: each operator with its user line and the plain numbers it was given, and how two logs differ.

A number that was 3.0 in one run and 4.0 in the next (a step counter, a Python random number) would freeze in a recording.
The first run is eager and the second is the trace, so their graphs need not be equal (an optimizer makes its state in the
first, and some libraries take another way where they see that they are traced); calls are matched by operator and source line
before numbers are compared. Where one run has more calls from a line than the other, those of the other must be among them in
their order: autograd takes a view anew after a part of its memory was written, with a fake by the view's own operator and
otherwise without one (`out[:, t] = f(x[:, t])` in a loop).

Operators that autograd's own nodes call in a backward are all of one line, and would be matched wrongly where the two runs
differ. Their numbers follow from those of the forward, so they are left out; hooks and functions of the user's are not.
"""

from __future__ import annotations

import inspect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor  # by name: modules are watched while it is asked for

from treeplay.trace.numbers.scalars import SYMBOLS
from treeplay.trace.run.layouts import Answer, Question
from treeplay.values.flatten import flatten
from treeplay.values.location import Location
from treeplay.values.refusal import Reason

_ENGINE = inspect.getfile(torch.autograd.graph)
"""Where Python's side of a backward waits for autograd's engine."""


class Symbolic:
    """Stands for a number that does not freeze; equal to every number."""

    def __repr__(self) -> str:
        return "symbolic"


SYMBOLIC = Symbolic()
_KINDS = (torch.dtype, torch.device, torch.layout, torch.memory_format, str)


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """One operator call: its name, the user's line, the numbers among its arguments in order, and the line of code,
    torch's own included, that called it (an optimizer's first step and the next come from one user line).

    `given`: which arguments are tensors. A call with a mask is not the call without one, and its flags are its own: some
    libraries take another way where they see that they are traced. `layout`: how its results were laid out, and what that
    follows from. `kinds`: the types, devices and names among its arguments."""

    op: str
    where: Location | None
    numbers: tuple[Any, ...]
    site: tuple[str, int] = ("", 0)
    given: frozenset[int | str] = frozenset()
    layout: tuple[Question, Answer] | None = None
    kinds: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls, func: Any, where: Location | None, args: Any, kwargs: dict[str, Any], site: tuple[str, int]
    ) -> LoggedCall:
        """The entry of an operator that is called now."""
        named: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        given = frozenset(name for name, value in named if isinstance(value, Tensor))
        numbers = () if site[0] == _ENGINE else tuple(numbers_in((args, kwargs)))
        return cls(str(func), where, numbers, site, given, kinds=tuple(v for _, v in named if isinstance(v, _KINDS)))

    @classmethod
    def of_constant(
        cls, tensor: torch.Tensor, numbers: tuple[Any, ...], where: Location | None, site: tuple[str, int]
    ) -> LoggedCall:
        """The entry of a tensor that is made of numbers now."""
        return cls("constant", where, numbers, site, kinds=(tensor.dtype,))

    @property
    def key(self) -> tuple[Any, ...]:
        """What identifies the call in another run."""
        return self.op, self.where, self.site, self.given, len(self.numbers)

    def has_numbers_of(self, other: LoggedCall) -> bool:
        """Whether it is given the same numbers as another call. Each run makes its own NaN, which equals no other."""
        return len(self.numbers) == len(other.numbers) and all(map(_is_alike, self.numbers, other.numbers))


_LARGE = ("aten._native_multi_head_attention.default", "aten._transformer_encoder_layer_fwd.default")


def takes_large_layers(log: Iterable[LoggedCall]) -> bool:
    """Whether a run took the one large operator that layers of attention have for evaluation. What it gives lies otherwise than
    what the smaller ones give that such a layer takes where it sees that it is traced."""
    return any(entry.op in _LARGE for entry in log)


def result_entry(result: Any) -> LoggedCall:
    """The plain values among a run's results, as if the last operator were given them."""
    leaves, _ = flatten(result)
    values = (SYMBOLIC if isinstance(leaf, SYMBOLS) else leaf for leaf in leaves)
    return LoggedCall(
        "result", None, tuple(v for v in values if v is SYMBOLIC or isinstance(v, (int, float, complex, str)))
    )


def numbers_in(value: Any) -> Iterator[Any]:
    """The plain numbers in nested operator arguments, symbolic ones as `SYMBOLIC`."""
    if isinstance(value, SYMBOLS):
        yield SYMBOLIC
    elif isinstance(value, (bool, int, float, complex)):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from numbers_in(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            # Whether a fused optimizer has its state yet: it has from then on, in a place where a recording looks for it.
            if name != "is_first_step":
                yield from numbers_in(item)


_CALLS = "in the first call", "in the second"


def first_difference(
    before: list[LoggedCall], after: list[LoggedCall], when: tuple[str, str] = _CALLS
) -> Reason | None:
    """The first number that differs between two runs of one program, as a reason to refuse, or None. `when` they were."""
    for old, new in _matched(before, after):
        for was, now in zip(old.numbers, new.numbers, strict=True):
            if _may_be(was, now):
                continue
            if new.op == "result":
                return _changing_result(was, now, when)
            return Reason(
                op=new.op,
                why=f"is given the number {was!r} {when[0]} and {now!r} {when[1]}, so a recording would freeze it",
                advice="keep the number in a tensor that the program updates, or pass it as a 0-dim tensor argument",
                where=new.where,
            )
    return None


def other_operators(before: Sequence[LoggedCall], after: Sequence[LoggedCall]) -> Reason | None:
    """The first operator that only one of two runs of a program calls, as a reason to refuse, or None."""
    for old, new in itertools.zip_longest(before, after):
        if old is None or new is None or (old.op, old.kinds) != (new.op, new.kinds):
            found = new or old
            return Reason(
                op=found.op,
                why="is called or not, or with another type, by what a number among the arguments is",
                advice="do not ask for its type",
                where=found.where,
            )
    return None


def _may_be(was: Any, now: Any) -> bool:
    return was is SYMBOLIC or now is SYMBOLIC or _is_alike(was, now)


def _is_alike(was: Any, now: Any) -> bool:
    if type(was) is type(now) is float:
        return repr(was) == repr(now)  # a NaN is a NaN, and 0.0 is not -0.0
    return bool(was == now) or (was != was and now != now)


def _changing_result(was: Any, now: Any, when: tuple[str, str]) -> Reason:
    return Reason(
        op="result",
        why=f"the program returns {was!r} {when[0]} and {now!r} {when[1]}, so a recording would freeze it",
        advice="return it as a tensor that the program computes, or find it outside of the program",
    )


def _matched(before: Sequence[LoggedCall], after: Sequence[LoggedCall]) -> Iterator[tuple[LoggedCall, LoggedCall]]:
    """The calls of two runs that have to be given the same numbers, in the order of the second run."""
    before, after = [entry for entry in before if entry.numbers], [entry for entry in after if entry.numbers]
    if [entry.key for entry in before] == [entry.key for entry in after]:
        yield from zip(before, after, strict=True)
        return
    pairs: dict[int, LoggedCall] = {}
    earlier, later = _by_key(before), _by_key(after)
    for key, positions in later.items():
        old, new = [before[at] for at in earlier.get(key, ())], [after[at] for at in positions]
        if len(old) == len(new) or not (_is_among(old, new) or _is_among(new, old)):
            pairs.update(zip(positions, old, strict=False))
    for at in sorted(pairs):
        yield pairs[at], after[at]


def _by_key(entries: Sequence[LoggedCall]) -> dict[Any, list[int]]:
    """The positions of the entries of each key."""
    found: dict[Any, list[int]] = defaultdict(list)
    for at, entry in enumerate(entries):
        found[entry.key].append(at)
    return found


def _is_among(few: Sequence[LoggedCall], many: Sequence[LoggedCall]) -> bool:
    """Whether the numbers of `few` are those of some of `many`, in their order."""
    rest = iter(many)  # used up as it goes: each entry serves once, and in order
    return all(any(all(map(_may_be, one.numbers, other.numbers)) for other in rest) for one in few)
