"""A program that is called with changing sizes is compiled once for all of them, and eager tells what is right.

What Inductor does of it is in `tests/backend/shapes/test_program_any_size.py`; here, what is compiled runs its operators.
"""

from __future__ import annotations

import copy
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import treeplay
from support import random_programs
from support.no_trial import NoTrial
from treeplay import driver, observe
from treeplay.backend import inner
from treeplay.lower.aten import lower_aten
from treeplay.observe import internal_errors
from treeplay.plan.arena import plan_arena
from treeplay.record import front, lowered
from treeplay.tree.all_sizes import calls as all_sizes
from treeplay.tree.all_sizes import compile as compile_all_sizes
from treeplay.tree.all_sizes.trial import SizesTrial
from treeplay.tree.tiers import compile_thread
from treeplay.values.statistics import KeyFacts

pytestmark = pytest.mark.programs


@pytest.fixture(autouse=True)
def in_the_background(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # that ends after this
    with treeplay.settings.changed(tiers="background"):
        yield
    assert compile_thread.wait(60)
    assert not internal_errors()


@pytest.fixture(autouse=True)
def operators_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a compiler makes of a graph, without one."""

    def compile_it(module: Any, inputs: Any, options: Any, flat: Any, noted: Any) -> Any:
        return inner.boxed(inner.without_views(module)), noted

    found = type("Compiler", (), {"path": "somewhere"})()
    monkeypatch.setattr(inner, "_inductor", compile_it)
    monkeypatch.setattr(all_sizes, "find_compiler", lambda: found)
    monkeypatch.setattr(front, "find_compiler", lambda: found)

    def lower(graph: torch.fx.Graph, **_: Any) -> Any:
        return replace(lower_aten(graph, plan_arena(graph)), name="inductor")

    monkeypatch.setattr(lowered, "lower_inductor", lower)


@pytest.fixture(autouse=True)
def no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_all_sizes, "SizesTrial", NoTrial)


def jitted_twice(program: Callable[..., Any], *sizes: int) -> Any:
    """A jitted program after calls with two sizes, with what comes of it compiled."""
    jitted = treeplay.jit(program)
    for size in sizes or (3, 4):
        jitted(torch.randn(size, 4))
        assert compile_thread.wait(60)  # imports
        jitted(torch.randn(size, 4))
        assert compile_thread.wait(60)
    return jitted


def for_all(jitted: Any) -> KeyFacts | None:
    """What there is of a program for all sizes."""
    return next((key for key in jitted.statistics().keys if "any" in key.arguments), None)


def served(jitted: Any) -> int:
    """The calls that recordings for all sizes have served."""
    keys = [key for key in jitted.statistics().keys if "any" in key.arguments]
    return sum(recording.replays for key in keys for recording in key.recordings)


def check(jitted: Any, *args: Any) -> bool:
    """Compare a call with eager; whether it was served by a recording for all sizes."""
    before = served(jitted)
    torch.testing.assert_close(jitted(*args), jitted.__wrapped__(*args))
    return served(jitted) > before


weight = torch.randn(4, 4)


def rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x @ weight).softmax(0) - 1 / x.shape[0], torch.arange(x.shape[0]) * 2


def test_the_second_size_is_compiled_for_all_and_replayed() -> None:
    jitted = jitted_twice(rows)
    assert all(check(jitted, torch.randn(size, 4)) for size in (5, 9, 2, 70, 4))
    key = for_all(jitted)
    assert key is not None and key.arguments == "args[0]=float32[any, 4]"
    assert "compiled once for all sizes" in jitted.explain()
    assert jitted.statistics().recordings == 2  # one of the first size, which came twice


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x[None, None, :, None] * torch.arange(x.shape[0])[None, :, None, None],
        lambda x: F.dropout(x, 0.5, training=False).expand(2, -1, -1) - F.dropout(x * 2, 0.0),
        lambda x: F.scaled_dot_product_attention(*x.reshape(1, -1, 2, 2).transpose(1, 2).expand(3, 1, 2, -1, 2)),
        lambda x: F.interpolate(x[None], scale_factor=2) + x.new_zeros(x.shape[0], 8),
        lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)) @ x.t(),
        lambda x: torch.tensor([1.0, 2, 3, 4]) * x + torch.tensor(0.5),
    ],
)
def test_what_torch_does_otherwise_for_symbols_is_no_difference(program: Any) -> None:
    with torch.no_grad():
        jitted = jitted_twice(program)
        assert all(check(jitted, torch.randn(size, 4)) for size in (5, 9, 4)), jitted.explain()


def test_no_call_waits_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    ready, compile_now = threading.Event(), inner._inductor

    def compile_it(*args: Any) -> Any:
        assert ready.wait(30)
        return compile_now(*args)

    monkeypatch.setattr(inner, "_inductor", compile_it)
    jitted = treeplay.jit(rows)
    for size in (3, 4, 5, 6, 7, 8, 4, 5):
        assert not check(jitted, torch.randn(size, 4))
    assert "compiled for all sizes meanwhile" in jitted.explain()
    ready.set()
    assert compile_thread.wait(60)
    for size in (3, 4, 5):
        jitted(torch.randn(size, 4))
        assert compile_thread.wait(60)
    assert check(jitted, torch.randn(6, 4))


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=12), st.integers(0, 3))
def test_any_sizes_in_any_order(sizes: list[int], which: int) -> None:
    program = PROGRAMS[which]
    jitted = treeplay.jit(program)
    for size in sizes:
        check(jitted, torch.randn(size, 4))
        assert compile_thread.wait(60)


DRAWS = (10, 11, 12)
SIZES = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=3, max_size=8)


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(random_programs.PROGRAMS, SIZES)
def test_random_programs(body: list[tuple[int, int, int]], sizes: list[tuple[int, int]]) -> None:
    check_random_program(body, sizes)


@pytest.mark.soak
@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(random_programs.PROGRAMS, SIZES)
def test_more_random_programs(body: list[tuple[int, int, int]], sizes: list[tuple[int, int]]) -> None:
    check_random_program(body, sizes)


def check_random_program(body: list[tuple[int, int, int]], sizes: list[tuple[int, int]]) -> None:
    """New tensors of what a random program makes of two arguments and of state."""
    body, state = [step for step in body if step[0] not in DRAWS], torch.randn(4)

    def program(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [out * 2 - 1 for out in random_programs.run(body, x.clone(), y - 0.5, state * 2)[-3:]]

    jitted = treeplay.jit(program)
    for rows, columns in [*sizes, *sizes]:
        x, y = torch.randn(rows, 4), torch.randn(rows, columns)
        try:
            expected = program(x, y)
        except Exception as error:
            with pytest.raises(type(error)):
                jitted(x, y)
            continue
        found = jitted(x, y)
        torch.testing.assert_close(found, expected)
        assert [out.stride() for out in found] == [out.stride() for out in expected]
        assert compile_thread.wait(60)


def branching(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] > 8 else x - 1


def halves(x: torch.Tensor) -> torch.Tensor:
    count = x.shape[0] // 2
    first, rest = x[:count], x[count:]
    return torch.cat([rest * 3, first]) if x.shape[0] % 2 == 0 else torch.cat([first, rest - 1])


def one_by_one(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(4)
    for row in x:
        total = total * 0.5 + row
    return total


PROGRAMS = [rows, branching, halves, one_by_one]


def test_both_sides_of_a_branch_are_right() -> None:
    jitted = jitted_twice(branching, 3, 4)
    assert check(jitted, torch.randn(8, 4))
    assert not check(jitted, torch.randn(9, 4))  # the other side, which is traced now
    assert compile_thread.wait(60)
    assert all(check(jitted, torch.randn(size, 4)) for size in (12, 5, 9, 8))
    key = for_all(jitted)
    assert key is not None and len(key.recordings) == 2


def test_what_is_asked_of_sizes_is_told() -> None:
    jitted = jitted_twice(branching, 3, 4)
    key = jitted._manager.cache.table
    recording = next(made for entry in key for made in entry.recordings if made.signature.sizes is not None)
    from support import call_of
    from treeplay.tree.mismatch import first_mismatch

    assert "t0_size_0 <= 8" in recording.source
    told = str(first_mismatch(recording.signature, call_of(torch.randn(9, 4))))
    assert told == "args[0].size(0): 9, recorded with 2 <= args[0].size(0) and args[0].size(0) <= 8"


@pytest.mark.parametrize("program", [one_by_one, lambda x: x * int(x.shape[0]), lambda x: x.sum() + len(x)])
def test_a_size_that_python_needs_is_recorded_by_itself_and_the_reason_told(program: Any) -> None:
    jitted = jitted_twice(program)
    assert not check(jitted, torch.randn(5, 4))
    key = for_all(jitted)
    assert key is not None and key.phase == "refused" and "needs size 0 of args[0]" in (key.refusal or "")
    assert key.refusal in jitted.explain() or "needs size 0" in jitted.explain()
    assert jitted.statistics().refusals == 0


def asks_for_the_type(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if isinstance(x.shape[0], int) else x - 1


def asks_for_the_class(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if type(x.shape[0]) is int else 3)


def looks_up(x: torch.Tensor, table: dict[str, float] = {"3": 2.0, "4": 5.0}) -> torch.Tensor:  # noqa: B006
    return x * table.get(f"{x.shape[0]}", 7.0)


def looks_up_a_number(x: torch.Tensor, table: dict[int, float] = {3: 2.0, 4: 5.0}) -> torch.Tensor:  # noqa: B006
    return x * table.get(x.shape[0], 7.0)


def catches(x: torch.Tensor) -> torch.Tensor:
    try:
        return x * {3: 2.0, 4: 5.0, 5: 6.0, 6: 8.0}[x.shape[0]]
    except (KeyError, TypeError):
        return x - 1


def numpys(x: torch.Tensor) -> torch.Tensor:
    import numpy

    return x * float(numpy.float32(0.1) * x.shape[0])


def asks_for_the_tensors_type(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if type(x) is torch.Tensor else 3)


@pytest.mark.parametrize(
    "program",
    [
        *(asks_for_the_type, asks_for_the_class, looks_up, looks_up_a_number, catches, numpys),
        asks_for_the_tensors_type,
    ],
)
def test_what_python_does_otherwise_with_a_symbol_is_found(program: Any) -> None:
    jitted = jitted_twice(program)
    for size in (5, 6, 3, 4, 7):
        check(jitted, torch.randn(size, 4))
        assert compile_thread.wait(60)
    assert served(jitted) == 0


def test_a_size_of_one_is_another_program() -> None:
    jitted = jitted_twice(lambda x: x + torch.ones(x.shape[0], 4).sum(0), 3, 4)
    assert check(jitted, torch.randn(5, 4))
    assert not check(jitted, torch.randn(1, 4)) and not check(jitted, torch.randn(0, 4))
    assert check(jitted, torch.randn(6, 4))


def test_what_is_asked_of_sizes_has_no_answer_for_none() -> None:
    # Is 1 + (rows - 1) // ((rows + 1) // 2) 2?
    jitted = jitted_twice(lambda x: x.chunk(2)[0].sum() - x.chunk(2)[-1] * 2, 3, 4)
    assert not check(jitted, torch.randn(0, 4)) and not check(jitted, torch.randn(0, 4))
    assert check(jitted, torch.randn(6, 4))


def test_sizes_of_two_arguments() -> None:
    jitted = treeplay.jit(lambda x, y: (x.t() @ y).relu() - x.shape[0] + y.shape[1] * 2)
    for rows, columns in ((3, 5), (4, 5), (4, 5), (6, 7), (6, 7)):
        jitted(torch.randn(rows, 2), torch.randn(rows, columns))
        assert compile_thread.wait(60)
    assert all(check(jitted, torch.randn(a, 2), torch.randn(a, b)) for a, b in ((5, 8), (9, 2), (2, 9)))


def test_equal_sizes_by_chance_are_no_condition() -> None:
    jitted = treeplay.jit(lambda x, y: (x.sum(0), y.sum(0) * y.shape[0]))
    for rows in (3, 4, 4, 4):
        jitted(torch.randn(rows, 2), torch.randn(rows, 2))
        assert compile_thread.wait(60)
    assert check(jitted, torch.randn(5, 2), torch.randn(7, 2))


def test_one_tensor_twice_is_another_kind_of_call() -> None:
    jitted = treeplay.jit(lambda x, y: x * 2 if x is y else x - y)
    for rows in (3, 4, 4):
        jitted(torch.randn(rows, 2), torch.randn(rows, 2))
        assert compile_thread.wait(60)
    x = torch.randn(5, 2)
    assert check(jitted, x, torch.randn(5, 2))
    assert not check(jitted, x, x)


def test_an_argument_of_which_only_the_size_is_read() -> None:
    jitted = treeplay.jit(lambda x, like: x * like.shape[0])
    for rows in (3, 4, 4):
        jitted(torch.randn(2), torch.randn(rows))
        assert compile_thread.wait(60)
    assert all(check(jitted, torch.randn(2), torch.randn(rows)) for rows in (5, 7, 3, 4))


def test_arguments_that_lie_otherwise() -> None:
    jitted = jitted_twice(lambda x: x.reshape(-1) * 2 - x.sum())
    whole = torch.randn(20, 8)
    for x in (whole[3:9, :4], torch.randn(4, 6).t(), torch.randn(9, 4)[::2], whole[5:7, 2:6], torch.randn(11, 4)[2:]):
        check(jitted, x)
        assert compile_thread.wait(60)


def test_an_argument_that_the_program_also_reaches_by_itself() -> None:
    kept: dict[str, torch.Tensor] = {}

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * kept["x"].shape[0] + kept["x"].sum()

    jitted = treeplay.jit(program)
    for rows in (3, 4, 4, 5, 6, 6, 7):
        kept["x"] = torch.randn(rows, 2)
        check(jitted, kept["x"])
        assert compile_thread.wait(60)
        check(jitted, torch.randn(rows + 1, 2))
        assert compile_thread.wait(60)


def test_what_is_put_on_an_argument() -> None:
    jitted = treeplay.jit(lambda x: x * getattr(x, "scale", 2))
    for size in (3, 4, 4, 5, 6, 6):
        x: Any = torch.randn(size, 4)
        x.scale = 5
        assert not check(jitted, x) and compile_thread.wait(60)
        check(jitted, torch.randn(size, 4))
        assert compile_thread.wait(60)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.dropout(self.linear(x)) - self.shift  # type: ignore[operator]
        return out


def test_state_that_changes() -> None:
    model = Layer().eval()
    with torch.no_grad():
        jitted = jitted_twice(model)
        assert check(jitted, torch.randn(5, 4))
        model.linear.weight.mul_(-2)
        assert check(jitted, torch.randn(6, 4))
        model.linear.weight = nn.Parameter(torch.randn(4, 4))
        check(jitted, torch.randn(7, 4))
        model.shift = torch.randn(4)
        check(jitted, torch.randn(8, 4))
        model.load_state_dict(copy.deepcopy(Layer().state_dict()))
        check(jitted, torch.randn(9, 4))
        model.linear = nn.Linear(4, 3)
        model.shift = torch.randn(3)
        for size in (9, 5, 6, 7):
            check(jitted, torch.randn(size, 4))
            assert compile_thread.wait(60)
        assert check(jitted, torch.randn(11, 4))


def test_training_draws_and_is_not_for_all_sizes() -> None:
    model = Layer().eval()
    with torch.no_grad():
        jitted = jitted_twice(model)
        assert check(jitted, torch.randn(5, 4))
        model.train()
        for size in (6, 7, 8, 6):
            torch.manual_seed(size)
            found = jitted(torch.ones(size, 4))
            torch.manual_seed(size)
            torch.testing.assert_close(found, model(torch.ones(size, 4)))
            assert compile_thread.wait(60)
        model.eval()
        assert check(jitted, torch.randn(9, 4))
    assert "it draws random numbers" in jitted.explain()


def test_grad_mode_and_gradients() -> None:
    model = Layer().eval()
    with torch.no_grad():
        jitted = jitted_twice(model)
    for size in (5, 6, 7):
        x = torch.randn(size, 4, requires_grad=True)
        found = jitted(x)
        assert found.requires_grad and compile_thread.wait(60)
        torch.testing.assert_close(found, model(x))
        (grad,) = torch.autograd.grad(found.sum(), x)
        torch.testing.assert_close(grad, torch.autograd.grad(model(x).sum(), x)[0])
        with torch.no_grad():
            assert check(jitted, torch.randn(size, 4)) and not jitted(x).requires_grad


def test_inference_mode() -> None:
    with torch.inference_mode():
        jitted = jitted_twice(Layer().eval())
        assert check(jitted, torch.randn(5, 4))
        assert jitted(torch.randn(6, 4)).is_inference()
    with torch.no_grad():
        assert not check(jitted, torch.randn(5, 4)) and not jitted(torch.randn(6, 4)).is_inference()


def test_autocast() -> None:
    model = Layer().eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        jitted = jitted_twice(model)
        assert check(jitted, torch.randn(5, 4))
    with torch.no_grad():
        assert not check(jitted, torch.randn(6, 4))


def test_eagers_exception_for_one_size() -> None:
    positions = torch.randn(6, 4)
    jitted = jitted_twice(lambda x: x + positions[: x.shape[0]])
    assert check(jitted, torch.randn(6, 4))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="must match"):
            jitted(torch.randn(7, 4))
    assert check(jitted, torch.randn(5, 4))


def test_eagers_exception_for_one_value() -> None:
    table = torch.randn(6, 4)
    jitted = treeplay.jit(lambda index: table[index] * 2)
    for size in (3, 4, 4):
        jitted(torch.zeros(size, dtype=torch.int64))
        assert compile_thread.wait(60)
    assert check(jitted, torch.arange(5))
    with pytest.raises(IndexError):
        jitted(torch.tensor([1, 2, 6]))
    for size in (5, 6):
        check(jitted, torch.randint(6, (size,)))
        assert compile_thread.wait(60)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.mul_(2),
        lambda x: x.t(),
        lambda x: (x, x + 1),
        lambda x: (x + 1).chunk(2),
        lambda x: x.shape,
        lambda x: (x * 2, x.shape[0]),
        lambda x: F.dropout(x, 0.5) * 0 + x,
    ],
)
def test_what_is_more_than_computing_new_tensors(program: Any) -> None:
    jitted = treeplay.jit(program)
    for size in (4, 6, 6, 8, 2, 4):
        x = torch.randn(size, 4)
        again = x.clone()
        torch.testing.assert_close(jitted(x), program(again))
        torch.testing.assert_close(x, again)
        assert compile_thread.wait(60)
    key = for_all(jitted)
    assert served(jitted) == 0 and key is not None and "not compiled for all at once" in (key.refusal or "")


def test_containers_and_values_among_arguments_and_results() -> None:
    def program(batch: dict[str, Any], scale: str) -> dict[str, Any]:
        x = batch["x"] * (2 if scale == "twice" else 3)
        return {"sum": x.sum(), "parts": [x - 1, batch["y"].cumsum(0)], "scale": scale, "same": x}

    jitted = treeplay.jit(program)
    for size in (3, 4, 4, 5):
        jitted({"x": torch.randn(size, 2), "y": torch.randn(size)}, "twice")
        assert compile_thread.wait(60)
    batch = {"x": torch.randn(6, 2), "y": torch.randn(7)}
    before = served(jitted)
    found, expected = jitted(batch, "twice"), program(batch, "twice")
    assert found["scale"] == "twice" and served(jitted) == before + 1
    torch.testing.assert_close({**found, "scale": 0}, {**expected, "scale": 0})
    assert jitted(batch, "thrice")["sum"] == program(batch, "thrice")["sum"]


def test_a_training_step_is_not_traced_once_more_for_a_short_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    jitted = treeplay.jit(step)
    for _ in range(3):
        jitted(torch.randn(8, 4))
    traces: list[Any] = []
    monkeypatch.setattr(driver, "run_front", lambda *args, **kwargs: traces.append(args))
    jitted(torch.randn(3, 4))
    assert not traces and "have to do with gradients" in jitted.explain()


def test_results_are_new_in_each_call() -> None:
    jitted = jitted_twice(rows)
    xs = [torch.randn(5, 4) for _ in range(3)]
    held = [jitted(x) for x in xs]
    for x, found in zip(xs, held, strict=True):
        torch.testing.assert_close(found, rows(x))


def test_a_recording_of_its_own_sizes_goes_first() -> None:
    x = torch.randn(3, 4)
    jitted = jitted_twice(rows)
    assert check(jitted, torch.randn(5, 4)) and not check(jitted, x)
    assert check(jitted, torch.randn(5, 4)) and not check(jitted, x)


@pytest.mark.parametrize("how", ["exact", "deterministic", "aten"])
def test_where_results_are_to_depend_on_no_clock(how: str) -> None:
    jitted = treeplay.jit(rows, lower="aten" if how == "aten" else "auto")
    with treeplay.settings.changed(tiers="exact" if how == "exact" else "background"):
        torch.use_deterministic_algorithms(how == "deterministic")
        try:
            for size in (3, 4, 5, 6, 7):
                jitted(torch.randn(size, 4))
        finally:
            torch.use_deterministic_algorithms(False)
    assert for_all(jitted) is None


def test_a_torch_that_cannot_trace_with_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare() -> None:
        raise ImportError("no symbols")

    monkeypatch.setattr(
        driver, "for_all_sizes", lambda make: compile_all_sizes.ForAllSizes(make, prepare, lambda: False)
    )
    jitted = treeplay.jit(rows)
    for size in (3, 4, 5, 4, 4):
        check(jitted, torch.randn(size, 4))
        assert compile_thread.wait(60)
    assert any("no symbols" in str(error) for error in internal_errors())
    observe.reset()
    before = jitted.statistics().replays
    check(jitted, torch.randn(4, 4))
    assert jitted.statistics().replays == before + 1


def slowly(x: torch.Tensor) -> torch.Tensor:
    time.sleep(0.002)
    return x * 2 - 1


def test_one_that_is_faster_than_its_program_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_all_sizes, "SizesTrial", SizesTrial)
    jitted = jitted_twice(slowly)
    for _ in range(4):
        for size in (5, 6, 7, 8):
            check(jitted, torch.randn(size, 4))
    assert all(check(jitted, torch.randn(size, 4)) for size in (5, 9, 6))
    assert "of what the program as it is takes" in jitted.explain()
    assert jitted.statistics().not_replayed["timed beside a recording for all sizes"] >= 6


def test_one_that_is_not_faster_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_all_sizes, "SizesTrial", SizesTrial)
    compile_now = inner._inductor

    def compile_it(*args: Any) -> Any:
        run, strides = compile_now(*args)

        def slow(args: list[Any]) -> Any:
            time.sleep(0.002)
            return run(args)

        return slow, strides

    monkeypatch.setattr(inner, "_inductor", compile_it)
    jitted = jitted_twice(lambda x: x * 2 - 1)
    for _ in range(12):
        for size in (5, 6, 7, 8):
            check(jitted, torch.randn(size, 4))
    assert not any(check(jitted, torch.randn(size, 4)) for size in (5, 9, 6))
    key = for_all(jitted)
    assert key is not None and key.phase == "refused" and "is not faster" in (key.refusal or "")


def test_threads() -> None:
    jitted = treeplay.jit(rows)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(40):
            size = int(torch.randint(2, 12, (), generator=generator))
            x = torch.randn(size, 4, generator=generator)
            try:
                torch.testing.assert_close(jitted(x), rows(x))
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and compile_thread.wait(60)
    for size in (2, 3, 4):
        jitted(torch.randn(size, 4))
        assert compile_thread.wait(60)
    work(7)
    assert not wrong and served(jitted) > 0


def test_a_program_that_is_dropped_meanwhile_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    jitted_twice(rows)  # imports
    ready, begun, compile_now = threading.Event(), threading.Event(), inner._inductor

    def compile_it(*args: Any) -> Any:
        begun.set()
        assert ready.wait(30)
        return compile_now(*args)

    monkeypatch.setattr(inner, "_inductor", compile_it)
    model = Layer().eval()
    with torch.no_grad():
        jitted = treeplay.jit(model)
        jitted(torch.randn(3, 4))
        jitted(torch.randn(4, 4))
    assert begun.wait(30)
    gone = weakref.ref(model)
    del jitted, model
    gc.collect()
    assert gone() is None
    ready.set()


def test_reset_while_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = jitted_twice(rows)
    ready, compile_now = threading.Event(), inner._inductor

    def compile_it(*args: Any) -> Any:
        assert ready.wait(30)
        return compile_now(*args)

    jitted.reset()
    monkeypatch.setattr(inner, "_inductor", compile_it)
    jitted(torch.randn(3, 4)), jitted(torch.randn(4, 4))
    jitted.reset()
    ready.set()
    assert compile_thread.wait(60) and for_all(jitted) is None
    check(jitted, torch.randn(5, 4))


def test_an_error_of_the_compiler_is_told_and_sizes_are_recorded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from treeplay.errors import LoweringError

    def compile_it(*args: Any) -> Any:
        raise LoweringError("it cannot")

    monkeypatch.setattr(inner, "_inductor", compile_it)
    jitted = jitted_twice(rows)
    check(jitted, torch.randn(5, 4))
    key = for_all(jitted)
    assert key is not None and key.phase == "refused" and "it cannot" in (key.refusal or "")
