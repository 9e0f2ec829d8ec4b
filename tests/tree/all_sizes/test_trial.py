"""A recording for all sizes and its program are compared by calls of the same sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from treeplay.tree.all_sizes.trial import SizesTrial

Seconds = Callable[[int], float]


def tried(sizes: Iterable[int], program: Seconds, recording: Seconds) -> tuple[tuple[bool, str] | None, list[bool]]:
    """The verdict after calls of these sizes, if it was reached, and which of them were the program's."""
    trial, which = SizesTrial(), []
    for size in sizes:
        is_program = trial.is_for_program((size,))
        trial.took((program if is_program else recording)(size), (size,), is_program=is_program)
        which.append(is_program)
        if not is_program and (found := trial.verdict()) is not None:
            return found, which
    return None, which


@pytest.mark.parametrize("recording, stays", [(0.5, True), (0.97, True), (0.99, False), (2.0, False)])
@pytest.mark.parametrize("sizes", [[3] * 40, [3, 70, 8] * 20, [5, 5, 9, 1, 9, 5] * 8])
def test_the_faster_one_wins_whatever_the_sizes_take(sizes: list[int], recording: float, *, stays: bool) -> None:
    found, which = tried(sizes, lambda size: 1e-3 * size, lambda size: recording * 1e-3 * size)
    assert found is not None and found[0] is stays and f"takes {recording:.2f} of" in found[1]
    assert not any(which[:2]) and 6 <= sum(which) <= (10 if stays else 22)  # the program's calls are few


def test_calls_that_load_code_are_not_timed() -> None:
    took = iter([1.0, 1.0] + [1e-4] * 40)
    found, _ = tried([3] * 40, lambda size: 1e-3, lambda size: next(took))
    assert found is not None and found[0]


@pytest.mark.parametrize("sizes", [[3] * 40, [*range(10)] * 4])
def test_one_outlier_decides_nothing(sizes: list[int]) -> None:
    took = iter([1e-4] * 4 + [1.0] + [1e-4] * 40)
    found, _ = tried(sizes, lambda size: 1e-3, lambda size: next(took))
    assert found is not None and found[0]
    took = iter([1e-3] * 4 + [1e-6] + [1e-3] * 40)
    found, _ = tried(sizes, lambda size: 5e-4, lambda size: next(took))
    assert found is not None and not found[0]


def test_a_moment_in_which_all_takes_longer_does_not_decide_that_it_is_slower() -> None:
    took = iter([1e-3] * 8 + [1e-4] * 40)
    found, _ = tried([3] * 60, lambda size: 5e-4, lambda size: next(took))
    assert found is not None and found[0]


def test_sizes_that_do_not_repeat_have_nothing_to_compare() -> None:
    found, which = tried(range(100), lambda size: 1e-3, lambda size: 2e-3)
    assert found == (True, "its sizes hardly repeat") and sum(which) <= 12
