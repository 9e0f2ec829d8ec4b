"""Containers around a call: those of the arguments and of state stay the objects that they are, written to once."""

from __future__ import annotations

import dataclasses
import warnings
import weakref
from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same, jit

CALLS = 4


def assert_recorded(program: Any) -> None:
    """The last calls were replays, on a GPU of what was captured."""
    assert program.statistics().replays >= 2
    launch = program.statistics().keys[-1].recordings[-1].launch
    assert not torch.cuda.is_available() or "cuda" not in launch.device or launch.stage == "recorded"


@dataclasses.dataclass
class Pair:
    x: Any
    n: int = 1


# Each takes state and arguments, and tells which containers of the result are which besides its values.
def argument(state: Any, given: Any, x: torch.Tensor) -> Any:
    return given, x * 2 - given["x"]


def inside_an_argument(state: Any, given: Any, x: torch.Tensor) -> Any:
    return [given["inside"], given["inside"], x - given["x"]]


def tuple_and_dataclass(state: Any, given: Any, x: torch.Tensor) -> Any:
    return {"tuple": given["tuple"], "pair": given["pair"], "x": x - given["pair"].x}


def state_list(state: Any, given: Any, x: torch.Tensor) -> Any:
    state.items[0].mul_(2).add_(x)
    return state.items


def state_and_more(state: Any, given: Any, x: torch.Tensor) -> Any:
    return {"table": state.table, "items": state.items, "pair": state.pair, "x": x - state.items[1]}


def stored_and_returned(state: Any, given: Any, x: torch.Tensor) -> Any:
    state.last = [x * 3 - 1]
    return state.last, state.last


def stored_argument(state: Any, given: Any, x: torch.Tensor) -> Any:
    state.last = given
    return x - given["x"]


def made_twice(state: Any, given: Any, x: torch.Tensor) -> Any:
    made = [x - 1]
    return {"a": made, "b": (made, [made])}


IDENTITIES = [
    argument,
    inside_an_argument,
    tuple_and_dataclass,
    state_list,
    state_and_more,
    stored_and_returned,
    stored_argument,
    made_twice,
]


def make_state(device: str) -> Any:
    items = [torch.ones(2, device=device), torch.full((2,), 5.0, device=device)]
    return SimpleNamespace(items=items, table={"items": items}, pair=(items, items[0]), last=None)


def make_given(call: int, device: str) -> Any:
    x = torch.full((2,), 1.0 + call, device=device)
    return {"x": x, "inside": [x + 1], "tuple": (x, 3), "pair": Pair(x)}


