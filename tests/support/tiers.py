"""In which tier a test is: told from its folder, its parameters and its marks, when tests are collected.

| tier | what it needs | how a test gets there |
|---|---|---|
| `unit` | nothing: no compiler starts | every other test |
| `compile` | a C++ compiler | a parameter that is `"inductor"`, or `pytest.mark.compile` |
| `models` | packages with published architectures | the folder `tests/models` |
| `gpu` | an NVIDIA GPU | `pytest.mark.gpu` |
| `soak` | time | `pytest.mark.soak` |

The lower row wins. Tests of the tiers `unit`, `compile` and `models` carry their tier as a mark, and no other of the three
unless they were given it by hand.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import cache

import pytest

TIERS = ("unit", "compile", "models", "gpu", "soak")
CACHE = "TORCHINDUCTOR_CACHE_DIR"


def tier_of(folder: str, marks: Sequence[str], parameters: Sequence[object]) -> str:
    """The tier of a test in `folder` of `tests/`, with the names of its marks and the values of its parameters."""
    for tier in ("soak", "gpu"):
        if tier in marks:
            return tier
    if folder == "models":
        return "models"
    return "compile" if _is_compiled(marks, parameters) else "unit"


def _is_compiled(marks: Sequence[str], parameters: Sequence[object]) -> bool:
    return "compile" in marks or any(isinstance(value, str) and value == "inductor" for value in parameters)


def sort_into_tiers(items: Sequence[pytest.Item]) -> None:
    """Mark each test with its tier; what is compiled for the CPU is skipped where there is no compiler."""
    for item in items:
        marks = [mark.name for mark in item.iter_markers()]
        parameters = list(getattr(getattr(item, "callspec", None), "params", {}).values())
        item.add_marker(tier_of(item.path.parent.name, marks, parameters))
        if _is_compiled(marks, parameters) and "gpu" not in marks and _why_no_compiler():
            item.add_marker(pytest.mark.skip(reason=_why_no_compiler()))


@cache
def _why_no_compiler() -> str:
    from treeplay.lower.compiler import find_compiler

    found = find_compiler()
    return "" if found.path else f"needs a C++ compiler: {found.why}"


@contextmanager
def no_compiler() -> Iterator[None]:
    """Inductor that is started in this block fails the test, even where something catches what it raises."""
    import torch._inductor.compile_fx as inductor

    started: list[str] = []

    def refuse(*args: object, **options: object) -> None:
        started.append("a test of the tier `unit` started Inductor: mark it `compile`, or lower it to `aten`")
        pytest.fail(started[0])

    with pytest.MonkeyPatch.context() as patch:  # not the test's own, which it may undo
        patch.setattr(inductor, "_compile_fx_inner", refuse)  # all ways to Inductor go through it
        yield
    if started:
        pytest.fail(started[0])


@contextmanager
def compiled_code_of_this_run(environment: MutableMapping[str, str]) -> Iterator[None]:
    """What Inductor compiles is shared by all processes of a run and kept from others, unless the caller says where."""
    if CACHE in environment:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="treeplay-tests-", ignore_cleanup_errors=True) as folder:
        environment[CACHE] = folder
        yield
        del environment[CACHE]
