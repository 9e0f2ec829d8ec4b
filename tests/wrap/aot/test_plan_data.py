"""Plans are plain data: equal ones give equal text in any process, and one from elsewhere acts like a fresh one.

That every plan of these tests can be pickled, and leads to no tensor, is looked at where they are made (`oracle.plain_data`).
"""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.interpreters import FreshPython
from treeplay.wrap.aot.emit.load import load_call
from wrap.aot.oracle import Make, boxed, compare, grown, numbers, plain_data, wrapped
from wrap.aot.pairs import nested, pair


def added(x: Any, y: Any) -> Any:
    return [x + y]


def written(x: Any, y: Any) -> Any:
    x.mul_(2)
    y.t_()
    return [x.view(-1), (x + y.t()).t(), x]


def trained(x: Any, w: Any) -> Any:
    y = (x * w).sin()
    return [y, y.view(-1), w.t(), (x * 3).detach(), 7]


def overlapping(a: Any, b: Any) -> Any:
    a.mul_(2)
    return [a + b, b[1:]]


def two() -> list[Any]:
    return [numbers(2, 3), numbers(2, 3)]


CASES: dict[str, tuple[Callable[..., Any], Make]] = {
    "plain": (added, two),
    "written": (written, two),
    "training": (trained, lambda: [numbers(2, 3, grad=True), grown(2, 3)]),
    "a base": (overlapping, lambda: (lambda x: [x[:4], x[2:]])(numbers(6))),
    "a base with gradients": (overlapping, lambda: (lambda x: [x[:4], x[2:]])(grown(6))),
    "pairs": (added, lambda: [pair(2, 3), numbers(2, 3)]),
    "pairs with gradients": (added, lambda: [nested(2, 3, grad=True), numbers(2, 3)]),
}


def made(name: str) -> tuple[Any, dict[str, Any]]:
    """A wrapped function after a call and its backward, and the callables of its graphs."""
    runs: dict[str, Any] = {}

    def keeping(direction: str) -> Any:
        def compiler(module: Any, inputs: Any) -> Any:
            runs[direction] = boxed(module, inputs)
            return runs[direction]

        return compiler

    function, make = CASES[name]
    call = wrapped(function, make, **{name: keeping(name) for name in ("inference", "forward", "backward")})
    compare(function, call, make)
    return call, runs


def act(plans: bytes) -> list[tuple[str, ...]]:
    """Plans of another process around graphs of this one: the same as fresh ones, and like eager. Gives all text."""
    found = []
    for name, plan in pickle.loads(plans).items():
        fresh, runs = made(name)
        assert plan == fresh.plan and hash(plan) == hash(fresh.plan)
        graphs = [runs[direction] for direction in ("inference", "forward", "backward") if direction in runs]
        call = load_call(plan, *graphs)
        compare(CASES[name][0], call, CASES[name][1])
        # Without the program there are no second derivatives.
        assert call.sources == load_call(fresh.plan, *graphs).sources
        found.append(fresh.sources)
    return found


def test_W6_W1_plans_of_another_process_give_equal_text_and_act_like_fresh_ones(
    tmp_path: Path, fresh_python: FreshPython
) -> None:
    calls = {name: made(name)[0] for name in CASES}
    file = tmp_path / "plans"
    file.write_bytes(pickle.dumps({name: call.plan for name, call in calls.items()}))
    program = (
        "import sys, pickle; from pathlib import Path; from wrap.aot.test_plan_data import act\n"
        "file = Path(sys.argv[1]); file.write_bytes(pickle.dumps(act(file.read_bytes())))"
    )
    tests = Path(__file__).parents[2]
    places = os.pathsep.join(filter(None, [*map(os.path.abspath, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))
    fresh_python(program, file, cwd=tests, PYTHONPATH=places)
    assert pickle.loads(file.read_bytes()) == [call.sources for call in calls.values()]


def test_W6_what_is_no_plain_data_is_found() -> None:
    plan = wrapped(added, two).plan
    with pytest.raises(AssertionError, match="in the plan"):
        plain_data(dataclasses.replace(plan, arguments=("x", numbers(2))))
