"""A condition's two renderings: a warm call misses exactly if the explanation finds something that differs."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import treeplay
from treeplay.trace.call import Call
from treeplay.tree.mismatch import first_mismatch
from treeplay.values.flatten import flatten
from treeplay.wrap.emit import MISS


class World:
    """What the program reaches."""

    def __init__(self) -> None:
        self.weight = torch.ones(2)
        self.twin = self.weight
        self.scale = 0.5
        self.parts = [1.0, 2]
        self.table = {"a": torch.full((2,), 3.0), "b": (1, 2.0)}

    @contextlib.contextmanager
    def changed(self, change: str) -> Iterator[None]:
        """As it is after a change, for a block."""
        own, parts, table = dict(vars(self)), list(self.parts), dict(self.table)
        CHANGES[change](self)
        try:
            yield
        finally:
            vars(self).clear()
            vars(self).update(own)
            self.parts[:] = parts
            self.table.clear()
            self.table.update(table)


SHARED = torch.full((2,), 5.0)
TENSORS: dict[str, Callable[[World], torch.Tensor]] = {
    "new": lambda world: torch.ones(2),
    "shared": lambda world: SHARED,
    "longer": lambda world: torch.ones(3),
    "double": lambda world: torch.ones(2, dtype=torch.float64),
    "strided": lambda world: torch.ones(2, 2)[:, 0],
    "with gradient": lambda world: torch.ones(2, requires_grad=True),
    "parameter": lambda world: torch.nn.Parameter(torch.ones(2)),
    "weight": lambda world: world.weight,
    "entry": lambda world: world.table["a"],  # type: ignore[return-value]
}
tensors = st.sampled_from(sorted(TENSORS))
values = st.sampled_from(
    [1, True, 1.0, 0.0, -0.0, float("nan"), "a", b"a", None, (1, 2), (1, 2.0), torch.float32, 2**70]
)
arguments = st.fixed_dictionaries(
    {"x": tensors, "y": tensors, "value": values, "more": st.none() | st.lists(values, max_size=2) | st.just({"k": 1})}
)
CHANGES: dict[str, Callable[[World], Any]] = {
    "nothing": lambda world: None,
    "an equal number": lambda world: setattr(world, "scale", float("0.5")),
    "a number": lambda world: setattr(world, "scale", 0.25),
    "another tensor": lambda world: setattr(world, "weight", torch.ones(2)),
    "both tensors": lambda world: vars(world).update(dict.fromkeys(("weight", "twin"), torch.zeros(2))),
    "a tensor of another shape": lambda world: vars(world).update(dict.fromkeys(("weight", "twin"), torch.zeros(1))),
    "no tensor": lambda world: setattr(world, "twin", 1.0),
    "a list like it": lambda world: setattr(world, "parts", [1.0, 2]),
    "a list": lambda world: world.parts.append(3),
    "an element": lambda world: world.parts.__setitem__(1, True),
    "an order": lambda world: setattr(world, "table", dict(reversed(world.table.items()))),
    "an entry": lambda world: world.table.update(b=(1, 2)),
    "an attribute": lambda world: setattr(world, "more", 1),
}


def call_of(world: World, drawn: dict[str, Any]) -> Call:
    args = TENSORS[drawn["x"]](world), TENSORS[drawn["y"]](world)
    kwargs = {"value": drawn["value"], "more": drawn["more"]}
    return Call(args, kwargs, *flatten((args, kwargs)))


# One thing at a time: of two, one might hide the other.
others = st.sampled_from(["x", "y", "value", "more"]).flatmap(
    lambda name: arguments.map(lambda drawn: {name: drawn[name]})
)
differences = st.tuples(st.sampled_from(sorted(CHANGES)), st.just({})) | st.tuples(st.just("nothing"), others)


@settings(max_examples=20, deadline=None, phases=[Phase.generate])  # a smaller example would take minutes to find
@given(recorded=arguments, calls=st.lists(differences, min_size=5, max_size=25))
def test_a_call_misses_exactly_if_something_differs(recorded: Any, calls: Any) -> None:
    world = World()

    def program(x: Any, y: Any, *, value: Any, more: Any) -> Any:
        table = world.table
        return (
            x.sum() * 2
            - y.sum()
            + world.weight.sum() * world.scale
            - world.twin.sum()
            + table["a"].sum() * len(world.parts)
        )

    jitted: Any = treeplay.jit(program, lower="aten")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        first = call_of(world, recorded)
        for _ in range(2):
            jitted(*first.args, **first.kwargs)
        (recording,) = [found for entry in jitted._manager.cache.table for found in entry.recordings]
        for change, other in [("nothing", {}), *calls]:
            with world.changed(change):
                call = call_of(world, recorded | other)
                told = first_mismatch(recording.signature, call)
                has_missed = recording.call(call.args, call.kwargs) is MISS
                assert has_missed is (told is not None), (change, other, told)
