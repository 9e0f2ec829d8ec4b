"""The survey finds what a program can reach, and only what its code names."""

from __future__ import annotations

import collections
import functools
import gc
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from support.installed import FILE, package
from treeplay.trace.call import call_of
from treeplay.trace.survey.found import Survey
from treeplay.trace.survey.program import survey
from treeplay.trace.survey.recordable import survey_call
from treeplay.values.place import How, Place

weight = torch.ones(1)
unnamed = torch.ones(1)
SCALE, UNUSED = 2.0, 3.0


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * weight * SCALE


def labels(found: Survey, tensor: torch.Tensor) -> list[str]:
    return [str(place) for place in found.tensor_at(tensor)]


def watched(found: Survey) -> dict[str, Any]:
    return {str(place): value for place, value in found.watched}


def test_globals_are_found_through_the_functions_that_name_them() -> None:
    found = survey(lambda x: helper(x) - 1)
    assert labels(found, weight) == ["weight"] and not found.tensor_at(unnamed)
    assert watched(found)["SCALE"] == 2.0 and "UNUSED" not in watched(found)
    assert watched(found)["helper"] is helper


def test_functions_made_of_text_are_followed_as_python_runs_a_command() -> None:
    names: dict[str, Any] = {"weight": weight, "SCALE": 2.0}
    exec("def helper(x):\n    return x * weight * SCALE\n\ndef program(x):\n    return helper(x) - 1\n", names)
    found = survey(names["program"])
    assert labels(found, weight) == ["weight"] and watched(found)["SCALE"] == 2.0


@pytest.mark.parametrize(
    ("hold", "label"),
    [
        (lambda t: t, "held"),
        (lambda t: [0, t], "held[1]"),
        (lambda t: {"a": (t,)}, "held['a'][0]"),
        (lambda t: SimpleNamespace(deep={"b": [t]}), "held.deep['b'][0]"),
        (lambda t: collections.OrderedDict(c=t), "held['c']"),
    ],
)
def test_a_tensor_in_a_closure_is_found_wherever_it_lies(hold: Any, label: str) -> None:
    tensor = torch.ones(1)
    held = hold(tensor)
    found = survey(lambda: held)
    assert labels(found, tensor) == [label]
    assert found.tensor_at(tensor)[0].read() is tensor


def test_parameters_buffers_and_gradients_of_modules_are_found() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0].weight.grad = torch.ones(2, 2)
    found = survey(model)
    names = {*dict(model.named_parameters()), *dict(model.named_buffers())}
    assert {label for tensor in model.state_dict(keep_vars=True).values() for label in labels(found, tensor)} == {
        f"program.{name}" for name in names
    }
    assert labels(found, model[0].weight.grad) == ["program.0.weight.grad"]
    assert set(found.modules.values()) == set(model.modules())


def test_a_tied_parameter_has_two_places() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    found = survey(lambda x: first(second(x)))
    assert sorted(labels(found, first.weight)) == ["first.weight", "second.weight"]


def test_an_optimizer_is_found_with_its_state_and_groups() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    found = survey(lambda: optimizer.step())
    assert found.optimizers == [optimizer]
    state = optimizer.state[model.weight]
    assert all(found.tensor_at(tensor) for tensor in state.values())
    assert "optimizer.param_groups[0]['lr']" not in watched(found)  # an input, not a constant


@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: functools.partial(f),
        lambda f: functools.wraps(f)(lambda *args: f(*args)),
        lambda f: SimpleNamespace(run=f).run,
        lambda f: lambda x, inner=f: inner(x),
        lambda f: functools.partial(lambda x, *, inner: inner(x), inner=f),
    ],
)
def test_wrappers_are_looked_through(wrap: Any) -> None:
    tensor = torch.ones(1)
    found = survey(wrap(lambda x: x * tensor))
    assert labels(found, tensor) == ["tensor"]