def plain(value: Any) -> Any:
    """A value with dicts in the places of objects, so that it can be compared leaf by leaf."""
    if isinstance(value, (Pair, SimpleNamespace)):
        return plain(vars(value))
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def met(value: Any, known: dict[int, str], path: str = "$") -> dict[str, str]:
    """For each container in `value`, by its path, the first place where that very object was met."""
    found = {path: known.setdefault(id(value), path)}
    if isinstance(value, dict):
        for key, part in value.items():
            found |= met(part, known, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            found |= met(part, known, f"{path}.{index}")
    elif isinstance(value, (Pair, SimpleNamespace)):
        found |= met(vars(value), known, f"{path}.vars")
    return {key: place for key, place in found.items() if not isinstance(value, (int, type(None)))}


@pytest.mark.parametrize("kind", ["inference", "differentiable", "capture"])
@pytest.mark.parametrize("program", IDENTITIES, ids=lambda program: program.__name__)
def test_containers_that_come_back_are_the_objects_that_eager_gives(program: Any, kind: str, device: str) -> None:
    if kind == "differentiable" and program is state_list:
        pytest.skip("a write to state that needs no gradient: see inference")
    if kind == "capture" and program is stored_and_returned:
        pytest.skip("a list that is stored anew holds a tensor that lies elsewhere in each call, and is refused")
    ours, eager = make_state(device), make_state(device)
    options = {"lower": "capture"} if kind == "capture" else {}
    recorded = jit(lambda given, x: program(ours, given, x), **options)
    for call in range(CALLS + 3 * (device == "cuda")):  # where a program is run unrecorded once before it is captured
        seen = []
        for state, run in ((ours, recorded), (eager, lambda given, x: program(eager, given, x))):
            given = make_given(call, device)
            x = torch.full((2,), 2.0 * call, device=device, requires_grad=kind == "differentiable")
            result = run(given, x)
            known: dict[int, str] = {}
            places = met(given, known, "given") | met(state, known, "state") | met(result, known)
            seen.append((places, plain([result, state, given])))
        assert seen[0][0] == seen[1][0]
        assert_same(seen[0][1], seen[1][1])
    if program is stored_argument:  # a call may find the object of the last one there, and be recorded for it
        assert recorded.statistics().replays >= 2 or "recorded anew: " in recorded.explain()
    else:
        assert_recorded(recorded)


# Each writes to what it was given.
def adds_an_entry(given: Any, x: torch.Tensor) -> Any:
    given["y"] = x * 2 - given["x"]
    return given


def replaces_entries(given: Any, x: torch.Tensor) -> Any:
    given["x"] = given["x"] * 2 - x
    given["inside"][0] = x
    given["n"] = given.get("n", 0) + 1
    return given["x"] - 1


def takes_entries_out(given: Any, x: torch.Tensor) -> Any:
    given["renamed"] = given.pop("x")
    return given["renamed"] - x


def fills_a_dataclass(given: Any, x: torch.Tensor) -> Any:
    given["pair"].x = given["pair"].x * 2 - x
    given["pair"].n += 1
    return given["pair"]


WRITERS = [adds_an_entry, replaces_entries, takes_entries_out, fills_a_dataclass]


@pytest.mark.parametrize("kind", ["inference", "differentiable", "capture"])
@pytest.mark.parametrize("program", WRITERS, ids=lambda program: program.__name__)
def test_writes_to_containers_of_the_arguments_happen_once_in_each_call(program: Any, kind: str, device: str) -> None:
    recorded = jit(program, **({"lower": "capture"} if kind == "capture" else {}))
    for call in range(CALLS + 3 * (device == "cuda")):  # where a program is run unrecorded once before it is captured
        seen = []
        for run in (recorded, program):
            given = make_given(call, device)
            x = torch.full((2,), 2.0 * call, device=device, requires_grad=kind == "differentiable")
            result = run(given, x)
            known: dict[int, str] = {}
            seen.append((met(given, known, "given") | met(result, known), plain([result, given])))
        assert seen[0][0] == seen[1][0]
        assert_same(seen[0][1], seen[1][1])
    assert_recorded(recorded)


@pytest.mark.parametrize("kind", ["inference", "differentiable", "capture"])
def test_one_container_passed_twice_is_one_container(kind: str, device: str) -> None:
    def program(one: Any, other: Any) -> Any:
        one["x"] = one["x"] * 2
        return other["x"] - 1

    recorded = jit(program, **({"lower": "capture"} if kind == "capture" else {}))
    for call in range(CALLS + 3 * (device == "cuda")):
        x = torch.full((2,), 2.0 + call, device=device, requires_grad=kind == "differentiable")
        given = {"x": x}
        assert_same(recorded(given, given), x * 2 - 1)
    assert_recorded(recorded)


def is_read(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 100 else x + 1


def appends(given: Any, x: torch.Tensor) -> Any:
    given["inside"].append(x)
    return is_read(x)


def removes(given: Any, x: torch.Tensor) -> Any:
    given["removed"] = given.pop("x")
    return is_read(x)


def counts(given: Any, x: torch.Tensor) -> Any:
    given["pair"].n += 1
    return is_read(x)


def only_appends(given: Any, x: torch.Tensor) -> Any:
    given["inside"].append(1)
    return x * 2


@pytest.mark.parametrize("program", [appends, removes, counts, only_appends], ids=lambda program: program.__name__)
def test_a_refused_trace_leaves_the_arguments_as_they_were(program: Any) -> None:
    recorded = treeplay.jit(program, lower="aten")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in range(CALLS):
            ours, eager = make_given(call, "cpu"), make_given(call, "cpu")
            x = torch.ones(2)
            assert_same(plain([recorded(ours, x), ours]), plain([program(eager, x), eager]))
    assert recorded.statistics().refusals == 1


def test_one_dict_given_twice_is_not_two() -> None:
    def swap(a: Any, b: Any) -> Any:
        a["x"], b["x"] = b["x"] * 2, a["x"] - 1
        return a["x"] - b["x"]

    recorded = jit(swap)
    for call, is_one in enumerate([False, False, False, True, True, True, False, True]):
        seen = []
        for run in (recorded, swap):
            a, b = ({"x": torch.tensor([value + call])} for value in (1.0, 5.0))
            b = a if is_one else b
            seen.append([run(a, b), a, b])
        assert_same(*seen)
    assert recorded.statistics().replays >= 4


def test_a_dict_of_the_arguments_may_be_one_of_state() -> None:
    state = SimpleNamespace(table={"x": torch.ones(1)}, other={"x": torch.ones(1)})

    def write(given: Any, x: torch.Tensor) -> Any:
        given["x"] = x * 2
        return state.table["x"] - x

    recorded = jit(write)
    for call, name in enumerate(["table", "table", "table", "other", "other", "other", "table", "other"]):
        before = state.table["x"]
        x = torch.tensor([3.0 + call])
        expected = x if name == "table" else before - x
        assert_same(recorded(getattr(state, name), x), expected)
        assert_same(getattr(state, name)["x"], x * 2)


class Doubling(namedtuple("Doubling", ["x", "n"])):
    made = 0

    def __new__(cls, x: Any, n: Any) -> Any:
        cls.made += 1
        return super().__new__(cls, x * 2, n)


@dataclasses.dataclass
class DoublingFields:
    x: Any
    n: int
    made = 0

    def __post_init__(self) -> None:
        type(self).made += 1
        self.x = self.x * 2


@pytest.mark.parametrize("kind", ["inference", "differentiable", "capture"])
@pytest.mark.parametrize("cls", [Doubling, DoublingFields])
def test_constructors_of_arguments_do_not_run_again(cls: Any, kind: str) -> None:
    recorded = jit(lambda given: given.x * 3 - given.n, **({"lower": "capture"} if kind == "capture" else {}))
    for call in range(CALLS):
        x = torch.full((2,), 1.0 + call, requires_grad=kind == "differentiable")
        given, made = cls(x, 1), cls.made
        assert_same(recorded(given), x * 6 - 1)
        assert cls.made == made
    assert_recorded(recorded)


class Tripling(namedtuple("Tripling", ["x", "n"])):
    def __new__(cls, x: Any, n: Any) -> Any:
        return super().__new__(cls, x * 3, n)


@dataclasses.dataclass(frozen=True)
class TriplingFields:
    x: Any
    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", self.x * 3)


@pytest.mark.parametrize("kind", ["inference", "differentiable", "capture"])
@pytest.mark.parametrize("cls", [Tripling, TriplingFields])
def test_results_are_what_their_constructors_made_of_them(cls: Any, kind: str) -> None:
    make: Callable[[torch.Tensor], Any] = lambda x: cls(x - 1, 3)  # noqa: E731
    recorded = jit(make, **({"lower": "capture"} if kind == "capture" else {}))
    for call in range(CALLS):
        x = torch.full((2,), 1.0 + call, requires_grad=kind == "differentiable")
        found, expected = recorded(x), make(x)
        assert type(found) is cls and found.n == 3
        assert_same(found.x, expected.x)
    assert_recorded(recorded)


def test_a_list_that_contains_itself_is_refused_as_an_argument() -> None:
    circle: list[Any] = [torch.ones(1)]
    circle.append(circle)
    recorded = treeplay.jit(lambda given, x: given[1][0] * x, lower="aten")
    with pytest.warns(UserWarning, match="cannot be hashed"):
        for call in range(CALLS):
            assert_same(recorded(circle, torch.tensor([2.0 + call])), torch.tensor([2.0 + call]))


@dataclasses.dataclass(eq=False)
class Batch:
    x: Any
    n: int = 1


def test_a_dataclass_that_is_filled_anew_for_each_call_is_recorded_once() -> None:
    recorded = jit(lambda batch: batch.x * 2 - batch.n)
    batch = Batch(torch.zeros(1))
    for call in range(CALLS):
        batch.x = torch.tensor([1.0 + call])
        assert_same(recorded(batch), batch.x * 2 - 1)
    assert recorded.statistics().recordings == 1


def read(given: Any) -> torch.Tensor:
    if isinstance(given, Batch):
        return given.x  # type: ignore[no-any-return]
    return given["x" if isinstance(given, dict) else 0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [lambda x: [x], lambda x: {"x": x}, lambda x: (x,), Batch])
def test_a_recording_keeps_no_argument_alive(make: Any) -> None:
    recorded = jit(lambda given: read(given) * 2)
    for _ in range(CALLS):
        given = make(torch.ones(1))
        alive = weakref.ref(read(given))
        recorded(given)
        del given
        assert alive() is None


class Made:
    """As a distribution: what is made in each call holds a tuple that is a default."""

    def __init__(self, mean: torch.Tensor, shape: tuple[int, ...] = (1, 2)) -> None:
        self.mean = mean
        self.shape = shape


PLACES: dict[str, Callable[[Any, Made], None]] = {
    "attribute": lambda held, made: setattr(held, "made", made),
    "dict": lambda held, made: held.by_name.update(made=made),
    "list": lambda held, made: held.in_order.__setitem__(0, made),
    "namespace": lambda held, made: setattr(held.inner, "made", made),
}


class Holding:
    def __init__(self) -> None:
        self.made: Made | None = None
        self.by_name, self.in_order, self.inner = {}, [None], SimpleNamespace(made=None)  # type: ignore[var-annotated]

    def all(self) -> list[Made]:
        return [each for each in (self.made, *self.by_name.values(), *self.in_order, self.inner.made) if each]


@pytest.mark.parametrize("name", PLACES)
def test_an_object_that_is_made_and_stored_in_each_call_may_hold_a_tuple_of_all(name: str) -> None:
    held, weight = Holding(), torch.randn(2, 2)

    def act(x: torch.Tensor) -> torch.Tensor:
        PLACES[name](held, Made(x @ weight))
        return x * 2 - 1

    fast = jit(act, on_refusal="raise")
    for _ in range(6):
        x = torch.randn(3, 2)
        assert torch.equal(fast(x), x * 2 - 1)
        (made,) = held.all()
        assert torch.equal(made.mean, x @ weight) and made.shape is Made.__init__.__defaults__[0]  # type: ignore[index]
    assert fast.statistics().recordings <= 2 and fast.statistics().replays >= 4


@dataclasses.dataclass
class Carried:
    value: torch.Tensor


@pytest.mark.parametrize("make", [Carried, Made])
def test_what_an_object_of_the_call_before_holds_is_read_where_it_is_now(make: Callable[[torch.Tensor], Any]) -> None:
    held, twin, weight = Holding(), Holding(), torch.randn(2, 2)

    def act(of: Any, x: torch.Tensor) -> torch.Tensor:
        before = of.by_name.get("made")
        of.by_name["made"] = make(x @ weight)
        return x * 2 - (next(iter(vars(before).values())) if before is not None else 1)

    fast = treeplay.jit(lambda x: act(held, x), lower="aten")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it may be refused, or recorded anew
        for _ in range(12):
            x = torch.randn(3, 2)
            assert torch.equal(fast(x), act(twin, x))


class Cell:
    """A recurrent one, whose state is an object that each call makes."""

    def __init__(self) -> None:
        self.state = Carried(torch.zeros(2))

    def step(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2 + self.state.value
        self.state = Carried(y)
        return y


def test_state_that_is_an_object_made_by_each_call_moves_on() -> None:
    cell, twin = Cell(), Cell()
    step = treeplay.jit(cell.step, lower="aten")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(12):
            assert torch.equal(step(torch.tensor([1.0, -2.0])), twin.step(torch.tensor([1.0, -2.0])))


def _kept(state: Any, x: torch.Tensor) -> None:
    state.kept = state.held


def _stored_again(state: Any, x: torch.Tensor) -> None:
    state.held = (state.held[0], x)


def _under_a_key(state: Any, x: torch.Tensor) -> None:
    state.held = {0: state.held[0], 1: x}


@pytest.mark.parametrize("inner", [lambda x: (x,), lambda x: [x], lambda x: {"x": x}, lambda x: ([x],), lambda x: 3])
@pytest.mark.parametrize("program", [_kept, _stored_again, _under_a_key])
def test_a_container_that_is_stored_again_is_the_one_that_is_there_by_then(program: Any, inner: Any) -> None:
    """It may have been replaced between calls by the like of it."""
    found = []
    for way in (jit, lambda program: program):
        state = SimpleNamespace(held=(inner(torch.ones(2)), torch.zeros(2)))
        run = way(lambda x: program(state, x) or x * 2 - 1)
        for call in range(6):
            if call == 4:
                state.held = type(state.held)(
                    {0: inner(torch.ones(2) * 5), 1: torch.zeros(2)}
                    if isinstance(state.held, dict)
                    else (inner(torch.ones(2) * 5), torch.zeros(2))
                )
            run(torch.ones(2))
        kept = getattr(state, "kept", None)
        found.append((repr(state.held), repr(kept), kept is state.held, kept is state.held[0]))
    assert found[0] == found[1]


@pytest.mark.parametrize("held", [{"k": 1.0}, [1.0]])
def test_a_container_that_is_kept_where_it_was_kept_already_is_the_one_that_is_there_by_then(held: Any) -> None:
    state = SimpleNamespace(held=held)

    def program(x: torch.Tensor) -> torch.Tensor:
        state.kept = state.held
        return x * 2 - 1

    jitted = jit(program)
    for call in range(6):
        if call == 4:
            state.held = type(held)(held)
        jitted(torch.ones(2))
        assert state.kept is state.held
