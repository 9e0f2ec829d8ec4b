"""How a held-back program is written down: a maker of its state, its arguments, and what changes between its calls.

    @program
    def momentum():
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x, y): ...

        return Case(step, lambda call: (torch.randn(8, 4), torch.randn(8, 2)), {4: lambda: set_lr(optimizer, 0.01)})

    @function(lambda call: (torch.randn(4, 5),))
    def softened(x, temperature=0.7): ...

Makers, arguments and changes run under the default device of the run; the program itself does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

CALLS = 7


@dataclass(frozen=True)
class Given:
    """The arguments of one call, if some go by name."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def given(*args: Any, **kwargs: Any) -> Given:
    """Arguments as they are written in a call."""
    return Given(args, kwargs)


@dataclass(frozen=True)
class Case:
    """A program with its state. `args` makes the arguments of a call; `then[n]` is what happens before call `n`.

    State is found in the program's closure, in `state`, and in the object that a method belongs to. `rounds`: results agree
    to rounding in every way. `is_half`: they are rounded to half precision on the way. `devices`: where it runs.
    """

    step: Callable[..., Any]
    args: Callable[[int], Any] = lambda call: ()
    then: Mapping[int, Callable[[], Any]] = field(default_factory=dict)
    state: Any = ()
    rounds: bool = False
    is_half: bool = False
    calls: int = CALLS
    devices: tuple[str, ...] = ("cpu", "cuda")


PROGRAMS: dict[str, Callable[[], Case]] = {}


def program(make: Callable[[], Case]) -> Callable[[], Case]:
    """Take a maker into the set."""
    name = f"{make.__module__.rpartition('.')[2]}.{make.__name__}"
    if name in PROGRAMS:
        raise ValueError(f"there are two programs {name}")
    PROGRAMS[name] = make
    return make


def function(args: Callable[[int], Any] = lambda call: (), **facts: Any) -> Callable[[Callable[..., Any]], Any]:
    """Take a program without state into the set."""

    def enter(step: Callable[..., Any]) -> Callable[..., Any]:
        def make() -> Case:
            return Case(step, args, **facts)

        make.__module__, make.__name__ = step.__module__, step.__name__
        program(make)
        return step

    return enter


def sized(call: int, usual: int = 8, other: int = 5, since: int = 4) -> int:
    """A size that changes once between calls."""
    return usual if call < since else other
