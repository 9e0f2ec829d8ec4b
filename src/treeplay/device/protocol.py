"""The seam between the tree and what runs recordings: one Protocol, a device each for the host and for GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from treeplay.codegen import Writer
from treeplay.values.block import OutputBlock
from treeplay.values.boxed import Boxed
from treeplay.values.launch import LaunchFacts

Capturable = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
Replay = Callable[[list[torch.Tensor], Sequence[float]], Sequence[torch.Tensor]]


class InBlock(tuple[torch.Tensor, ...]):
    """What a replay gives of work some of whose outputs lie in a block: the others, in order, and the block, which is last."""

    __slots__ = ()


class Births(Protocol):
    """Told by a body, while it is captured, when it makes tensors."""

    begins: Callable[[], object]
    """To be called before an operator of which nothing else is told. It leaves nothing behind that a capture could show."""

    results_first: bool
    """Whether what is returned is to be made before all else, where the body can do that."""

    rewritten: frozenset[int]
    """The results, by index, that the next launch mostly writes again where they lie: temporaries may lie there before."""

    def now(self) -> int:
        """How much has been captured so far."""

    def born(self, tensor: torch.Tensor, at: int) -> None:
        """`tensor` was made when `at` was captured: what is captured before does not touch it."""


class Fill(Protocol):
    """Numbers that a body reads from a tensor."""

    tensor: torch.Tensor

    def fill(self, values: Sequence[float]) -> None:
        """Bring the tensor up to `values`."""


class Boxing(Protocol):
    """How work is called: with one list of arguments, which is emptied, for a list of results. A device that generates a
    launch function writes the lines for that into it, so that a call is one function."""

    def around(self, text: Writer) -> AbstractContextManager[None]:
        """Lines around those that launch: the list of arguments is called `args`, and what the work takes `tensors`."""

    def returned(self, text: Writer, made: Sequence[str], block: str | None = None) -> None:
        """Lines that return the results, if what the work gives has the names `made`, but for what lies in a `block`."""

    def put_together(self, args: list[Any], made: Sequence[torch.Tensor]) -> Sequence[Any]:
        """The results, where a call does not go the usual way."""

    def as_replay(self, call: Boxed) -> Replay:
        """A boxed function as one that takes tensors, and gives what the work gives."""


ReplayListener = Callable[[Callable[..., Sequence[Any]], bool], None]
"""Told of what replays from now on, and whether it is boxed as the work says."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a device is asked to make replayable.

    `run` takes tensors and numbers. `body` is what of it a stream capture can take: over the tensors, and
    `vector.tensor` behind them where numbers come in; while `tells` lasts, it tells of the tensors that it makes.
    `names` of the tensors are for people. `mutated` are the tensors that it writes, `state` those that usually stay where
    they are. `slots` are outputs that nobody is given: each becomes the gradient of the tensor whose index it names.
    `fixed` are read where they lie, whatever `body` is given for them. `block`: outputs that a launch makes as one allocation;
    what runs as it is gives each by itself.
    `generators` are drawn from besides the default one, which is drawn from unless `draws` is false.
    `boxing`: how the work is called, if it takes no numbers, by whoever does not call `replay`.
    """

    name: str
    run: Replay
    body: Capturable
    vector: Fill | None = None
    names: tuple[str, ...] = ()
    mutated: frozenset[int] = frozenset()
    state: frozenset[int] = frozenset()
    fixed: frozenset[int] = frozenset()
    slots: Mapping[int, int] = field(default_factory=dict)
    tells: Callable[[Births], AbstractContextManager[None]] | None = None
    generators: tuple[torch.Generator, ...] = ()
    draws: bool = True
    is_opaque: bool = False  # `body` is the user's code, to be recorded as it runs
    scratch_bytes: int = 0
    has_run: bool = False  # as it is, just now: kernels are compiled, libraries set up
    is_small: bool = False  # no operator of it is worth more than one thread of the host
    boxing: Boxing | None = None
    block: OutputBlock | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a device made of some work: `replay` launches it again; `facts` tells what that takes by now.

    `subscribe` has a listener told of what does the same without going through `replay`, from when there is such a thing.
    `plain_calls`: calls of `replay` that ran the work as it is and launched nothing, by reason.
    `forget_results` lets go of results that the next replay would write again.
    """

    replay: Replay
    facts: Callable[[], LaunchFacts]
    free: Callable[[], None]
    subscribe: Callable[[ReplayListener], None] = lambda listener: None
    plain_calls: Counter[str] = field(default_factory=Counter)
    forget_results: Callable[[], None] = lambda: None


class Stopwatch(Protocol):
    """Times one launch, without waiting for it."""

    def start(self) -> None:
        """The launch begins."""

    def stop(self) -> None:
        """It was issued."""

    def seconds(self) -> float | None:
        """What it took on the device, or None as long as that is not known."""


class Device(Protocol):
    """Records callables so that they can be replayed."""

    name: str

    def stopwatch(self) -> Stopwatch:
        """What times a launch on it."""

    def record(self, work: Work) -> Recorded:
        """Make `work` replayable. Must have no effect on the tensors it will be given."""

    def rehearse(self, body: Capturable, tensors: Sequence[torch.Tensor]) -> None:
        """Record `body` over `tensors` and throw the recording away; nothing of it shows on a tensor."""

    def facts(self) -> dict[str, Any]:
        """What `treeplay doctor` says of the device."""
