"""The check of a recording's guards: one generated function for warm calls, and a slow comparison when that says no.

    holds()    versions of dictionaries in one native call; empty containers are still empty; elements, classes, code
       └ no ─▶ again()   compares values. All alike: the new versions count from here on, and nothing is recorded anew.
                         Something differs: `what` says where, what was recorded and what was found.

A dictionary whose version keeps changing while the guarded entries stay (a script's globals, an object that counts its calls)
is compared entry by entry from the second time on.
"""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import weakref
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch

from treeplay.generated import load_source
from treeplay.guards.conditions import Asked, Comparison, Container, Guard, HasGradient, Table, shown
from treeplay.guards.entries import spot_of
from treeplay.guards.reach import Reach
from treeplay.torch_seam.dynamo import native_check, tensor_check, version_of_table
from treeplay.torch_seam.modes import DisableTorchFunctionSubclass
from treeplay.torch_seam.patched import ABSENT
from treeplay.torch_seam.tensors import has_strides, is_initialised
from treeplay.values.kinds import is_a
from treeplay.values.mismatch import Mismatch
from treeplay.values.place import How, Place
from treeplay.values.same import is_same
from treeplay.values.source import Source

_YOUNG = 50
"""Warm calls after which versions are compared natively; a dictionary that changes sooner again and again is no steady one."""
_MOST_TIMES = 2
_FEW = 4
"""So many comparisons are written out; more of one kind are one native loop."""
_RAISED = "KeyError, IndexError, AttributeError, ValueError, TypeError, RuntimeError"


