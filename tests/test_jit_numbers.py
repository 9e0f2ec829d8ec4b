"""Numbers never freeze unnoticed: watched where they can be, refused where they cannot."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
import os
import random
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import treeplay
from support import assert_same, jit
from treeplay import driver

SCALE = 2.0
_step_count = 0


class Config:
    rate = 3.0  # a number that the class gives to its instances

    def __init__(self) -> None:
        self.scale = 2.0
        self.mode = "double"
        self.unused = 0


def test_a_global_number_is_watched() -> None:
    global SCALE
    jitted = jit(lambda x: x * SCALE - 1)
    for value in (2.0, 2.0, 2.0, 5.0, 5.0, 5.0, 2.0):
        SCALE = value
        x = torch.randn(3)
        assert_same(jitted(x), x * value - 1)
    assert jitted.statistics().recordings == 2
    assert "SCALE" in jitted.explain()


@pytest.mark.parametrize("second", [3, 3.0, True])
def test_a_closure_number_is_watched_with_its_type(second: Any) -> None:
    factor: Any = 2
    jitted = jit(lambda x: x * factor)
    for value in (2, 2, 2, second, second, second):
        factor = value
        assert_same(jitted(torch.ones(2, dtype=torch.int64)), torch.ones(2, dtype=torch.int64) * value)


def test_attributes_flags_and_strings_are_watched() -> None:
    config = Config()

    def use(x: torch.Tensor) -> torch.Tensor:
        return x * config.scale * config.rate - (1 if config.mode == "double" else 7)

    jitted = jit(use)
    for change in ({}, {}, {"scale": 5.0}, {}, {"mode": "other"}, {}, {"rate": 1.0}, {}):
        vars(config).update(change)
        x = torch.randn(3)
        assert_same(jitted(x), use(x))
    config.unused = 9
    before = jitted.statistics().replays
    jitted(torch.ones(3))
    assert jitted.statistics().replays == before + 1


def test_a_class_attribute_is_watched() -> None:
    class Scaled(nn.Module):
        scale = 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    jitted = jit(Scaled())
    for scale in (2.0, 2.0, 2.0, 3.0):
        Scaled.scale = scale
        assert_same(jitted(torch.ones(2)), torch.full((2,), scale))


def test_numbers_in_dicts_and_short_lists_are_watched() -> None:
    options, limits = {"scale": 2.0, "name": "a"}, [1.0, 5.0]
    jitted = jit(lambda x: (x * options["scale"]).clamp(limits[0], limits[1]))
    for scale, limit in ((2.0, 1.0), (2.0, 1.0), (3.0, 1.0), (3.0, 1.0), (3.0, 2.0)):
        options["scale"], limits[0] = scale, limit
        x = torch.randn(4) * 3
        assert_same(jitted(x), (x * scale).clamp(limit, 5.0))


def test_a_list_that_grows_outside_of_the_program_does_not_matter() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.losses: list[float] = []
            self.weight = torch.ones(2)

        def step(self, x: torch.Tensor) -> torch.Tensor:
            return x - self.weight

    trainer = Trainer()
    jitted = jit(trainer.step)
    for call in range(6):
        jitted(torch.ones(2))
        trainer.losses.append(float(call))
    assert jitted.statistics().replays == 5


def test_a_number_that_changes_is_an_input() -> None:
    scale = 1.0
    jitted = jit(lambda x: x * scale)
    for call in range(12):
        scale = float(call % 3)
        assert_same(jitted(torch.ones(2)), torch.full((2,), scale))
    assert jitted.statistics().recordings == 1


def test_one_whose_value_is_needed_may_return_to_an_earlier_one_without_a_new_recording() -> None:
    scale = 1.0
    jitted = jit(lambda x: x * math.hypot(scale, 2))
    for call in range(14):
        scale = float(call % 3)
        assert_same(jitted(torch.ones(2)), torch.full((2,), math.hypot(scale, 2)))
    assert jitted.statistics().recordings == 3


def test_one_that_always_changes_ends_in_eager_calls() -> None:
    scale = 0.0
    jitted = jit(lambda x: x * math.hypot(scale, 2), on_refusal="eager")
    with treeplay.settings.changed(max_rerecordings=4), pytest.warns(UserWarning, match="scale"):
        for call in range(12):
            scale = float(call)
            assert_same(jitted(torch.ones(2)), torch.full((2,), math.hypot(scale, 2)))
    assert jitted.statistics().refusals == 1 and "pass a number as an argument" in jitted.explain()


def test_a_counter_of_the_program_counts_each_call_once() -> None:
    global _step_count
    _step_count = 0

    def step(x: torch.Tensor) -> torch.Tensor:
        global _step_count
        _step_count += 1
        return x * _step_count

    jitted = jit(step)
    for call in range(1, 7):
        assert_same(jitted(torch.ones(2)), torch.full((2,), float(call)))
        assert _step_count == call
    assert jitted.statistics().replays == 5


@pytest.mark.parametrize("where", ["attribute", "closure", "list", "dict", "function", "class"])
def test_a_counter_anywhere_is_put_back_where_the_program_is_refused(where: str) -> None:
    class Holder:
        count = 0

    holder, counts, table, cell = Holder(), [0], {"count": 0}, 0

    def step(x: torch.Tensor) -> torch.Tensor:
        nonlocal cell
        if where == "attribute":
            holder.count += 1
        elif where == "closure":
            cell += 1
        elif where == "list":
            counts[0] += 1
        elif where == "dict":
            table["count"] += 1
        elif where == "function":
            step.count += 1  # type: ignore[attr-defined]
        else:
            Holder.count += 1
        return x - float(x.sum())

    step.count = 0  # type: ignore[attr-defined]
    jitted = jit(step)
    jitted(torch.ones(2))
    for _ in range(2):
        with pytest.raises(treeplay.Refusal, match="reads a tensor's value"):
            jitted(torch.ones(2))
    made = {
        "attribute": holder.count,
        "closure": cell,
        "list": counts[0],
        "dict": table["count"],
        "function": step.count,  # type: ignore[attr-defined]
        "class": Holder.count,
    }
    assert made[where] == 1


def test_a_number_that_only_the_program_knows_is_refused_with_its_line() -> None:
    counter = itertools.count(1)
    numbers = {"take": lambda: hidden_count(counter)}
    jitted = jit(lambda x: x * numbers["take"]())
    jitted(torch.ones(2))
    with pytest.raises(treeplay.Refusal) as caught:
        jitted(torch.ones(2))
    assert caught.value.where is not None


def hidden_count(counter: Any) -> int:
    return next(counter)


@pytest.mark.parametrize("draw", [random.random, lambda: random.randint(0, 10**6), lambda: random.gauss(0, 1)])
def test_python_random_numbers_are_refused_and_drawn_once(draw: Any) -> None:
    jitted = jit(lambda x: x * draw(), on_refusal="eager")
    random.seed(3)
    expected = [draw() for _ in range(4)]
    random.seed(3)
    with pytest.warns(UserWarning, match="eagerly"):
        found = [jitted(torch.ones(1, dtype=torch.float64)) for _ in range(4)]
    assert_same(found, [torch.ones(1, dtype=torch.float64) * number for number in expected])


def test_a_clock_is_refused() -> None:
    import time

    jitted = jit(lambda x: x * time.perf_counter())
    jitted(torch.ones(2))
    with pytest.raises(treeplay.Refusal, match=r"time.perf_counter: is asked by the program and gives another answer"):
        jitted(torch.ones(2))


def test_a_clock_that_is_asked_after_an_operator_is_refused() -> None:
    import time

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y * time.perf_counter()

    jitted = jit(program)
    jitted(torch.ones(2))
    with pytest.raises(treeplay.Refusal, match=r"time.perf_counter: is asked by the program and gives another answer"):
        jitted(torch.ones(2))


def test_a_setting_that_is_changed_between_the_first_calls_is_recorded(monkeypatch: Any) -> None:
    monkeypatch.setenv("SCALE", "2")
    jitted = jit(lambda x: x * int(os.environ["SCALE"]) - 1)
    x = torch.randn(3)
    assert_same(jitted(x), x * 2 - 1)
    monkeypatch.setenv("SCALE", "3")
    for _ in range(5):
        assert_same(jitted(x), x * 3 - 1)
    statistics = jitted.statistics()
    assert (statistics.eager_calls, statistics.recordings, statistics.refusals) == (2, 1, 0)
    assert statistics.keys[0].rerecorded_because == ()


def test_a_returned_setting_that_is_changed_between_the_first_calls_is_recorded(monkeypatch: Any) -> None:
    monkeypatch.setenv("SCALE", "2")
    jitted = jit(lambda x: (x - 1, int(os.environ["SCALE"])))
    x = torch.randn(3)
    jitted(x)
    monkeypatch.setenv("SCALE", "3")
    for _ in range(4):
        assert_same(jitted(x), (x - 1, 3))
    assert jitted.statistics().recordings == 1


def test_what_a_first_compile_leaves_in_the_process_is_no_change(monkeypatch: Any) -> None:
    monkeypatch.setenv("SCALE", "2")
    compiled: list[int] = []
    record = driver.record

    def leaving_traces(*args: Any, **options: Any) -> Any:
        made = record(*args, **options)
        monkeypatch.setenv("LEFT_BY_A_COMPILER", "1")
        compiled.append(1)
        return made

    monkeypatch.setattr(driver, "record", leaving_traces)
    jitted = jit(lambda x: x * int(os.environ["SCALE"]) - 1)
    for _ in range(4):
        x = torch.randn(3)
        assert_same(jitted(x), x * 2 - 1)
    assert (jitted.statistics().recordings, jitted.statistics().replays, len(compiled)) == (1, 3, 2)


def test_settings_and_modes_that_are_changed_between_the_first_calls_are_recorded() -> None:
    config, model = {"k": 2}, nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    jitted = jit(lambda x: model(x).topk(config["k"]).values)
    x = torch.randn(2, 3)
    with torch.no_grad():
        for call in range(6):
            if call == 1:
                config["k"] = 3
                model.eval()
            if call:
                assert_same(jitted(x), jitted.__wrapped__(x))
            else:
                jitted(x)
    assert (jitted.statistics().recordings, jitted.statistics().refusals) == (1, 0)


def test_effects_happen_once_a_call_whatever_differs() -> None:
    import time

    count = torch.zeros(())

    def step(x: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return x * time.perf_counter() - count

    jitted = jit(step, on_refusal="eager")
    with pytest.warns(UserWarning, match="eagerly"):
        for call in range(5):
            jitted(torch.ones(2))
            assert count == call + 1


def test_a_number_that_differs_in_each_call_is_refused_in_the_third(tmp_path: Any) -> None:
    path = tmp_path / "log"
    path.touch()

    def program(x: torch.Tensor) -> torch.Tensor:
        with path.open("a") as file:
            file.write("called ")
        return x * path.stat().st_size

    jitted = jit(program, on_refusal="eager")
    with pytest.warns(UserWarning, match=r"is given the number .* in the first call and .* in the second"):
        for _ in range(6):
            jitted(torch.ones(2))
    statistics = jitted.statistics()
    assert (statistics.eager_calls, statistics.refusals, statistics.recordings) == (6, 1, 0)


def test_a_returned_number_that_changes_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "log"
    path.touch()

    def program(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        with path.open("a") as file:
            file.write("called ")
        return x - 1, path.stat().st_size

    jitted = jit(program, on_refusal="eager")
    with pytest.warns(UserWarning, match="the program returns"):
        assert len({jitted(torch.ones(2))[1] for _ in range(4)}) == 4


def test_a_hyper_parameter_returned_as_a_number_is_that_of_the_call() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(x: torch.Tensor) -> float:
        model(x).sum().backward()
        optimizer.step()
        return optimizer.param_groups[0]["lr"] * 2

    jitted = jit(step)
    for rate in (0.5, 0.5, 0.25, 0.125):
        optimizer.param_groups[0]["lr"] = rate
        found = jitted(torch.ones(1, 2))
        assert found == rate * 2 and type(found) is float
    assert jitted.statistics().replays == 3


def test_a_step_counter_in_a_tensor_is_the_cure() -> None:
    steps = torch.zeros(())

    def step(x: torch.Tensor) -> torch.Tensor:
        steps.add_(1)
        return x / steps - 1

    jitted = jit(step)
    for call in range(1, 6):
        x = torch.randn(2)
        assert_same(jitted(x), x / call - 1)
    assert jitted.statistics().replays == 4


def test_an_enum_is_watched_by_identity() -> None:
    class Mode(enum.Enum):
        ADD = 1
        TAKE = 2

    mode = Mode.ADD
    jitted = jit(lambda x: x + 1 if mode is Mode.ADD else x - 1)
    for value in (Mode.ADD, Mode.ADD, Mode.TAKE, Mode.TAKE, Mode.ADD):
        mode = value
        assert_same(jitted(torch.ones(2)), torch.ones(2) + (1 if value is Mode.ADD else -1))


class Helper:
    """Stands beside the program; its methods read numbers of their own."""

    factor = 2.0

    def __init__(self) -> None:
        self.scale = SCALE

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale

    def __getitem__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale

    def attribute(self, x: torch.Tensor) -> torch.Tensor:
        return self._inner(x)

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale * self.factor

    def a_global(self, x: torch.Tensor) -> torch.Tensor:
        return x * SCALE

    @property
    def a_property(self) -> float:
        return self.scale

    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x * SCALE

    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.factor


class Inherited(Helper):
    def attribute(self, x: torch.Tensor) -> torch.Tensor:
        return super().attribute(x)


_helper, _heir = Helper(), Inherited()


@pytest.mark.parametrize(
    "program",
    [
        lambda x: _helper(x),
        lambda x: _helper[x],
        lambda x: _helper.attribute(x),
        lambda x: _heir.attribute(x),
        lambda x: _helper.a_global(x),
        lambda x: x * _helper.a_property,
        lambda x: Helper.static(x),
        lambda x: Helper.of_class(x),
        lambda x: Helper().attribute(x),
    ],
    ids=["call", "item", "attribute", "super", "global", "property", "static", "class", "made inside"],
)
def test_numbers_that_methods_of_helpers_read_are_watched(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = jit(program)
    for value in (2.0, 3.0):
        monkeypatch.setitem(globals(), "SCALE", value)
        for target in (_helper, _heir):
            monkeypatch.setattr(target, "scale", value)
        monkeypatch.setattr(Helper, "factor", value)
        for _ in range(3):
            assert_same(jitted(torch.ones(2)), program(torch.ones(2)))
    assert jitted.statistics().recordings == 2


def test_a_number_that_hangs_on_a_parameter_is_watched() -> None:
    model = nn.Linear(2, 2)
    model.weight.rate = 2.0
    jitted = jit(lambda x: x * model.weight.rate)
    for value in (2.0, 3.0):
        model.weight.rate = value
        for _ in range(3):
            assert_same(jitted(torch.ones(2)), torch.full((2,), value))
    assert jitted.statistics().recordings == 2


class Growing:
    def __init__(self) -> None:
        self.rows = torch.zeros(8)
        self.filled = 0

    def __len__(self) -> int:
        return self.filled

    def push(self, value: float) -> None:
        self.rows[self.filled] = value
        self.filled += 1


def test_numbers_of_methods_that_the_program_does_not_use_cost_nothing() -> None:
    growing = Growing()
    jitted = jit(lambda x: x + growing.rows.sum())
    for call in range(6):
        growing.push(call)
        assert_same(jitted(torch.ones(2)), torch.ones(2) + sum(range(call + 1)))
    assert jitted.statistics().recordings == 1


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    factor: ClassVar[float] = 2.0

    def scaled(self) -> torch.Tensor:
        return self.x * self.factor * SCALE


@pytest.mark.parametrize("what", ["factor", "SCALE"])
def test_numbers_that_methods_of_an_argument_read_are_watched(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = jit(lambda batch: batch.scaled())
    for value in (2.0, 3.0):
        monkeypatch.setitem(globals(), "SCALE", value) if what == "SCALE" else monkeypatch.setattr(Batch, what, value)
        for _ in range(3):
            assert_same(jitted(Batch(torch.ones(2))), Batch(torch.ones(2)).scaled())
    assert jitted.statistics().recordings == 2
