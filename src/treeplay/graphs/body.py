"""The original callable over its static arguments: run it, and differentiate what it gave."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.errors import UsageError
from treeplay.graphs.leaves import leaves_behind, next_sequence_number
from treeplay.graphs.roster import Roster
from treeplay.graphs.stand_ins import StandIns
from treeplay.sandbox.boundary import users_own
from treeplay.values.flatten import flatten
from treeplay.values.output import Static
from treeplay.values.structure import Leaf, Structure
from treeplay.values.unflatten import unflatten


@dataclass(frozen=True, slots=True)
class CallableModes:
    """The modes under which a callable was wrapped; what is recorded later for it is recorded under the same."""

    device: torch.device
    has_gradients: bool
    autocast: torch.dtype | None  # None where it is off

    @classmethod
    def now(cls, device: torch.device) -> CallableModes:
        """The modes of this thread."""
        return cls(device, torch.is_grad_enabled() and not torch.is_inference_mode_enabled(), autocast_of(device))

    @contextlib.contextmanager
    def entered(self, *, with_autocast: bool = True) -> Iterator[None]:
        """Set these modes for a block. The cache of autocast is off: cached casts would be recorded once and never again."""
        kind = self.device.type
        is_on = with_autocast and self.autocast is not None
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(self.has_gradients),
            torch.autocast(kind, dtype=self.autocast if is_on else None, enabled=is_on, cache_enabled=False),
        ):
            yield


def autocast_of(device: torch.device) -> torch.dtype | None:
    """The dtype that autocast uses on `device` in this thread, or None where it is off."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


