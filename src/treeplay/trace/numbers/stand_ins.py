"""Stand-ins: what takes the place of inputs that are no tensors while a program is traced.

A float in an optimizer's parameter groups, and a number among the arguments or of the state that varies, each become a symbolic
number, and arithmetic on it goes into the graph; a NumPy array becomes a `GivenArray`, which can become a tensor and nothing
else. What stands in state is taken back by the snapshot, what stands in arguments when the run is over. `check_numbers` then
tells whether the numbers can be inputs.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.observe.lines import is_own_or_text
from treeplay.trace.arrays import GivenArray, asks_for_types
from treeplay.trace.call import Call
from treeplay.trace.numbers.errors_of_symbols import ErrorsOfSymbols
from treeplay.trace.numbers.numpy_numbers import is_float
from treeplay.trace.signature.make import has_symbol
from treeplay.trace.traced import TracedRun
from treeplay.values.kinds import PLAIN_DICTS
from treeplay.values.location import Location
from treeplay.values.place import How, Place
from treeplay.values.signature import Number, may_be_input
from treeplay.values.structure import as_written, paths

_NEEDED = "the program needs its value while it runs"
_NOT_TAKEN = "what the program gives it to takes numbers alone, and not what stands for one in a trace"
_TYPES = "the program calls `type` or names `SymInt`, which tells what stands for the number in a trace from a number"
_SYMBOLS = frozenset(("SymInt", "SymFloat", "SymBool"))
_ASSIGNED = (list, deque, *PLAIN_DICTS)
_NO_ARRAY = "pass torch.from_numpy(array), which shares its memory"


def stand_in_for_rates(run: TracedRun) -> list[Number]:
    """Put a symbolic number in the place of each float in the optimizers' parameter groups; a snapshot undoes it."""
    numbers: list[Number] = []

    def symbol(place: Place, value: Any) -> Any:
        if not is_float(value):
            return value
        numbers.append(Number(f"s{len(numbers)}", place, value, is_exact=False))
        return run.tracer.add_scalar(numbers[-1].name, value)

    for optimizer in run.found.optimizers:
        for here, group in run.found.groups_of(optimizer):
            for name, value in list(group.items()):
                place = here.child(How.ITEM, group, name, f"{here}[{name!r}]")
                if is_float(value):
                    group[name] = symbol(place, value)
                elif type(value) in (tuple, list) and any(map(is_float, value)):
                    # Groups may share a tuple, and each may be given another one: items are in one place for each group.
                    holder = value if isinstance(value, list) else (*value,)
                    items = [
                        symbol(place.child(How.ITEM, holder, at, f"{place}[{at}]"), item)
                        for at, item in enumerate(value)
                    ]
                    if isinstance(value, list):
                        value[:] = items
                    else:
                        group[name] = tuple(items)
                        # The group holds neither any more, and tables are keyed by `id`.
                        run.found.kept += (value, holder)
        for state in optimizer.state.values():
            if isinstance(state, dict):
                # Step counts, which optimizers read by `.item()`.
                run.tracer.host_scalars |= {
                    id(value) for value in state.values() if isinstance(value, torch.Tensor) and value.dim() == 0
                }
    return numbers


def stand_in_for_state(run: TracedRun) -> list[Number]:
    """Put a symbolic number in the place of each number of the state that is an input; a snapshot undoes it."""
    if run.call.is_plain:
        return []
    numbers: list[Number] = []
    alone = {place for place, _ in run.found.cells}
    made: dict[Place, Any] = {}
    for place, value in run.found.watched:
        if not may_be_input(value) or place.trail not in run.call.state or place.read_or(None) is not value:
            continue
        slot, steps = place.slot, place.in_tuples
        # Of what is restored only; and what the user's own class has to say about an assignment, it would say of the symbol.
        is_put_back = id(slot.holder) in run.found.containers and id(slot.holder) not in run.found.sealed
        is_undone = slot in alone or (is_put_back and type(slot.holder) in _ASSIGNED)
        if is_undone and slot.read_or(None) is made.get(slot, steps[0].holder if steps else value):
            numbers.append(Number(f"s{len(run.numbers) + len(numbers)}", place, value))
            symbol = run.tracer.add_scalar(numbers[-1].name, value)
            made[slot] = _with_part(slot.read(), [step.key for step in steps], symbol)
            slot.write(made[slot])
    for slot, value in made.items():
        if isinstance(value, tuple):  # which is the one in that place to the program
            run.found.stand_ins.append(value)
            run.found.container_places[id(value)] = slot
    return numbers