class Guards:
    """All guards of a recording. Not safe for threads: the owner of the recording takes turns."""

    __slots__ = (
        "__weakref__",
        "_facts",
        "_holders",
        "_is_young",
        "_loose",
        "_pinned",
        "_quick",
        "_reach",
        "_spots",
        "_state",
        "_text",
        "holds",
        "kept",
        "may_keep",
        "places_of_inputs",
        "what",
    )

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._is_young = True
        self._text = ""
        self._facts = [(tensor, label, _facts_of(tensor)) for tensor, label in reach.tensors.values()]
        self.what: Mismatch | None = None
        self.places_of_inputs: tuple[Place, ...] = ()
        self._spots: set[tuple[int, Any] | None] = set()  # on the way to the state that `keeps` was asked for
        self._pinned: set[tuple[int, Any]] | None = None  # what `Reach.pinned` said last
        self.may_keep = False  # whether `holds` implies that all of this state is what it was in the last call
        self.kept: tuple[Any, ...] | None = None  # what a call found there, for the next one
        self._holders: dict[int, dict[Any, Any]] = {}  # dictionaries that are guarded, by their `id`
        self._loose: list[int] = []  # state that may be replaced without another guard telling of it
        self._state: dict[int, int] = {}  # the `id` of the attributes of the tensor in each of these places
        self._quick: Any = None
        # Not a method, by which guards that are never asked would keep themselves.
        self.holds: Callable[[], bool] = functools.partial(Guards.again, weakref.proxy(self))

    def again(self) -> bool:
        """Compare values, after the quick check said no."""
        self.kept = None
        self.what = self.first_difference()
        return self.what is None

    def first_difference(self) -> Mismatch | None:
        """What no longer is as recorded; if nothing is, the guards count from this moment on."""
        comparison = Comparison(self._reach.containers)
        # Versions first: what another thread writes meanwhile is compared the next time.
        versions = [version_of_table(table.holder) for table in self._reach.tables]
        touched: list[Table] = []
        for found in self._differences(comparison, touched):
            return found
        for table, version in zip(self._reach.tables, versions, strict=True):
            if id(table) in comparison.moved:
                continue
            table.pending = version
        for commit in comparison.commits:
            commit()
        for table in touched:
            is_first = table.version == -1 or id(table) in comparison.moved
            if id(table) not in comparison.moved:
                table.recorded, table.version = table.compared, table.pending
            table.size = len(table.holder)
            table.times = 0 if is_first else table.times + 1 if self._is_young else 1
            table.is_steady = table.is_steady and table.times < _MOST_TIMES
        for group in (self._reach.items, self._reach.members):
            for guard in group:
                guard.go_over_to(guard.holder)
        self._write()
        return None

    def _differences(self, comparison: Comparison, touched: list[Table]) -> Iterator[Mismatch]:
        reach = self._reach
        for cls, order in reach.orders.items():
            if cls.__mro__ is not order and cls.__mro__ != order:
                yield Mismatch(f"{cls.__qualname__}.__mro__", shown(order), "other classes")
        for value, cls, label in reach.kinds:
            if type(value) is not cls:
                yield Mismatch(f"{label}.__class__", shown(cls), shown(type(value)))
        changed = [table for table in reach.tables if not table.is_steady or self._is_newer(table)]
        touched += changed
        fixed = [table for table in changed if not table.may_be_replaced]
        # Containers that may be found elsewhere come last, in the order in which they lead to each other.
        loose = [guard for guard in reach.containers.values() if guard.may_be_replaced]
        untouched = {id(table) for table in reach.tables} - {id(table) for table in changed}
        strict = [guard for guard in (*reach.items, *reach.members) if not guard.may_be_replaced]
        for guard in (*fixed, *strict, *reach.asked, *reach.functions, *reach.data, *loose):
            found = guard.differs(comparison) if id(guard) not in untouched else None
            if found is not None:
                yield found
        for tensor, label, facts in self._facts:
            if _facts_of(tensor) != facts:
                yield Mismatch(label, f"a tensor {_described(facts)}", f"a tensor {_described(_facts_of(tensor))}")
        if not self.are_distinct():
            yield Mismatch("state", "different tensors", "one tensor in two places")
        yield from self._attributes_of_state(comparison)

    def _attributes_of_state(self, comparison: Comparison) -> Iterator[Mismatch]:
        """State that was replaced has the attributes of what it took the place of; they are guarded from then on."""
        tables = {id(table.holder): table for table in self._reach.tables}
        for at, place in enumerate(self.places_of_inputs):
            found = place.read_or(None)
            if not isinstance(found, torch.Tensor):
                continue
            attributes, before = vars(found), self._state.get(at)
            table = tables.get(before) if before is not None and before != id(attributes) else None
            difference = table.differences(comparison, attributes) if table is not None else None
            if difference is not None:
                yield difference
            elif table is not None:
                comparison.moved.add(id(table))
                comparison.commits.append(functools.partial(table.go_over_to, attributes))
            if table is not None or before is None:
                comparison.commits.append(functools.partial(self._state.__setitem__, at, id(attributes)))

    def keeps_alive(self) -> bool:
        """Whether something that a weak reference leads to would be gone, were it not for these guards."""
        reach = self._reach
        found = [weakref.ref.__call__(reference) for reference in reach.references]
        for guard in (*reach.tables, *reach.items, *reach.members):
            found += guard.left_out()
        own = {*map(id, (found, *self._own_containers()))}
        return any({*map(id, gc.get_referrers(value))} <= own for value in found if value is not None)

    def forget(self) -> None:
        """Hold nothing any more, and no call."""
        if self._quick is not None:
            self._quick.__globals__.clear()
        self._reach.forget()
        self._quick, self._facts, self._holders = None, [], {}
        self.places_of_inputs, self.kept, self.holds = (), None, _never

    def _own_containers(self) -> Iterator[Any]:
        """Whatever of ours may hold an object that was guarded."""
        reach = self._reach
        for table in reach.tables:
            yield from (table.recorded, table.compared)
        for guard in (*reach.items, *reach.members):
            yield guard.recorded
        yield from reach.kinds
        yield from reach.asked
        names = self._quick.__globals__ if self._quick is not None else {}
        for found in (names, *names.values(), *map(_closure_of, names.values())):
            yield from (found, *found) if isinstance(found, (list, tuple)) else (found,)

    def are_distinct(self) -> bool:
        """Whether state tensors that are inputs, and tensors of which only facts were read, are still different ones."""
        found = (place.read_or(None) for place in self.places_of_inputs)
        state = [id(tensor) for tensor in found if isinstance(tensor, torch.Tensor)]
        return len({*state, *self._reach.tensors}) == len(state) + len(self._reach.tensors)

    def state_is_alike(self) -> bool:
        """Whether state that the warm call reads anew is still different tensors, with the attributes that are guarded."""
        if not self.are_distinct():
            return False
        for at in self._loose:
            found, before = self.places_of_inputs[at].read_or(None), self._state.get(at, 0)
            attributes = vars(found) if isinstance(found, torch.Tensor) else {}
            if (attributes or self._holders.get(before)) and id(attributes) != before:
                return False
        return True

    @staticmethod
    def _is_newer(table: Table) -> bool:
        # Filling an empty dictionary from another one counts as no change on Python 3.12 and later.
        return version_of_table(table.holder) != table.version or len(table.holder) != table.size

    def keeps(self, place: Place) -> bool:
        """Whether, as long as these guards hold, `place` may be found once for all calls: then `kept` and `may_keep` are
        for what is there too."""
        if not place.may_be_kept:
            return False
        if self._pinned is None:
            self._pinned = self._reach.pinned()
        spots = {spot_of(step) for step in place.steps}
        if not spots <= self._pinned:
            return False
        self._spots |= spots
        return True

    def places(self) -> Iterator[tuple[str, Any]]:
        """Each guarded value by its place."""
        reach = self._reach
        every: tuple[Guard, ...] = (
            *reach.tables,
            *reach.items,
            *reach.members,
            *reach.asked,
            *reach.functions,
            *reach.data,
        )
        for guard in every:
            yield from guard.places()

    def tensors(self) -> list[torch.Tensor]:
        """The tensors of which facts are guarded."""
        return [tensor for tensor, _ in self._reach.tensors.values()]

    def shown(self) -> tuple[str, ...]:
        """The plain values among what is guarded, each as its place and what it was."""
        lines = {}
        for place, value in self.places():
            if is_a(value, _SHOWN) and not _is_within_python(place):
                lines[place] = f"{place} = {shown(value)}"
        return tuple(lines.values())

    def __str__(self) -> str:
        reach = self._reach
        counts = {
            "dictionaries": len(reach.tables),
            "lists and sets": len(reach.items) + len(reach.members),
            "classes of objects": len(reach.kinds),
            "functions": len(reach.functions),
            "variables": len(reach.asked),
            "arrays": len(reach.data),
            "tensors": len(reach.tensors),
        }
        return ", ".join(f"{count} {name}" for name, count in counts.items() if count)

    # --- the quick check ------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Make `holds` say yes from here on, until something changes."""
        self._holders = {id(table.holder): table.holder for table in self._reach.tables}
        self._pinned = self._reach.pinned() if self._spots or self.places_of_inputs else None
        pinned = self._pinned or set()
        loose = (
            at
            for at, place in enumerate(self.places_of_inputs)
            if not {spot_of(step) for step in place.steps if step.how is not How.GRAD} <= pinned
        )
        self._loose = [*loose]
        writer = _Writer()
        self._write_tables(writer)
        self._write_others(writer)
        self._write_tensors(writer)
        condition = "\n            and ".join(writer.conditions) or "True"
        text = (
            f"def holds():\n    try:\n        if (\n            {condition}\n        ):\n            return True\n"
            f"    except ({_RAISED}):\n        pass\n    return again()\n"
        )
        if text == self._text:  # as a rule only objects and versions have changed
            self._quick.__globals__.update(writer.names)
        else:
            self._quick = load_source(Source("guards", text, {**writer.names, "again": self.again}, entry="holds"))
            self._text = text
        self.holds = self._quick
        self.kept = None
        self.may_keep = bool(self._spots) and self._spots <= pinned

    def _steady_check(self, tables: tuple[dict[Any, Any], ...]) -> Callable[[], bool]:
        """Versions, classes and code compared in Python, which is made quickly; natively once nothing changes for a while."""
        reach = self._reach
        known = {id(table.holder): table.version for table in reach.tables}
        versions = [known[id(table)] for table in tables]
        objects, classes = [value for value, _, _ in reach.kinds], [cls for _, cls, _ in reach.kinds]
        functions, codes = [item.function for item in reach.functions], [item.code for item in reach.functions]
        self._is_young = True
        left = _YOUNG

        def check() -> bool:
            nonlocal left
            if [*map(version_of_table, tables)] != versions or [*map(type, objects)] != classes:
                return False
            if [*map(_code_of, functions)] != codes:
                return False
            left -= 1
            if left == 0:
                self._is_young = False
                native = native_check(
                    tables, list(zip(objects, classes, strict=True)), list(zip(functions, codes, strict=True))
                )
                if native is not None:
                    self._quick.__globals__["steady"] = native
            return True

        return check

    def _write_tables(self, writer: _Writer) -> None:
        empties = [guard.holder for guard in self._reach.tables if not guard.holder]
        empties += [guard.holder for guard in (*self._reach.items, *self._reach.members) if not guard.recorded]
        empties = [holder for holder in empties if _has_plain_length(holder)]
        known = {id(holder) for holder in empties}
        steady = [guard.holder for guard in self._reach.tables if guard.is_steady and id(guard.holder) not in known]
        steady = list({id(holder): holder for holder in steady}.values())
        writer.names["steady"] = self._steady_check(tuple(steady))
        writer.add("steady()")
        if empties:
            writer.add(f"not any({writer.name(tuple(empties))})")
        others = tuple(
            guard.holder for guard in self._reach.tables if not guard.holder and id(guard.holder) not in known
        )
        if others:  # of classes with a length of their own: filling them at once counts as no change either
            writer.add(f"not any(map({writer.name(dict.__len__)}, {writer.name(others)}))")
        for guard in self._reach.tables:
            if not guard.is_steady:
                self._write_entries(writer, guard)

    def _write_entries(self, writer: _Writer, guard: Table) -> None:
        holder = writer.name(guard.holder)
        if guard.matters is not None or guard.may_grow or type(guard.holder) is not dict:
            # A class's entries are chosen by name, and a subclass may do anything in `[]`.
            writer.add(
                f"{writer.name(_are_the_same)}({writer.name(guard.content)}({holder}), {writer.name(guard.recorded)})"
            )
            return
        if guard.names is None and guard.is_unordered:
            writer.add(f"len({holder}) == {len(guard.recorded)}")
        elif guard.names is None:
            keys = writer.name(list(guard.recorded))
            writer.add(f"len({holder}) == {len(guard.recorded)}")
            writer.add(f"all(map({writer.name(operator.is_)}, {holder}, {keys}))")
        for key, value in guard.recorded.items():
            constant = repr(key) if type(key) in (str, int) else writer.name(key)
            if value is ABSENT:
                writer.add(f"{constant} not in {holder}")
            elif key in guard.written:
                if isinstance(value, torch.Tensor):
                    is_like = writer.name(_like(value))
                    writer.add(f"{is_like}({holder}[{constant}])")
                else:
                    writer.add(f"{holder}[{constant}] is {writer.name(value)}")
            elif key not in guard.free:
                writer.add(f"{holder}[{constant}] is {writer.name(value)}")
            elif guard.names is None:
                writer.add(f"{constant} in {holder}")

    def _write_others(self, writer: _Writer) -> None:
        reach = self._reach
        is_ = writer.name(operator.is_)
        if reach.orders:
            bases = {base for cls in reach.orders for base in cls.__mro__[1:]}  # their order is part of their heirs'
            owners = [cls for cls in reach.orders if cls not in bases]
            orders = [reach.orders[cls] for cls in owners]
            writer.add(f"[*map({writer.name(_order_of)}, {writer.name(owners)})] == {writer.name(orders)}")
        for guard in (*reach.items, *reach.members):
            if guard.recorded or not _has_plain_length(guard.holder):
                holder, recorded = writer.name(guard.holder), writer.name(guard.recorded)
                writer.add(f"len({holder}) == {len(guard.recorded)}")
                if not guard.free:
                    writer.add(f"all(map({is_}, {holder}, {recorded}))")
                for at, value in enumerate(guard.recorded if guard.free else ()):
                    if at not in guard.free:
                        writer.add(f"{holder}[{at}] is {writer.name(value)}")
        self._write_asked(writer, is_)
        for name, entry, ask in (
            ("defaults", "__defaults__", _defaults_of),
            ("keywords", "__kwdefaults__", _keywords_of),
        ):
            having = [item for item in reach.functions if getattr(item, name)]
            for code in having if len(having) <= _FEW else ():
                writer.add(f"{writer.name(code.function)}.{entry} is {writer.name(getattr(code, name))}")
            if len(having) > _FEW:
                functions, values = [item.function for item in having], [getattr(item, name) for item in having]
                writer.add(f"all(map({is_}, map({writer.name(ask)}, {writer.name(functions)}), {writer.name(values)}))")
        for data in reach.data:
            writer.add(f"{writer.name(data.now)}() == {writer.name(data.recorded)}")

    def _write_asked(self, writer: _Writer, is_: str) -> None:
        asked: list[Asked] = []
        attributes: dict[str, list[Asked]] = {}
        gradients: list[torch.Tensor] = []
        for item in self._reach.asked:
            if item.is_free:
                continue
            if item.is_fresh:
                same = writer.name(is_same)
                writer.add(f"{same}({writer.name(item.ask)}(), {writer.name(item.recorded)})")
            elif isinstance(item, HasGradient) and item.recorded:
                gradients.append(item.tensor)
            elif item.attribute is not None and item.recorded is not ABSENT:
                attributes.setdefault(item.attribute[1], []).append(item)
            else:
                asked.append(item)
        for item in asked if len(asked) <= _FEW else ():
            writer.add(f"{writer.name(item.ask)}() is {writer.name(item.recorded)}")
        if len(asked) > _FEW:
            asks, values = [item.ask for item in asked], [item.recorded for item in asked]
            writer.add(f"all(map({is_}, map({writer.name(_call)}, {writer.name(asks)}), {writer.name(values)}))")
        for name, items in attributes.items():
            holders, values = [item.attribute[0] for item in items if item.attribute], [item.recorded for item in items]
            ask = writer.name(operator.attrgetter(name))
            writer.add(f"all(map({is_}, map({ask}, {writer.name(holders)}), {writer.name(values)}))")
        if gradients:
            grads = f"map({writer.name(_gradient_of)}, {writer.name(gradients)})"
            writer.add(f"all(map({writer.name(operator.is_not)}, {grads}, {writer.name(_NOTHING)}))")

    def _movable(self) -> Iterator[Container]:
        yield from self._reach.tables
        yield from self._reach.items

    def _write_tensors(self, writer: _Writer) -> None:
        tensors = [tensor for tensor, _ in self._reach.tensors.values() if has_strides(tensor)]
        if tensors:
            writer.add(f"{writer.name(tensor_check(tensors))}(*{writer.name(tensors)})")
        may_move = any(guard.free and not (isinstance(guard, Table) and guard.is_steady) for guard in self._movable())
        if may_move or any(asked.is_free for asked in self._reach.asked):
            writer.add(f"{writer.name(self.state_is_alike)}()")
        for tensor, _, facts in self._facts:
            if not has_strides(tensor):
                writer.add(f"{writer.name(_facts_of)}({writer.name(tensor)}) == {writer.name(facts)}")