@dataclass(frozen=True, slots=True)
class Packing:
    """How results are put together from tensors; a tensor that stands in two places is one tensor."""

    structure: Leaf | Structure
    leaves: tuple[int | Static, ...]

    def pack(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The result, of the types that the original returned."""
        values = [leaf.value if isinstance(leaf, Static) else tensors[leaf] for leaf in self.leaves]
        return unflatten(self.structure, values)

    @property
    def is_single(self) -> bool:
        """Whether the result is one tensor."""
        return isinstance(self.structure, Leaf) and self.leaves == (0,)


@dataclass(frozen=True, slots=True, eq=False)
class BodyRun:
    """What one run gave: its tensors, how they make up the result, and which leaves their history ends in.

    `differentiable` are the indices of outputs that require a gradient. `reached` says by which leaf, or stand-ins for it,
    the history gets to each of `leaves`.
    """

    outputs: tuple[torch.Tensor, ...]
    packing: Packing
    differentiable: tuple[int, ...]
    leaves: tuple[torch.Tensor, ...]
    reached: dict[int, list[torch.Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A callable, the static tensors that stand for its arguments, and the state that it reaches.

    `inputs` are leaves over the static memory: they require a gradient where the samples do. `parameters` are those that a
    module trains; those that a function reads are found in the history of its outputs. `has_stand_ins`: the body is given
    leaves without a past instead of them.
    """

    label: str
    function: Callable[..., Any]
    arguments: Callable[[Sequence[torch.Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]
    inputs: tuple[torch.Tensor, ...]
    paths: tuple[str, ...]
    parameters: tuple[tuple[str, torch.nn.Parameter], ...]
    roster: Roster
    modes: CallableModes
    allow_unused: bool
    has_stand_ins: bool = False

    def run(self, since: int) -> BodyRun:
        """Run once. `since` is autograd's next number, read beforehand: reading it is an operation too."""
        args, kwargs = self.arguments(self.inputs)
        stand_ins = StandIns(self.inputs)
        with self.modes.entered(), stand_ins if self.has_stand_ins else contextlib.nullcontext(), users_own():
            result = self.function(*args, **kwargs)
        leaves, structure = flatten(result)
        outputs, places = _distinct(leaves)
        self._check_outputs(outputs)
        behind = stand_ins.resolved(leaves_behind(outputs, since=since, label=self.label))
        return BodyRun(
            outputs=tuple(outputs),
            packing=Packing(structure, tuple(places)),
            differentiable=tuple(index for index, out in enumerate(outputs) if self._is_differentiable(out)),
            leaves=tuple(leaf for leaf, _ in behind),
            reached={id(leaf): by for leaf, by in behind},
        )

    def differentiated(self, ran: BodyRun) -> list[tuple[str, torch.Tensor]]:
        """Names and tensors that gradients go to: arguments, parameters, then leaves of the closure."""
        own = [(path, item) for path, item in zip(self.paths, self.inputs, strict=True) if item.requires_grad]
        own += [(name, item) for name, item in self.parameters if item.requires_grad]
        known = {id(item) for _, item in own}
        return own + [(self.roster.name_of(leaf), leaf) for leaf in ran.leaves if id(leaf) not in known]

    def gradients(
        self, ran: BodyRun, incoming: Sequence[torch.Tensor], to: Sequence[tuple[str, torch.Tensor]]
    ) -> list[torch.Tensor | None]:
        """The gradient of each of `to`, None for what is not used; raises `UsageError` if that is not allowed."""
        outputs = [ran.outputs[index] for index in ran.differentiable]
        ways = [(index, leaf) for index, (_, item) in enumerate(to) for leaf in ran.reached.get(id(item), [item])]
        with self.modes.entered(with_autocast=False), _without_hooks([leaf for _, leaf in ways]):
            with users_own():  # its hooks, and functions with a backward of its own
                given = torch.autograd.grad(outputs, [leaf for _, leaf in ways], incoming, allow_unused=True)
            found: list[torch.Tensor | None] = [None] * len(to)
            for (index, _), gradient in zip(ways, given, strict=True):
                found[index] = _sum(found[index], gradient)
        self._check_gradients(found, to)
        return found

    def _is_differentiable(self, out: torch.Tensor) -> bool:
        return self.modes.has_gradients and out.requires_grad  # a parameter requires one in every mode

    def _check_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        for index, out in enumerate(outputs):
            if out.layout is not torch.strided:
                raise UsageError(
                    f"{self.label}: output {index} has layout {out.layout}; a recording writes strided memory"
                )
            if out.device != self.modes.device:
                raise UsageError(
                    f"{self.label}: output {index} is on {out.device}, and the recording on {self.modes.device}: its "
                    "values would be those of the recording for ever. Compute it on the same device, or outside"
                )

    def _check_gradients(self, found: Sequence[torch.Tensor | None], to: Sequence[tuple[str, torch.Tensor]]) -> None:
        unused = [name for (name, _), gradient in zip(to, found, strict=True) if gradient is None]
        if unused and not self.allow_unused:
            raise UsageError(
                f"{self.label} does not use {', '.join(unused)}, which requires a gradient; with allow_unused_input=True "
                "the gradient is None"
            )
        for (name, _), gradient in zip(to, found, strict=True):
            if gradient is not None and gradient.layout is not torch.strided:
                raise UsageError(
                    f"{self.label}: the gradient of {name} has layout {gradient.layout}; a recording writes strided memory"
                )


def sequence_number_for(modes: CallableModes) -> int:
    """What `Body.run` wants to know, 0 where no history is made."""
    return next_sequence_number() if modes.has_gradients else 0


@contextlib.contextmanager
def _without_hooks(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Take gradient hooks off: they run on the gradients that a call hands out, and would else be inside of it too."""
    hooked = [(tensor, tensor._backward_hooks) for tensor in tensors if tensor._backward_hooks]
    try:
        for tensor, _ in hooked:
            tensor._backward_hooks = None
        yield
    finally:
        for tensor, hooks in hooked:
            tensor._backward_hooks = hooks


def _sum(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _distinct(leaves: Sequence[Any]) -> tuple[list[torch.Tensor], list[int | Static]]:
    outputs: list[torch.Tensor] = []
    places: list[int | Static] = []
    index_of: dict[int, int] = {}
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            places.append(Static(leaf))
            continue
        if id(leaf) not in index_of:
            index_of[id(leaf)] = len(outputs)
            outputs.append(leaf)
        places.append(index_of[id(leaf)])
    return outputs, places
