"""State that is read anew: each container on the way is read once, and what is found is what each place has today."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from support.records import World
from treeplay.guards.check.state import StateCheck, reader_of
from treeplay.values.place import How, Place, root


@dataclass
class Record:
    x: Any
    y: Any


def entries(at: Place, keys: Any) -> list[Place]:
    held = at.read()
    return [at.child(How.ITEM, held, key, f"{at}[{key!r}]") for key in keys]


def of_world(w: World) -> Place:
    return root(w, "w").child(How.ITEM, vars(w), "state", "w.state")


def found_in(w: World) -> list[Place]:
    """The places of all numbers in `w.state`, in turn from the last to the first."""
    places, found = [of_world(w)], list[Place]()
    while places:
        value = (place := places.pop()).read()
        if isinstance(value, Record):
            places += [place.child(How.ITEM, vars(value), key, f"{place}.{key}") for key in vars(value)]
        elif isinstance(value, (dict, list, tuple)):
            places += entries(place, value if isinstance(value, dict) else range(len(value)))
        else:
            found.append(place)
    return found


SHAPES: dict[str, Any] = {
    "one": lambda n: n,
    "a list": lambda n: [n, n + 1, n + 2],
    "a list of one": lambda n: [n],
    "tuples in a list": lambda n: [(n, n + 1), (n + 2,), n + 3],
    "a dict of lists": lambda n: {"a": [n, n + 1], "b": n + 2},
    "a defaultdict": lambda n: defaultdict(int, {"a": n, "b": (n + 1, n + 2)}),
    "records": lambda n: Record(n, [Record(n + 1, (n + 2, n + 3)), n + 4]),
}


@pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES)
def test_what_is_found_is_what_is_there_today(make: Any) -> None:
    w = World(state=make(1))
    places = found_in(w)
    read = reader_of(places)
    assert [*read()] == [place.read() for place in places]
    w.state = make(50)
    assert [*read()] == [place.anew().read() for place in places] and min(read()) == 50


def test_no_places_give_nothing() -> None:
    assert [*reader_of(())()] == []


def test_what_is_gone_raises_and_is_not_made() -> None:
    w = World(state=defaultdict(int, a=1, b=2))
    read = reader_of(found_in(w))
    w.state = defaultdict(int, a=1)
    with pytest.raises(KeyError):
        read()
    assert [*w.state] == ["a"]


def test_each_container_is_read_once() -> None:
    class Counted(list[Any]):
        reads = 0

        def __getitem__(self, at: Any) -> Any:
            Counted.reads += 1
            return super().__getitem__(at)

    w = World(state=Counted([[1, 2, 3], [4, 5]]))
    read = reader_of(found_in(w))
    Counted.reads = 0
    assert sorted(read()) == [1, 2, 3, 4, 5] and Counted.reads == 2


def checked(w: World, fixed: frozenset[int] = frozenset()) -> StateCheck:
    check, places = StateCheck(), found_in(w)
    before = [id(vars(place.read())) for place in places]
    check.compare(places, (), before=before, filled=(), fixed=fixed, holders={})
    return check


def test_one_tensor_in_two_places_is_no_longer_alike() -> None:
    w = World(state=[torch.ones(3), torch.ones(3)])
    check = checked(w)
    assert check()
    w.state = [w.state[0]] * 2
    assert not check()


def test_a_tensor_that_stays_elsewhere_is_not_alike() -> None:
    other = torch.ones(3)
    w = World(state=[torch.ones(3), torch.ones(3)])
    check = checked(w, frozenset({id(other)}))
    assert check()
    w.state = [w.state[0], other]
    assert not check()


def test_an_attribute_on_a_tensor_that_took_the_place_is_noticed() -> None:
    w = World(state=[torch.ones(3), torch.ones(3)])
    check = checked(w)
    w.state = [torch.ones(3), torch.ones(3)]
    assert check()
    w.state[1].mark = 1  # type: ignore[attr-defined]
    assert not check()