_SHOWN = (bool, int, float, complex, str, bytes, type(None))


def _is_within_python(place: str) -> bool:
    return "__" in place or place.startswith(("builtins.", "sys.modules."))


class _Writer:
    """Conditions, and the objects that they name."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.conditions: list[str] = []
        self._known: dict[int, str] = {}

    def add(self, condition: str) -> None:
        """One more condition."""
        self.conditions.append(condition)

    def name(self, value: Any) -> str:
        """A name for an object."""
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = f"c{len(self.names)}"
            self.names[known] = value
        return known


_code_of = operator.attrgetter("__code__")
_order_of = operator.attrgetter("__mro__")
_defaults_of = operator.attrgetter("__defaults__")
_keywords_of = operator.attrgetter("__kwdefaults__")
_call = operator.call
_gradient_of = operator.attrgetter("grad")
_NOTHING = itertools.repeat(None)


def _never() -> bool:
    return False


def _closure_of(value: Any) -> list[Any]:
    """What the closure of a function holds; nothing for anything else."""
    return [cell.cell_contents for cell in value.__closure__ or ()] if type(value) is FunctionType else []


def _are_the_same(found: dict[Any, Any], recorded: dict[Any, Any]) -> bool:
    """Whether two dictionaries have the very same keys and values, in one order: for `==`, True and 1 would be the same."""
    is_ = operator.is_
    return (
        len(found) == len(recorded)
        and all(map(is_, found, recorded))
        and all(map(is_, found.values(), recorded.values()))
    )


def _has_plain_length(holder: Any) -> bool:
    """Whether asking if a container is empty runs no code of anybody's."""
    return type(holder).__flags__ & (1 << 9) == 0


def _facts_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What can be read of a tensor besides its values; of one without memory, and of a nested one, nothing is asked that
    would raise."""
    with DisableTorchFunctionSubclass():
        strides = tensor.stride() if has_strides(tensor) else None
        shape = tuple(tensor.shape) if is_initialised(tensor) and not tensor.is_nested else ()
        return type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad, shape, strides


def _described(facts: tuple[Any, ...]) -> str:
    _, dtype, device, _, requires_grad, shape, strides = facts
    return f"{dtype} {list(shape)} of strides {strides} on {device}{' that needs a gradient' if requires_grad else ''}"


def _like(recorded: torch.Tensor) -> Callable[[Any], bool]:
    """Whether a value is a tensor of the class, type and shape of `recorded`."""
    if recorded.layout is not torch.strided:
        return lambda value: value is recorded
    facts = (type(recorded), recorded.dtype, recorded.shape, recorded.requires_grad)

    def is_like(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and (type(value), value.dtype, value.shape, value.requires_grad) == facts

    return is_like
