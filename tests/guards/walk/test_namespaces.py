"""Namespaces on a walk: which names of a module or of globals count."""

from __future__ import annotations

import inspect
from typing import Any

from support.reached import Holder, functions, labels, reached

RATE = 2.0


UNUSED = 3.0


STEPS: list[float] = [1.0]


def test_globals_are_guarded_by_the_names_of_code_that_ran() -> None:
    found = labels(reached(lambda: RATE))
    assert {name for name in found if name.startswith(f"{__name__}.")} == {f"{__name__}.RATE"}


def helper() -> float:
    return RATE + STEPS[0]


def test_asking_for_a_signature_guards_nothing_of_the_inspect_module_itself() -> None:
    def plain(x: float, *, scale: float = 2.0) -> float:
        return x * scale

    def annotated(x: Holder) -> None: ...

    found = labels(reached(lambda: inspect.signature(plain).bind(1.0)))
    assert not any("_filesbymodname" in label or "modulesbyfile" in label for label in found)
    found = labels(reached(lambda: inspect.signature(annotated, eval_str=True)))  # that evaluates text in the module
    assert any("modulesbyfile" in label for label in found)


def test_a_global_function_that_ran_is_entered_and_one_that_did_not_is_not() -> None:
    def program(call: bool = True) -> float:
        return helper() if call else unused()

    reach = reached(program)
    assert {"program", "helper"} <= functions(reach) and "unused" not in functions(reach)
    assert {f"{__name__}.RATE", "STEPS[0]"} <= labels(reach) and f"{__name__}.UNUSED" not in labels(reach)


def unused() -> float:
    return UNUSED


def test_functions_within_functions_and_generators_are_followed() -> None:
    def program() -> Any:
        def inner() -> float:
            return RATE

        return [inner() for _ in range(1)], [*(helper() for _ in range(1))]

    reach = reached(program)
    assert {f"{__name__}.RATE", f"{__name__}.helper"} <= labels(reach)


def test_imports_of_code_that_ran_are_guarded() -> None:
    def program() -> Any:
        import math

        return math.pi

    reach = reached(program)
    assert any(place == "sys.modules.math" for place in labels(reach))
