"""Every step of a teardown is attempted; the first error is the one that counts."""

from __future__ import annotations

from treeplay.sandbox.teardown import Teardown


def failing(done: list[str], name: str) -> None:
    done.append(name)
    raise ValueError(name)


def test_steps_run_backwards_and_all_of_them() -> None:
    done: list[str] = []
    steps = Teardown()
    steps.add("a", lambda: done.append("a"))
    steps.add("b", lambda: failing(done, "b"))
    steps.add("c", lambda: done.append("c"))
    first = steps.run()
    assert done == ["c", "b", "a"] and isinstance(first, ValueError)


def test_later_errors_are_notes_of_the_first() -> None:
    done: list[str] = []
    steps = Teardown()
    steps.add("doing a", lambda: failing(done, "a"))
    steps.add("doing b", lambda: failing(done, "b"))
    first = steps.run()
    assert str(first) == "b" and first.__notes__ == ["then, while doing a: ValueError: a"]


def test_an_error_from_before_stays_the_first() -> None:
    steps, before = Teardown(), KeyError("k")
    steps.add("doing a", lambda: failing([], "a"))
    assert steps.run(before) is before and len(before.__notes__) == 1
    assert steps.run() is None  # each step once
