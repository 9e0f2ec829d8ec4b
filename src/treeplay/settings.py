"""Settings of the process, read when a program is recorded.

treeplay.settings.eager_random = True        # for everything recorded from here on
with treeplay.settings.changed(max_recordings_per_program=4): ...
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import TYPE_CHECKING, Any

from treeplay.errors import ArgumentError, ArgumentTypeError

_CHOICES = {"tiers": ("background", "exact")}
_SWITCH = {"0": False, "off": False, "false": False, "no": False, "1": True, "on": True, "true": True, "yes": True}


def _is_switched_on() -> bool:
    """What the environment says; without a word of it, treeplay is on."""
    said = os.environ.get("TREEPLAY") or "1"
    if said.lower() not in _SWITCH:
        raise ArgumentError(f"the environment variable TREEPLAY: expected 0 or 1, found {said!r}")
    return _SWITCH[said.lower()]


@dataclass(slots=True)
class Settings:
    """What can be set, with its default; assigning a value of another type or out of range raises."""

    enabled: bool = field(init=False)
    """Without it, jitted programs and modules run as they are, as do graphs that `torch.compile` compiles from here on and what
    `make_graphed_callables` is given. `TREEPLAY=0` in the environment switches it off from the start."""

    max_recordings_per_program: int = 128
    """How many recordings one program keeps; the least recently used goes first."""

    max_rerecordings: int = 8
    """How often one key may be recorded anew because state was reassigned, before it runs eagerly."""

    compile_budget: float = 0.1
    """What share of the time a program may spend on recording further kinds of calls, once its first three kinds are
    recorded. Calls beyond that run as they are; `math.inf` is no limit."""

    tiers: str = "background"
    """`"background"`: the first recording of a program runs its operators one by one, which is there at once, while Inductor
    compiles in a thread of its own; what it compiled takes over between two calls once it is ready and measured to be
    faster. Its results differ from those before by rounding, as compiled ones do. `"exact"`: one recording, compiled before it
    serves its first call, for results that depend on no clock; so it is, too, under `torch.use_deterministic_algorithms`."""

    compare_with_eager: bool = True
    """With tiers in the background, a few calls of a program run as it is, timed, once it has been replayed some dozens of
    times. A recording that is not faster by more than 2 % goes; it is tried again later, within the compile budget. Without,
    recordings stay whatever they take."""

    eager_random: bool = False
    """Compiled recordings draw the very random numbers that eager would, at some cost in speed."""

    memory_budget_bytes: int = 32 * 2**30
    """What recordings on one GPU, or those of `jit` on the CPU, may hold together: scratch memory, graphs and buffers; on the
    CPU at most a quarter of the machine's memory. Above it, those go whose launches save least time for each byte. They are
    recorded again when they would save more than others. The newest recording always stays."""

    verify: bool = False
    """Each recording on a GPU is tried with its tensors moved and poison in their old places before it is trusted. It takes
    two runs of the program and three copies of its tensors."""

    audit: bool = True
    """A recording's program is traced again after 10, 100, 1,000, ... replays and compared with what was recorded: what no
    guard can see (C state of an extension, files) is found late rather than never. It takes at most 0.1 % of the time."""

    if not TYPE_CHECKING:  # which would take any name for a setting

        def __getattr__(self, name: str) -> Any:
            """The environment is read when `enabled` is first asked for: what it says wrong is no error of an import, which the
            command could not tell without a traceback."""
            if name != "enabled":
                raise AttributeError(f"settings.{name}: no such setting; there are {_names()}")
            self.enabled = _is_switched_on()
            return self.enabled

    def __setattr__(self, name: str, value: Any) -> None:
        known = {field.name: field.type for field in fields(self)}
        if name not in known:
            raise ArgumentError(f"settings.{name}: no such setting; there are {_names()}")
        expected = {"int": int, "bool": bool, "float": float, "str": str}[str(known[name])]
        if expected is float and type(value) is int:
            value = float(value)
        if type(value) is not expected:
            raise ArgumentTypeError(f"settings.{name}: expected {expected.__name__}, found {type(value).__name__}")
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise ArgumentError(f"settings.{name}: expected at least 1, found {value}")
        if isinstance(value, float) and not value >= 0:
            raise ArgumentError(f"settings.{name}: expected at least 0, found {value}")
        if name in _CHOICES and value not in _CHOICES[name]:
            expected_one = " or ".join(map(repr, _CHOICES[name]))
            raise ArgumentError(f"settings.{name}: expected {expected_one}, found {value!r}")
        object.__setattr__(self, name, value)

    @contextlib.contextmanager
    def changed(self, **values: Any) -> Iterator[Settings]:
        """Set `values` for a block and put the old ones back."""
        before = {name: getattr(self, name) for name in values if hasattr(self, name)}
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield self
        finally:
            for name, value in before.items():
                setattr(self, name, value)


def _names() -> str:
    return ", ".join(sorted(field.name for field in fields(Settings)))


settings = Settings()

FREE_KINDS = 3
"""How many kinds of calls of a program, or sets of sizes of a graph, are compiled whatever that takes."""


class CompileTime:
    """The seconds that compiling has taken, beside what `settings.compile_budget` allows. Its owner takes turns."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._since: float | None = None  # when the budget began to grow

    def begin(self) -> None:
        """Have the budget grow from now on."""
        self._since = perf_counter()

    def add(self, seconds: float) -> None:
        """Note that so much time was spent."""
        self._spent += seconds

    def is_left(self) -> bool:
        """Whether more may be spent."""
        return self.room() >= 0.0

    def room(self) -> float:
        """How many seconds may be spent now. A budget that has not begun begins now."""
        if self._since is None:
            self.begin()
        share = settings.compile_budget
        return math.inf if share == math.inf else share * (perf_counter() - (self._since or 0.0)) - self._spent
