"""Guards as the code of a warm call: the same conditions of which `conditions.py` says what differs.

    def holds():
        try:
            if (
                steady()                              versions of dictionaries, classes and code
                and not any(c1)                       dictionaries that were empty
                and len(c2) == 3                      a list
                and all(map(c3, c2, c4))
            ):
                return True
        except (...):
            pass
        return again()

With `Words`, `steady()` is all of these in one call, and what is left is written out.

Pure, but for two questions that take a call each: a comparison of several dictionaries at once, and of several tensors.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CellType
from typing import Any

import torch

from treeplay.codegen import Source, Writer
from treeplay.guards.alike import check_of_plain
from treeplay.guards.check.tables import all_are, entry_conditions, filled
from treeplay.guards.check.words import Words
from treeplay.guards.conditions import Asked, Code, ContainerGuard
from treeplay.guards.containers import Items
from treeplay.guards.dependencies import Dependencies
from treeplay.guards.facts import HasGradient, TensorFacts, facts_of
from treeplay.torch_seam.dynamo import tensor_check
from treeplay.torch_seam.patched import ABSENT
from treeplay.torch_seam.tensors import has_strides
from treeplay.values.kinds import HEAP
from treeplay.values.same import is_same

_FEW = 4
"""So many comparisons are written out; more of one kind are one native loop."""
_RAISED = "KeyError, IndexError, AttributeError, ValueError, TypeError, RuntimeError"

Steady = Callable[[tuple[dict[Any, Any], ...]], Callable[[], bool]]


def emit_check(
    dependencies: Dependencies,
    facts: Sequence[TensorFacts],
    steady: Steady,
    *,
    state_is_alike: Callable[[], bool],
    again: Callable[[], bool],
    words: Words | None,
) -> Source:
    """`holds()`: whether all guards of `dependencies` and all `facts` hold, and if not, what `again` says.

    `steady` makes the comparison of dictionaries by their versions, and of classes and code; `words`, if there are any, get
    these and all others that they can tell of, and `steady` is called last. `state_is_alike` is asked where state may be
    replaced without another guard telling of it."""
    text = Writer(again=again)
    others = itertools.chain(
        *(filled(text, guard) for guard in dependencies.tables),
        *(entry_conditions(text, guard) for guard in dependencies.tables if not guard.is_steady),
        ([f"{text.constant(dependencies.together)}()"] if dependencies.together.slots else ()),
        _orders(text, dependencies, words),
        _attributes(text, dependencies, words),
        *(_elements(text, guard, words) for guard in (*dependencies.items, *dependencies.members)),
        _asked(text, dependencies.asked, words),
        _defaults(text, dependencies.functions, words),
        (f"{text.constant(guard.now)}() == {text.constant(guard.recorded)}" for guard in dependencies.data),
        _tensors(text, dependencies, facts, state_is_alike),
    )
    found = [*_empties(text, dependencies, words), *others]
    # Made last, when `words` has got all, and asked first. `QuickCheck` puts a native one in its place, by the name.
    found.insert(0, f"{text.use('steady', steady(_steady(dependencies)))}()")
    with text.block("def holds():"):
        with text.block("try:"), text.block("if ("):
            text.add(*(f"and {condition}" if at else condition for at, condition in enumerate(found)))
        text.add("    ):", "        return True", f"except ({_RAISED}):", "    pass", "return again()")
    return text.source("guards", entry="holds")


def _steady(dependencies: Dependencies) -> tuple[dict[Any, Any], ...]:
    """The dictionaries that are compared by their versions."""
    empties = {id(guard.holder) for guard in _empty(dependencies)}
    tables = (guard.holder for guard in dependencies.tables if guard.is_steady and id(guard.holder) not in empties)
    return tuple({id(holder): holder for holder in tables}.values())  # each once: it may have several guards


def _empty(dependencies: Dependencies) -> list[ContainerGuard]:
    """Containers that were empty, where asking for that runs no code of anybody's."""
    empties: list[ContainerGuard] = [guard for guard in dependencies.tables if not guard.holder]
    empties += [guard for guard in (*dependencies.items, *dependencies.members) if not guard.recorded]
    return [guard for guard in empties if _has_plain_length(guard.holder)]