def test_a_method_reaches_its_self_and_the_methods_it_calls() -> None:
    class Holder:
        def __init__(self) -> None:
            self.tensor, self.scale, self.other = torch.ones(1), 2.0, 3.0

        def run(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * self.tensor

        def inner(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale * weight

    holder = Holder()
    found = survey(holder.run)
    assert labels(found, holder.tensor) == ["self.tensor"] and labels(found, weight) == ["weight"]
    assert watched(found) == {"self.scale": 2.0, Holder.inner.__qualname__: Holder.inner}


def test_slots_class_attributes_and_function_attributes_are_found() -> None:
    class Slotted:
        __slots__ = ("tensor",)
        shared = torch.zeros(1)
        factor = 5.0

    slotted = Slotted()
    slotted.tensor = torch.ones(1)

    def run(x: torch.Tensor) -> torch.Tensor:
        return x * slotted.tensor * slotted.shared * slotted.factor * run.bias  # type: ignore[attr-defined]

    run.bias = torch.full((1,), 2.0)  # type: ignore[attr-defined]
    found = survey(run)
    assert all(found.tensor_at(tensor) for tensor in (slotted.tensor, Slotted.shared, run.bias))  # type: ignore[attr-defined]
    assert watched(found)["slotted.factor"] == 5.0
    assert found.tensor_at(slotted.tensor)[0].how is How.ATTRIBUTE


def test_a_class_attribute_that_a_subclass_hides_is_not_watched() -> None:
    class Base:
        kind = None
        scale = 2.0

    class Derived(Base):
        kind = "derived"

    thing = Derived()

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * thing.scale if thing.kind else x

    found = survey(program)
    assert [(str(place), value) for place, value in found.watched if str(place).startswith("thing.")] == [
        ("thing.kind", "derived"),
        ("thing.scale", 2.0),
    ]
    assert found.changed() is None


def test_iterators_and_generators_are_found_only_where_code_names_them() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.batches, self.log = iter([1, 2]), iter([3])

        def run(self) -> Any:
            return next(self.batches)

    assert [str(place) for place in survey(Trainer().run).iterators] == ["self.batches"]
    generator = torch.Generator()
    assert list(survey(lambda: torch.rand(1, generator=generator)).generators.values()) == [generator]


class Counting:
    """An iterator whose state is an attribute."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> int:
        self.taken += 1
        return self.taken


class Pairs(zip):  # type: ignore[type-arg]
    """One that keeps where it is in C."""

    def __next__(self) -> Any:
        return super().__next__()[0]


@pytest.mark.parametrize(("made", "is_found"), [(Counting(), False), (Pairs([1], [2]), True)])
def test_an_iterator_in_python_is_an_object_as_others_are(made: Any, is_found: bool) -> None:
    assert bool(survey(lambda: next(made)).iterators) == is_found


def test_an_iterator_in_python_that_a_library_made_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all that it holds is followed."""
    made = ModuleType("a_library")
    made.__file__ = FILE
    monkeypatch.setitem(sys.modules, "a_library", made)
    monkeypatch.setattr(Counting, "__module__", "a_library")
    counting = Counting()
    assert survey(lambda: next(counting)).iterators


def test_containers_on_the_way_are_kept_to_be_put_back() -> None:
    items, queue, bag = [1], collections.deque([2]), {3}
    found = survey(lambda: (items, queue, bag))
    assert all(id(container) in found.containers for container in (items, queue, bag))


def test_a_change_of_a_watched_value_is_seen_with_its_type() -> None:
    options: dict[str, Any] = {"scale": 1, "name": "a", "none": None}
    found = survey(lambda: (options["scale"], options["name"], options["none"]))
    assert found.changed() is None
    for key, value in (("scale", 1.0), ("name", "b"), ("none", 0)):
        before, options[key] = options[key], value
        assert str(found.changed()) == f"options['{key}']"
        options[key] = before
    assert found.changed() is None


@pytest.mark.parametrize(("size", "is_watched"), [(100, True), (1000, False)])
def test_numbers_under_computed_strings_are_watched_where_they_are_few(size: int, is_watched: bool) -> None:
    table = {f"a{at}": at for at in range(size)}
    found = survey(lambda key: table[key] - table["a7"])
    assert ("table['a2']" in watched(found)) == is_watched
    assert "table['a7']" in watched(found)


def test_of_the_objects_of_a_library_numbers_are_not_watched_for_names_that_code_computes() -> None:
    held = SimpleNamespace(mine=1, schedule=torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.ones(1)]), 2))
    found = survey(lambda name: (getattr(held, name), held.schedule))
    assert "held.mine" in watched(found)
    assert "held.schedule.last_epoch" not in watched(found)


