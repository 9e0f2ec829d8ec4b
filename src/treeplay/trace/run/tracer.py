"""The tracer: runs a program on fake tensors, beside the real ones, and writes what it does as a graph.

    user's program ── torch functions ── autograd ── ATen operators
                          │                               │
                     WatchFunctions                  Tracer (dispatch)
                     host reads, backward            one graph node per operator, executed on fakes only

Real tensors that the program holds (arguments, parameters, optimizer state) stay in its hands as handles: each has a fake
twin, operators on the handle run on the twin, and the handle's memory is never touched.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor  # by name: modules are watched while it is asked for

from treeplay.guards.caches import Filled
from treeplay.guards.reads.reads import Reads
from treeplay.observe.lines import call_site, innermost_is_optimizer, running_call, user_location
from treeplay.torch_seam.autograd import is_accumulating
from treeplay.torch_seam.casts import note_casts
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.modes import DisableTorchFunction, TorchDispatchMode, function_modes_around
from treeplay.torch_seam.schemas import (
    KEEPS_FOR_BACKWARD,
    LIFTS,
    MAKES_ZEROS,
    draws,
    is_foreach_write,
    leaves_of,
    tell_autograd,
    with_leaves,
    written_arguments,
    written_untold,
)
from treeplay.torch_seam.tensors import storage_of
from treeplay.trace.log import LoggedCall
from treeplay.trace.numbers.constants import Constants
from treeplay.trace.numbers.scalar_ops import ask_exponent, takes_symbolic_numbers
from treeplay.trace.numbers.scalars import Scalar, given_number, guarded_value, scalar_of, symbolic
from treeplay.trace.numbers.world import ScalarWorld
from treeplay.trace.restore.randomness import TrackedGenerators
from treeplay.trace.run.apart import taken_apart
from treeplay.trace.run.begins import BEGINS, from_start
from treeplay.trace.run.caches import being_filled, too_early_for
from treeplay.trace.run.draws import SequenceOfDraws
from treeplay.trace.run.gradients import as_taken_over
from treeplay.trace.run.lasting import Lasting
from treeplay.trace.run.layouts import Answer, Question
from treeplay.trace.run.of_constants import answer_of_constants
from treeplay.trace.run.on_fakes import OnFakes
from treeplay.trace.run.positions import INSTEAD
from treeplay.trace.run.recurrent import TAKES_ONE_PIECE, RecurrentPiece, as_recorded
from treeplay.trace.run.tape import KEEP_ON_DEVICE, TracedValue, TraceTape, spoken_name, why_not_followed, why_unknown
from treeplay.trace.run.zeros import KnownZeros
from treeplay.trace.training.fused import torchs_own, with_numbers_decided
from treeplay.values.location import Location

aten = torch.ops.aten
# Those that are made of others arrive under inference mode alone.
_HOST_READS = frozenset(
    [aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default, aten.item.default]
)
# Operators that may change a shape in place, and may leave it as it is.
_SQUEEZES = (aten.squeeze_.default, aten.squeeze_.dim, aten.squeeze_.dims)
_SHAPES = frozenset({*_SQUEEZES, aten.t_.default, aten.transpose_.default, aten.resize_.default})
_OF_TYPES = {aten.promote_types.default, aten.can_cast.default}  # which see no tensor
_DEVICE = torch.ops.prim.device.default


class Tracer(TorchDispatchMode):
    """Records ATen operators. `is_known` says whether a real tensor is state that can be found again; `layouts`, how
    operators laid out their results when the program ran eagerly."""

    supports_higher_order_operators = True  # to refuse them

    def __init__(
        self,
        is_known: Callable[[torch.Tensor], bool],
        generators: TrackedGenerators,
        reads: Reads,
        layouts: Mapping[Question, Answer],
        cached: Sequence[Filled] = (),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        note_casts()
        self.is_known = is_known
        self.generators = generators
        self.host_scalars: set[int] = set()
        self.reads = reads
        self.goes_on = False  # behind refusals that leave it something to go on with
        self.on_write: Callable[[TracedValue], None] | None = None  # told of each tensor that an operator writes to
        self.tape = TraceTape()
        self.refuse = self.tape.refuse
        self._on_fakes = OnFakes(self.tape, layouts)
        self.known_zeros = KnownZeros(self.tape, is_known)
        self._cached = cached  # functions with caches that the program reaches
        self.world = ScalarWorld(self.tape.graph, check=self._check_caches)
        self.constants = Constants(self.tape)
        self.recurrent = RecurrentPiece(self.tape)
        self._draws = SequenceOfDraws(self.tape, generators, reads)
        self.lasting = Lasting(self.refuse)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        was_noting = self.reads.pause()  # what follows is ours and torch's, not the program's
        try:
            if function_modes_around():  # C++ came here by itself, past these: they would watch what is asked below
                with DisableTorchFunction():
                    return self._dispatch(func, args, kwargs or {})
            return self._dispatch(func, args, kwargs or {})
        finally:
            if was_noting:
                self.reads.resume()

    def _dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func is _DEVICE and type(args[0]) is FakeTensor:  # autograd's engine asks a thousand times
            return args[0].fake_device
        func = torchs_own(func)
        if func.namespace == "profiler" or func in _OF_TYPES:
            return func(*args, **kwargs)
        if func.namespace == "prim":  # C++ asks a fake for its device; raising there would end the process
            with self.tape.fake_mode:
                return func(*args, **kwargs)
        self._check_caches()
        where = user_location()
        if (unfit := why_not_followed(func)) is not None:
            raise self.refuse(spoken_name(func), *unfit, where)
        if func in _HOST_READS:
            return self._read_on_host(func, args, where)
        if (out := taken_apart(self, func, args, kwargs)) is not NotImplemented:
            return out
        args = as_recorded(func, args, self.recurrent.piece)
        kwargs = self.known_zeros.on_their_device(func, with_numbers_decided(func, args, kwargs))
        self.tape.log.append(LoggedCall.of(func, where, args, kwargs, call_site()))
        if (out := self.known_zeros.asked(func, args, kwargs)) is not NotImplemented:
            return out
        draw = None
        if draws(func, args, kwargs):
            func, args, kwargs, draw = self._draws.begin(func, args, kwargs, where)
        if func is TAKES_ONE_PIECE:
            return self.recurrent.put_together(self, args[0], args[1], where)
        if self._is_idle(func, args):
            return args[0]
        self.lasting.check(func, args, kwargs, where)
        # By the operator that the program called: the eager run has logged no other.
        has_zeros = self.known_zeros.are_in(func, args, kwargs)
        told = self._on_fakes.foretold(func, args, kwargs)
        # Eager's batch norm writes its statistics without counting up their versions, so a replay may not count either.
        is_untold = func is not aten.instance_norm.default and bool(written_untold(func, args, kwargs))
        func, args, kwargs = self._settle(func, args, kwargs, told)
        if func in BEGINS:
            first = args[0] if args else kwargs["self"]
            args, kwargs = from_start(self.tape, func, self._value(first, func, where), args, kwargs, where)
        # Before `_to_fake`: it makes the fake of a tensor that is met for the first time.
        node_args, node_kwargs = with_leaves(self._to_node(func, where), (args, kwargs))
        fake_args, fake_kwargs = with_leaves(self._to_fake, (args, kwargs))
        out = self._on_fakes.run(func, fake_args, fake_kwargs, told, where, by_rule=has_zeros)
        node = self.tape.call(aten.zeros.default if func is MAKES_ZEROS else func, node_args, node_kwargs, where=where)
        if func in KEEPS_FOR_BACKWARD:
            node.meta["is_keeping"] = torch.is_grad_enabled()
        self._note_writes(func, args, kwargs, where, is_untold=is_untold)
        if is_foreach_write(func):
            tell_autograd(func, args)
        given = leaves_of((fake_args, fake_kwargs))
        self.tape.checkpointed.note(_storages(given), _storages(leaves_of(out)), (func, where))
        both = zip(leaves_of((args, kwargs)), given, strict=True)
        result = self.tape.add(out, node, {id(fake): real for real, fake in both if isinstance(fake, Tensor)})
        return result if draw is None else self._draws.end(draw, node, result)

    def _check_caches(self) -> None:
        if self._cached and (function := being_filled(self._cached)) is not None:
            raise too_early_for(function, self.tape)

    def _settle(self, func: Any, args: Any, kwargs: Any, told: Answer | None) -> tuple[Any, Any, Any]:
        """The operator to record for the one called: the same, but for a few that hide what they do."""
        ask_exponent(func, args)
        # Where an operator wants a plain number it gets today's value, guarded.
        if not takes_symbolic_numbers(func):
            args, kwargs = _with_plain_numbers(args), _with_plain_numbers(kwargs)
        if func is aten.native_batch_norm.default and args[3] is not None and args[5]:
            # Its schema does not say that it writes the running statistics; this one's does.
            return aten._native_batch_norm_legit.default, args, kwargs
        if func in LIFTS:
            # The constant serves every replay: the program gets a copy, which it may write to or return.
            return aten.lift_fresh_copy.default, args, kwargs
        if func is aten.new_empty_strided.default and told is None and is_accumulating():
            return func, as_taken_over(args), kwargs
        return func, args, kwargs

    def _is_idle(self, func: Any, args: Any) -> bool:
        """Whether an operator does nothing: one that changes shapes in place leaves that of a tensor which outlives the call as
        it is, or `detach_` arrives, as it does under inference mode only, where there is no graph to take a tensor out of."""
        if func is aten.detach_.default:
            return True
        if func not in _SHAPES or isinstance(args[0], FakeTensor):
            return False
        return self._on_fakes.leaves_shape(func, self._value(args[0], func, None).fake, args[1:])

    def _to_node(self, func: Any, where: Location | None) -> Callable[[Any], Any]:
        def convert(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return self._value(leaf, func, where).node
            scalar = scalar_of(leaf)
            return leaf if scalar is None else self.tape.number(scalar)

        return convert

    def _to_fake(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return self.tape.values[id(leaf)].fake
        scalar = scalar_of(leaf)
        return leaf if scalar is None else scalar.value

    def _value(self, tensor: torch.Tensor, func: Any, where: Location | None) -> TracedValue:
        known = self.tape.values.get(id(tensor))
        if known is not None:
            return known
        if isinstance(tensor, FakeTensor):
            raise self.refuse(
                spoken_name(func),
                "uses a fake tensor that this trace did not make",
                "call the program outside of a FakeTensorMode",
                where,
            )
        if func is aten.lift_fresh_copy.default:
            return self.constants.lifted(tensor, where)
        if self.is_known(tensor):
            return self.tape.add_input(tensor)
        unknown = (*why_unknown(func, tensor, self.lasting.arguments.values()), where)
        if self.goes_on:
            # Noted and not raised: the trace goes on behind it.
            self.refuse(*unknown)
            return self.tape.add_input(tensor)
        raise self.refuse(*unknown)

    def switches(self, tensor: torch.Tensor) -> None:
        """The program will set `requires_grad` of a tensor that outlives the call. What it was is compared, as of inputs."""
        self._value(tensor, aten.requires_grad_.default, where := user_location())
        self.lasting.note_switch(tensor, where)

    def _note_writes(self, func: Any, args: Any, kwargs: Any, where: Location | None, *, is_untold: bool) -> None:
        for tensor in written_arguments(func, args, kwargs):
            value = self.tape.values[id(tensor)]
            storage = storage_of(value.fake)
            self.tape.mutated.add(storage)
            self.tape.checkpointed.note_write(storage, (func, where))
            if self.tape.births[storage].op == "placeholder" and not is_untold:
                self.tape.told[id(tensor)] = tensor
            if self.on_write is not None:
                self.on_write(value)

    def add_scalar(self, name: str, value: float) -> torch.SymFloat | torch.SymInt:
        """A symbolic number that is an input of the graph, called `name`."""
        return given_number(self.world, name, value, self.tape.placeholder(name))

    def _read_on_host(self, func: Any, args: Any, where: Location | None) -> Any:
        tensor = args[0]
        is_number = func is aten._local_scalar_dense.default and tensor.dtype.is_floating_point
        if is_number and (id(tensor) in self.host_scalars or innermost_is_optimizer()):
            node = self.tape.call(func, (self._value(tensor, func, where).node,), where=where)
            # A placeholder: a number without `text` has no value, and raises where Python asks for it.
            return symbolic(Scalar(self.world, text=None, value=1.0, node=node))
        if (known := answer_of_constants(self.tape, func, args)) is not None:
            self.tape.host_reads.append((func, known))
            return known
        raise self.refuse(
            spoken_name(func).replace("_local_scalar_dense", "item"),
            "reads a tensor's value on the host, which a recording cannot wait for",
            INSTEAD.get(running_call().name or "", KEEP_ON_DEVICE),
            where,
        )

    def forget(self) -> None:
        """Drop every tensor; afterwards only what the user kept is still alive."""
        self.tape.forget()
        self.recurrent.forget()
        self._draws.forget()
        self.lasting.arguments = {}


# torch has wrapped it to keep Dynamo away, which a trace does as a whole.
Tracer.__torch_dispatch__ = inspect.unwrap(Tracer.__torch_dispatch__)  # type: ignore[method-assign]


def _storages(values: Iterable[Any]) -> Iterator[int]:
    return (storage_of(value) for value in values if isinstance(value, Tensor))


def _with_plain_numbers(value: Any) -> Any:
    if not any(scalar_of(leaf) is not None for leaf in leaves_of(value)):
        return value
    return with_leaves(guarded_value, value)