def _empties(text: Writer, dependencies: Dependencies, words: Words | None) -> Iterator[str]:
    """Containers that are still empty; the filling of a dictionary may count as no change."""
    empties = [guard.holder for guard in _empty(dependencies)]
    known = {id(holder) for holder in empties}
    # Of classes with a length of their own: filling them at once counts as no change either.
    others = [guard.holder for guard in dependencies.tables if not guard.holder and id(guard.holder) not in known]
    if words is not None:
        for holder in (*empties, *others):
            if isinstance(holder, dict):
                words.add_empty(holder)
        empties, others = [holder for holder in empties if not isinstance(holder, dict)], []
    if empties:
        yield f"not any({text.constant(tuple(empties))})"
    if others:
        yield f"not any(map({text.constant(dict.__len__)}, {text.constant(tuple(others))}))"


def _orders(text: Writer, dependencies: Dependencies, words: Words | None) -> Iterator[str]:
    bases = {base for cls in dependencies.orders for base in cls.__mro__[1:]}  # their order is part of their heirs'
    owners = [cls for cls in dependencies.orders if cls not in bases]
    orders = [dependencies.orders[cls] for cls in owners]
    if words is not None:
        for cls, order in zip(owners, orders, strict=True):
            now = cls.__mro__  # bases that were put back give an equal one
            words.add(cls, "order", now if now == order else order)
    elif owners:
        yield f"[*map({text.constant(_order_of)}, {text.constant(owners)})] == {text.constant(orders)}"


def _attributes(text: Writer, dependencies: Dependencies, words: Words | None) -> Iterator[str]:
    """Objects whose attributes lie in the dictionary that is guarded: `obj.__dict__ = other` tells no dictionary of it."""
    left = [
        (value, table)
        for value, table, _ in dependencies.attributes
        if words is None or not words.add_attributes(value, table)
    ]
    if left:
        objects, tables = map(list, zip(*left, strict=True))
        ask, same = text.constant(object.__getattribute__), text.constant(operator.is_)
        found = f"map({ask}, {text.constant(objects)}, {text.constant(itertools.repeat('__dict__'))})"
        yield f"all(map({same}, {found}, {text.constant(tables)}))"


def _elements(text: Writer, guard: ContainerGuard, words: Words | None) -> Iterator[str]:
    """A list or a set; empty ones are asked about together with empty dictionaries."""
    if not guard.recorded and _has_plain_length(guard.holder):
        return
    holder = text.constant(guard.holder)
    left_out = guard.free | guard.written if not guard.is_steady else set()
    kept = [(at, value) for at, value in enumerate(guard.recorded) if at not in left_out]
    if words is not None and type(guard.holder) is list:
        words.add_list(guard.holder, len(guard.recorded), kept)
    else:
        yield f"len({holder}) == {len(guard.recorded)}"
        if not left_out:
            yield all_are(text, holder, guard.recorded)
        else:
            yield from (f"{holder}[{at}] is {text.constant(value)}" for at, value in kept)
    for at in sorted(guard.filled):
        yield f"{text.constant(check_of_plain(guard.recorded[at]))}({holder}[{at}])"
    for at in sorted(guard.written - guard.free - guard.filled):
        if not guard.slots[at].may_be_shared:
            yield f"{text.constant(guard.slots[at].fits)}({holder}[{at}])"