def _with_part(value: Any, keys: Sequence[int], part: Any) -> Any:
    """Tuples within tuples, with another part at the end of a way through them."""
    if not keys:
        return part
    parts = [*tuple.__iter__(value)]
    parts[keys[0]] = _with_part(parts[keys[0]], keys[1:], part)
    return tuple.__new__(type(value), parts)


def stand_in_for_arguments(run: TracedRun) -> contextlib.AbstractContextManager[tuple[Any, Any]]:
    """The arguments, with a symbolic number in the place of each number that is an input, and what stands for each array."""
    call = run.call
    symbols: dict[int, Any] = {}
    for at in sorted(call.numbers):
        place = Place(How.ARGUMENT, call.leaves[at], at, None, as_written(paths(call.structure)[at]))
        run.given.append(Number(f"s{len(run.numbers) + len(run.given)}", place, call.leaves[at]))
        symbols[at] = run.tracer.add_scalar(run.given[-1].name, call.leaves[at])
    for at, array in call.arrays.items():
        symbols[at] = GivenArray(array, call.leaves[at], run.tracer.refuse)
    return call.with_leaves(symbols)


def check_numbers(run: TracedRun) -> None:
    """Refuse a number among the arguments, or of the state, whose value the program needed while it ran: it is no input."""
    if (run.given or run.varying) and (asks_for_types(run.reads) or _asks_for_symbols(run)):
        # `isinstance` gets the number's own class.
        for number in run.given:
            raise Refusal.of(f"argument {number.place.label}", _TYPES, "use isinstance, or pass a tensor", None)
        raise not_inputs(run, [number.place for number in run.varying], _TYPES)
    fixed = [guard for guard in run.tracer.world.guards.values() if not isinstance(guard.expected, bool)]
    where = {
        number.place: guard.where
        for guard in reversed(fixed)
        for number in (*run.given, *run.varying)
        if has_symbol(guard.expression, number.name)
    }
    for number in run.given:
        if number.place in where:
            raise Refusal.of(f"argument {number.place.label}", _NEEDED, "pass a tensor", where[number.place])
    needed = [number.place for number in run.varying if number.place in where]
    if needed:
        raise not_inputs(run, needed, _NEEDED, where[needed[0]])


def _asks_for_symbols(run: TracedRun) -> bool:
    """Whether code of the user's own may have asked whether a number is one of torch's symbols, as it is in a trace alone."""
    return any(is_own_or_text(one.co_filename) and not _SYMBOLS.isdisjoint(one.co_names) for one in run.reads.ran)


def not_taken(run: TracedRun, errors: ErrorsOfSymbols) -> Refusal:
    """The refusal of a program for those of the numbers that were to be inputs for which one has caused an error."""
    suspects = errors.suspects([*run.given, *run.varying])
    for number in suspects:
        if number.place.how is How.ARGUMENT:
            return Refusal.of(f"argument {number.place.label}", _NOT_TAKEN, "pass a tensor", errors.where)
    return not_inputs(run, [number.place for number in suspects], _NOT_TAKEN, errors.where)


def not_inputs(run: TracedRun, places: Sequence[Place], why: str, where: Location | None = None) -> Refusal:
    """The refusal of a program for numbers of its state that were to be inputs."""
    where = where or run.snapshot.line_of_change(places[0])
    refusal = Refusal.of(str(places[0]), why, "keep it in a tensor", where)
    refusal.needed = tuple(trail for place in places if (trail := place.trail) is not None)
    return refusal


def check_arrays(run: TracedRun) -> None:
    """Refuse arrays that the program may not have taken for arrays."""
    if run.call.arrays and asks_for_types(run.reads):
        raise refuse_arrays(
            run.call, "calls `type`, which tells it from what stands for it in a trace: use `isinstance`"
        )


def refuse_arrays(call: Call, what: str) -> Refusal:
    """The refusal of a program that does something which no array can be given for."""
    name = as_written(paths(call.structure)[next(iter(call.arrays))])
    return Refusal.of(f"argument {name}", f"it is a NumPy array, and the program {what}", _NO_ARRAY, None)
