"""Draws that a program makes once more, from a state of the generator that it has put back, as `checkpoint` does.

    state = get_rng_state()      noise.bernoulli_(0.5)   ─▶  bernoulli_(noise), kept = clone(noise)
    set_rng_state(state)         again.bernoulli_(0.5)   ─▶  copy_(again, kept)

On a GPU, dropout is one operator: once more, it drops from what it is given then by the mask of before.

A recording puts back no generator. Where the program draws from a state from which it has drawn before in this run, the numbers
are those that were drawn then, if operator, shapes, types and the numbers that it is given are the same. In the state that the
last new draw has left, a draw is a new one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from treeplay.guards.reads.reads import Reads
from treeplay.torch_seam.schemas import leaves_of
from treeplay.torch_seam.tensors import address_of
from treeplay.trace.numbers.scalar_ops import takes_symbolic_numbers
from treeplay.trace.numbers.scalars import guarded_value, scalar_of
from treeplay.trace.restore.randomness import TrackedGenerators, device_drawn_on, generator_in
from treeplay.trace.run.tape import TracedValue, TraceTape, spoken_name
from treeplay.values.location import Location
from treeplay.values.same import is_same

aten = torch.ops.aten
_FILLS = frozenset(
    (
        aten.bernoulli_.float,
        aten.uniform_.default,
        aten.normal_.default,
        aten.random_.default,
        aten.random_.to,
        getattr(aten.random_, "from"),
        aten.exponential_.default,
        aten.cauchy_.default,
        aten.log_normal_.default,
        aten.geometric_.default,
    )
)
"""Operators that fill a tensor with random numbers, whatever is in it."""
_MAKES = frozenset(
    (
        aten.rand.default,
        aten.rand.generator,
        aten.randn.default,
        aten.randn.generator,
        aten.randint.default,
        aten.randint.generator,
        aten.randint.low,
        aten.randint.low_generator,
        aten.randperm.default,
        aten.randperm.generator,
        aten.rand_like.default,
        aten.randn_like.default,
        aten.randint_like.default,
        aten.randint_like.low_dtype,
        aten.bernoulli.p,
        aten.normal.float_float,
    )
)
"""Operators that make a tensor of random numbers, for which the values of no tensor count."""
_DROPS, _CLONE = aten.native_dropout.default, aten.clone.default
_ON_A_GPU = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_FLOAT = struct.Struct("f")
_INSTEAD = (
    "in `checkpoint`, pass preserve_rng_state=False if other numbers will do; or have the caller run the backward"
)


@dataclass(slots=True)
class _Drawn:
    """A draw of the run: the operator, what it was given, the seed that marks the state after it, and where its numbers are,
    which of dropout are its mask."""

    func: Any
    given: tuple[Any, ...]
    after: int
    node: torch.fx.Node
    looks: tuple[Any, ...]
    value: TracedValue
    kept: torch.Tensor | None = None


class SequenceOfDraws:
    """The draws of a trace: each from the state that the one before left, or from one from which the run has drawn before."""

    def __init__(self, tape: TraceTape, generators: TrackedGenerators, reads: Reads) -> None:
        self._tape = tape
        self._generators = generators
        self._reads = reads
        # By generator, how often the program had set any when a repetition began or ended.
        self._sets: dict[int, int] = {}
        self._left: dict[int, int] = {}  # by generator, the seed that the last draw has left, if it was repeated
        # By generator and by the seed that marks the state. None: something that cannot be repeated.
        self._drawn: dict[tuple[int, int], _Drawn | None] = {}

    def begin(self, func: Any, args: Any, kwargs: dict[str, Any], where: Location | None) -> tuple[Any, Any, Any, Any]:
        """The operator to record for one that draws, and its arguments; and what to pass to `end` once it is recorded."""
        leaves = leaves_of([*args, *kwargs.values()])
        generator = generator_in(leaves, device_drawn_on(leaves))
        if not self._generators.is_known(generator):
            raise self._tape.refuse(
                spoken_name(func),
                "draws from a generator that the program makes, or that treeplay cannot find",
                "make the generator outside, and keep it in the closure, a global or an attribute of `self`",
                where,
            )
        self._tape.checkpointed.note_draw(generator, (func, where))
        self._tape.generators[address_of(generator)] = generator
        at = address_of(generator), generator.initial_seed()
        given = self._given(func, (args, kwargs))
        if self._generators.was_set(generator):
            kept = self._repeated(generator, at, func, given, where)
            if func is _DROPS:
                return aten.native_dropout_backward.default, (args[0], kept, _scale(given)), {}, kept
            return (aten.copy_.default, (args[0], kept), {}, None) if func in _FILLS else (_CLONE, (kept,), {}, None)
        if self._left.pop(at[0], None) is not None:
            self._sets[at[0]] = self._reads.states_set()
        self._generators.draw(generator)
        self._drawn[at] = None
        after = generator.initial_seed()
        return func, args, kwargs, (at, after, func, given)

    def end(self, draw: Any, node: torch.fx.Node, result: Any) -> Any:
        """What the program gets for a draw that has become a node of the graph, and gave `result`."""
        if isinstance(draw, torch.Tensor):  # the mask of before
            return result, self._copy(_looks(draw), self._tape.values[id(draw)].node, node)
        at, after, func, given = draw
        if self._generators.is_marking and _may_repeat(func, given):
            value = self._tape.values[id(result[1] if func is _DROPS else result)]
            behind = value.node if func is _DROPS else node
            self._drawn[at] = _Drawn(func, given, after, behind, _looks(value.fake), value)
        return result

    def forget(self) -> None:
        """Drop every tensor."""
        self._drawn.clear()

    def _repeated(
        self, generator: torch.Generator, at: tuple[int, int], func: Any, given: tuple[Any, ...], where: Location | None
    ) -> torch.Tensor:
        """A copy of what was drawn from this state before, by an operator that would draw it again."""
        if at not in self._drawn:
            raise self._tape.refuse(
                spoken_name(func),
                "draws after the program has seeded the generator or put back an earlier state of it, which a recording "
                "does not repeat",
                "seed outside of the program; a state that the program puts back must be one that it has read in this call",
                where,
            )
        if not self._has_set(*at):
            raise self._tape.refuse(
                spoken_name(func),
                "draws from an earlier state of the generator, which another thread has put back meanwhile",
                "give the program generators of its own, or record it while no other thread sets the state of torch's",
                where,
            )
        if not _may_repeat(func, given):
            raise self._tape.refuse(
                spoken_name(func),
                "draws once more from an earlier state of the generator that the program has put back, as `checkpoint` does, "
                "and gives more than numbers that only the state tells: a recording cannot repeat that",
                _INSTEAD,
                where,
            )
        earlier = self._drawn[at]
        if earlier is None or earlier.func is not func or not is_same(earlier.given, given):
            raise self._tape.refuse(
                spoken_name(func),
                "draws from an earlier state of the generator that the program has put back, from which it has drawn something "
                "else before: a recording repeats its draws only as they were, in the same order and of the same shapes",
                _INSTEAD,
                where,
            )
        self._generators.go_on(generator, earlier.after)
        self._left[at[0]] = earlier.after
        self._tape.repeated = self._tape.repeated or (func, where)
        return self._kept(earlier)

    def _has_set(self, generator: int, seed: int) -> bool:
        """Whether the program has put back this state, as far as it can be told: by how often it has put back any."""
        if self._left.get(generator) == seed:  # it goes on from there
            return True
        sets, before = self._reads.states_set(), self._sets.get(generator, 0)
        self._sets[generator] = sets
        return sets > before

    def _kept(self, earlier: _Drawn) -> torch.Tensor:
        """A copy of what was drawn then, made at once: the program may have overwritten it since."""
        if earlier.kept is None:
            earlier.kept = self._copy(earlier.looks, earlier.value.node, earlier.node)
        return earlier.kept

    def _copy(self, looks: tuple[Any, ...], node: torch.fx.Node, after: torch.fx.Node) -> torch.Tensor:
        with self._tape.graph.inserting_after(after):
            copy = self._tape.call(_CLONE, (node,), where=after.meta["where"])
        shape, stride, dtype, device = looks
        with self._tape.fake_mode, torch.no_grad():
            fake = _CLONE(torch.empty_strided(shape, stride, dtype=dtype, device=device))
        return self._tape.add_tensor(fake, copy, {})

    def _given(self, func: Any, arguments: Any) -> tuple[Any, ...]:
        """What the numbers follow from besides the state: how the tensors lie that an operator is given, and all else."""
        names, is_plain = tuple(arguments[1]), not takes_symbolic_numbers(func)
        return names, tuple(self._part(leaf, is_plain=is_plain) for leaf in leaves_of(arguments))

    def _part(self, leaf: Any, *, is_plain: bool) -> Any:
        if isinstance(leaf, torch.Tensor):
            known = self._tape.values.get(id(leaf))
            return _looks(leaf if known is None else known.fake)
        if isinstance(leaf, torch.device):
            return str(leaf)
        scalar = scalar_of(leaf)
        if scalar is None:
            return leaf
        # Where an operator wants a plain number it gets today's value, guarded.
        return guarded_value(leaf) if is_plain else scalar.node


def _may_repeat(func: Any, given: tuple[Any, ...]) -> bool:
    """Whether what an operator draws follows from the state and from what `SequenceOfDraws` compares."""
    if func is not _DROPS:
        return func in _FILLS or func in _MAKES
    (_, _, dtype, device), p = given[1][:2]
    # Of others, torch computes the result in another way, which a backward does not repeat to the last bit.
    return device.startswith("cuda") and dtype in _ON_A_GPU and isinstance(p, float) and 0 < p < 1


def _scale(given: tuple[Any, ...]) -> float:
    """By what dropout's kernel multiplies what it keeps: the probability is a number of the type that it computes in."""
    (_, _, dtype, _), p = given[1][:2]
    (rounded,) = _FLOAT.unpack(_FLOAT.pack(1.0 - p))
    return 1.0 / float(1.0 - p if dtype is torch.float64 else rounded)


def _looks(fake: torch.Tensor) -> tuple[Any, ...]:
    return tuple(fake.shape), tuple(fake.stride()), fake.dtype, str(fake.device)