def _asked(text: Writer, guards: Iterable[Asked], words: Words | None) -> Iterator[str]:
    """Cells, slots, weak references and answers: those that are attributes of one name in one loop."""
    others: list[Asked] = []
    attributes: dict[str, list[Asked]] = {}
    gradients: list[torch.Tensor] = []
    for guard in guards:
        if guard.is_free:
            continue
        if guard.slot is not None:
            if not guard.slot.may_be_shared:
                yield f"{text.constant(guard.slot.fits)}({text.constant(guard.ask)}())"
        elif guard.is_fresh:
            yield f"{text.constant(is_same)}({text.constant(guard.ask)}(), {text.constant(guard.recorded)})"
        elif isinstance(guard, HasGradient) and guard.recorded:
            gradients.append(guard.tensor)
        elif guard.attribute is not None and guard.recorded is not ABSENT:
            if words is not None and isinstance(guard.attribute[0], CellType):
                words.add(guard.attribute[0], "content", guard.recorded)
                continue
            attributes.setdefault(guard.attribute[1], []).append(guard)
        else:
            others.append(guard)
    if len(others) <= _FEW:
        yield from (f"{text.constant(guard.ask)}() is {text.constant(guard.recorded)}" for guard in others)
    else:
        asks = text.constant([guard.ask for guard in others])
        yield all_are(text, f"map({text.constant(operator.call)}, {asks})", [guard.recorded for guard in others])
    for name, found in attributes.items():
        holders = text.constant([guard.attribute[0] for guard in found if guard.attribute])
        now = f"map({text.constant(operator.attrgetter(name))}, {holders})"
        yield all_are(text, now, [guard.recorded for guard in found])
    if gradients:
        now = f"map({text.constant(_gradient_of)}, {text.constant(gradients)})"
        yield f"all(map({text.constant(operator.is_not)}, {now}, {text.constant(_NOTHING)}))"


def _defaults(text: Writer, guards: Sequence[Code], words: Words | None) -> Iterator[str]:
    if words is not None:
        for guard in guards:
            if guard.defaults or guard.is_asked:
                words.add(guard.function, "defaults", ABSENT if guard.defaults is None else guard.defaults)
            if guard.keywords or guard.is_asked:
                words.add(guard.function, "keywords", ABSENT if guard.keywords is None else guard.keywords)
        return
    for name, entry, ask in (
        ("defaults", "__defaults__", _defaults_of),
        ("keywords", "__kwdefaults__", _keywords_of),
    ):
        having = [(each.function, getattr(each, name)) for each in guards if each.is_asked or getattr(each, name)]
        if len(having) <= _FEW:
            yield from (f"{text.constant(of)}.{entry} is {text.constant(value)}" for of, value in having)
        else:
            functions = text.constant([function for function, _ in having])
            yield all_are(text, f"map({text.constant(ask)}, {functions})", [value for _, value in having])


def _tensors(
    text: Writer, dependencies: Dependencies, facts: Sequence[TensorFacts], state_is_alike: Callable[[], bool]
) -> Iterator[str]:
    tensors = [guard.tensor for guard in facts if has_strides(guard.tensor)]
    if tensors:
        yield f"{text.constant(tensor_check(tensors))}(*{text.constant(tensors)})"
    may_move = any(
        guard.free or (guard.written and isinstance(guard, Items))
        for guard in (*dependencies.tables, *dependencies.items)
        if not guard.is_steady
    )
    if (
        may_move
        or dependencies.filled()
        or dependencies.together.slots
        or any(guard.is_free or guard.slot is not None for guard in dependencies.asked)
    ):
        yield f"{text.constant(state_is_alike)}()"
    for guard in facts:
        if not has_strides(guard.tensor):
            yield f"{text.constant(facts_of)}({text.constant(guard.tensor)}) == {text.constant(guard.recorded)}"


_order_of = operator.attrgetter("__mro__")
_defaults_of = operator.attrgetter("__defaults__")
_keywords_of = operator.attrgetter("__kwdefaults__")
_gradient_of = operator.attrgetter("grad")
_NOTHING = itertools.repeat(None)  # endless, so that all calls can share it


def _has_plain_length(holder: Any) -> bool:
    """Whether asking if a container is empty runs no code of anybody's."""
    return not type(holder).__flags__ & HEAP
