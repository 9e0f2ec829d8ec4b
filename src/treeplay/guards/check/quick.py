"""The quick form of guards: one generated function, that Python runs at first and a native one later.

write() ─▶ versions, classes and code by Python ─ no change for 50 calls ─┬▶ words of memory, by one C function
                                                                          └▶ by torch's native guards, without a compiler
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

from treeplay.codegen import Source, load_source
from treeplay.guards.check.code import Steady, emit_check
from treeplay.guards.check.words import Comparer, Words, background, never
from treeplay.guards.dependencies import Dependencies
from treeplay.guards.facts import TensorFacts
from treeplay.torch_seam.dynamo import Codes, Kinds, native_check, version_of_table

_YOUNG = 50
"""Warm calls after which the check is a native one; a dictionary that changes sooner again and again is no steady one."""
_LATER = 4  # so many times as many calls after that, if it could not become one just then


class QuickCheck:
    """The functions that tell whether nothing has changed since `write`, and say what `again` says if something has.

    `use` is told which of them is the one to call. Not safe for threads: the owner of the recording takes turns."""

    __slots__ = (
        "_again",
        "_dependencies",
        "_facts",
        "_held",
        "_state_is_alike",
        "_texts",
        "_use",
        "_words",
        "by_python",
        "is_young",
    )

    def __init__(
        self,
        dependencies: Dependencies,
        facts: Sequence[TensorFacts],
        *,
        state_is_alike: Callable[[], bool],
        again: Callable[[], bool],
        use: Callable[[Callable[[], bool]], None],
    ) -> None:
        self._dependencies = dependencies
        self._facts = facts
        self._state_is_alike = state_is_alike
        self._again = again
        self._use = use
        self.is_young = True  # whether Python compares
        self.by_python: Any = None  # the function
        self._words: Any = None  # the function that compares words, where Python has something to compare too
        self._texts = {"by_python": "", "words": ""}
        self._held: tuple[Any, ...] = ()  # what a native function keeps

    def write(self) -> None:
        """Compare with the present, in which all is as it has to be, from here on."""
        source = self._emitted(self._steady_check)
        self.by_python = self._loaded("by_python", self.by_python, source)
        if self._words is not None:
            self._words.__globals__.clear()  # of what was replaced
        self._held = ()
        self._use(self.by_python)

    def containers(self) -> Iterator[Any]:
        """Whatever in here may hold an object that is guarded."""
        yield self._held
        for names in (function.__globals__ for function in (self.by_python, self._words) if function is not None):
            for found in (names, *names.values(), *map(_closure_of, names.values())):
                yield from (found, *found) if isinstance(found, (list, tuple)) else (found,)

    def forget(self) -> None:
        """Hold nothing any more."""
        for function in (self.by_python, self._words):
            if function is not None:
                function.__globals__.clear()
        self._held = ()

    def _loaded(self, name: str, before: Any, source: Source) -> Any:
        """The function of a source; as a rule only objects and versions have changed since `before` was made."""
        if before is not None and source.text == self._texts[name]:
            before.__globals__.update(source.names)
            return before
        self._texts[name] = source.text
        return load_source(source)

    def _emitted(self, steady: Steady, words: Words | None = None) -> Source:
        state_is_alike, again = self._state_is_alike, self._again
        return emit_check(
            self._dependencies, self._facts, steady, state_is_alike=state_is_alike, again=again, words=words
        )

    def _steady_check(self, tables: tuple[dict[Any, Any], ...]) -> Callable[[], bool]:
        """Versions, classes and code compared in Python, which is made quickly; natively once nothing changes for a while."""
        dependencies = self._dependencies
        known = {id(table.holder): table.version for table in dependencies.tables}
        versions = [known[id(table)] for table in tables]
        objects, classes = [value for value, _, _ in dependencies.kinds], [cls for _, cls, _ in dependencies.kinds]
        functions, codes = (
            [item.function for item in dependencies.functions],
            [item.code for item in dependencies.functions],
        )
        self.is_young = True
        left = wait = _YOUNG

        def check() -> bool:
            nonlocal left, wait
            if [*map(version_of_table, tables)] != versions:
                return False
            if not all(map(operator.is_, map(type, objects), classes)):  # a metaclass may have an `__eq__`
                return False
            if [*map(_code_of, functions)] != codes:
                return False
            left -= 1
            if left == 0:
                self.is_young = False
                kinds, pairs = zip(objects, classes, strict=True), zip(functions, codes, strict=True)
                if not self._goes_native(tables, [*kinds], [*pairs]):
                    wait *= _LATER if background.is_done else 1
                    left = wait
            return True

        return check

    def _goes_native(self, tables: tuple[dict[Any, Any], ...], kinds: Kinds, codes: Codes) -> bool:
        """Have a native function compare from the next call on, unless another thread changes something just now."""
        comparer = background.comparer()
        if comparer is not None:
            return self.compare_words(comparer)
        native = native_check(tables, kinds, codes) if background.is_done else None
        if native is None or not self._holds_still():
            return False
        self.by_python.__globals__["steady"], self._held = native, native.args[0]
        return True

    def compare_words(self, comparer: Comparer) -> bool:
        """Compare words of memory from the next call on, if they are what they have to be."""
        dependencies, words = self._dependencies, Words(comparer)

        def steady(tables: tuple[dict[Any, Any], ...]) -> Callable[[], bool]:
            for table in tables:
                words.add_table(table)
            for value, cls, _ in dependencies.kinds:
                words.add(value, "cls", cls)
            for item in dependencies.functions:
                words.add(item.function, "code", item.code)
            return never

        source = self._emitted(steady, words)
        is_all = source.names.keys() == {"again", "steady"}
        compare = words.check(self._again if is_all else never)
        if compare is None or not self._holds_still():
            return False
        self._held = words.held
        if not is_all:  # else there is no Python around it
            source = replace(source, names={**source.names, "steady": compare})
            self._words = compare = self._loaded("words", self._words, source)
        self._use(compare)
        return True

    def _holds_still(self) -> bool:
        """Whether nothing has changed while words of memory or versions were noted: what another thread wrote is not lost."""
        names = self.by_python.__globals__
        # It is only asked: `again` would compare values, and go over to what it finds.
        again, names["again"] = names["again"], never
        try:
            return bool(self.by_python())
        finally:
            names["again"] = again


_code_of = operator.attrgetter("__code__")


def _closure_of(value: Any) -> list[Any]:
    """What the closure of a function holds; nothing for anything else."""
    return [cell.cell_contents for cell in value.__closure__ or ()] if type(value) is FunctionType else []