def test_of_code_that_is_known_to_run_numbers_count_as_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a class of an installed package no survey follows every method."""
    source = "class Keeper:\n    def __init__(self):\n        self.rate, self.mode, self.other = 2.0, 'add', 3.0\n"
    keeper = package(source, monkeypatch).Keeper()
    assert watched(survey(lambda: keeper.update())).keys().isdisjoint({"keeper.rate", "keeper.mode"})
    found = watched(survey(lambda: keeper.update(), ran={"rate", "mode"}))
    assert found["keeper.rate"] == 2.0 and found.keys().isdisjoint({"keeper.mode", "keeper.other"})


def test_cycles_and_shared_objects_are_visited_once() -> None:
    cycle: list[Any] = [torch.ones(1)]
    cycle.append({"again": cycle})
    found = survey(lambda: cycle)
    assert len(found.tensor_at(cycle[0])) == 1


def test_objects_of_libraries_are_not_entered() -> None:
    import logging
    import threading

    log, lock = logging.getLogger("x"), threading.Lock()
    found = survey(lambda: (log, lock))
    assert id(vars(log)) not in found.containers


def test_a_cell_that_is_not_yet_assigned_is_a_place_with_nothing() -> None:
    found = survey(lambda: later)
    assert [repr(value) for _, value in found.cells] == ["gone"]
    later = 1
    assert later


@dataclass
class Settings:
    scale: float = 2.0
    parts: tuple[int, ...] = (1, 2)


def test_a_dataclass_is_an_object_with_attributes() -> None:
    config = Settings()
    found = survey(lambda x: x * config.scale * config.parts[0])
    assert watched(found)["config.scale"] == 2.0 and watched(found)["config.parts"] == (1, 2)


def test_a_place_reads_and_writes_what_it_stands_for() -> None:
    table = {"a": 1}
    place = Place(How.ITEM, table, "a", None, "table['a']")
    place.write(5)
    assert (place.read(), table["a"], str(place)) == (5, 5, "table['a']")
    with pytest.raises(AttributeError, match="cannot be assigned"):
        Place(How.ROOT, table, None, None, "table").write(1)


def test_the_globals_that_an_object_keeps_are_not_entered() -> None:
    class Kernel:
        def __init__(self) -> None:
            self.namespace = globals()
            self.weight = torch.ones(2)

    kernel = Kernel()
    found = survey(lambda x: x * kernel.weight)
    assert id(kernel.weight) in found.tensors and id(globals()) not in found.containers


def test_attributes_are_listed_while_others_write_them() -> None:
    """A collection may begin at each object that is made, and let another thread write."""
    held = SimpleNamespace(**{f"a{number}": number for number in range(3000)})
    written: list[str] = []

    def write(phase: str, info: Any) -> None:
        written.append(f"b{len(written)}")
        vars(held)[written[-1]] = 1

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * held.a7

    call, thresholds = call_of((torch.ones(2),), {}), gc.get_threshold()
    gc.callbacks.append(write)
    gc.set_threshold(1)
    try:
        survey_call(program, call)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(write)
    assert written
