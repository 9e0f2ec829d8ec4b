"""Runs a program again with other tensors in the place of its own: how a wrapper traces a program that it did not write.

    program's Python ── torch functions ── Substitution ── autograd ── operators
    holds its own tensors    given them      gives those of the tracer

The program keeps its hands on its own parameters and buffers: it finds them by identity, asks them for `.grad` and is told
whether they are leaves. Only what is computed is computed with the others, so a trace reaches no memory of the user's, no
other thread notices, and gradients are those of the tensors that stand in.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from treeplay.errors import Refusal
from treeplay.guards.reads.reads import Reads
from treeplay.observe.lines import user_location
from treeplay.sandbox.generators import has_company
from treeplay.torch_seam.autograd import autograd_function_arguments, mode_in_backward, transformed_arguments
from treeplay.torch_seam.dynamo import dynamo_off
from treeplay.torch_seam.facts import FACTS, is_of_tracer
from treeplay.torch_seam.fakes import rules_fail_quietly
from treeplay.torch_seam.modes import DisableTorchFunction, native_layers
from treeplay.torch_seam.tensors import TensorBase
from treeplay.trace.arguments_again import LikeArguments, in_containers
from treeplay.trace.asked import ReadsAsInTheTrace, told_of_the_trace
from treeplay.trace.call import Call, home_of
from treeplay.trace.numbers.scalars import SYMBOLS
from treeplay.trace.restore.apart import told_apart
from treeplay.trace.restore.randomness import TrackedGenerators
from treeplay.trace.restore.snapshot import Snapshot
from treeplay.trace.restore.surroundings import autocast_cache_apart, autocast_caches
from treeplay.trace.run.checks import checked_by_operators
from treeplay.trace.run.products import ProductsAsEager
from treeplay.trace.run.whole import kept_whole
from treeplay.trace.saved_only import SavedOnly
from treeplay.trace.shown import RunFacts
from treeplay.trace.signature.flat import TensorNumbers, look
from treeplay.trace.survey.found import Survey
from treeplay.trace.survey.given import over
from treeplay.trace.survey.recordable import survey_to_record
from treeplay.trace.turn import Busy, turn
from treeplay.values.flatten import flatten
from treeplay.values.signature import Argument, Input, Signature, State

_ATTRIBUTES: Any = vars(TensorBase)
# They compute a tensor.
_VIEWS = frozenset(_ATTRIBUTES[name].__get__ for name in ("T", "mT", "H", "mH", "real", "imag"))
_DATA = _ATTRIBUTES["data"].__get__


class Substitution:
    """Which tensors stand in for the program's own. Under `mode()`, torch functions are given those that stand in."""

    def __init__(self) -> None:
        self._others: dict[int, torch.Tensor] = {}
        self._own: dict[int, torch.Tensor] = {}
        self.given: dict[int, torch.Tensor] = {}  # the program's own, by the `id` of what it is passed instead
        self.is_exact = False

    def set(
        self, own: Sequence[torch.Tensor], others: Sequence[torch.Tensor], passed: frozenset[int] = frozenset()
    ) -> None:
        """From now on `others` stand in for `own`. The program is passed some of them itself, whose `id` is in `passed`: it
        never gets its own for these."""
        self._others = {id(mine): other for mine, other in zip(own, others, strict=True)}
        self._own = {id(other): mine for mine, other in zip(own, others, strict=True) if id(other) not in passed}

    def mode(self) -> TorchFunctionMode:
        """A function mode that substitutes."""
        return _SubstitutionMode(self)

    def other(self, value: Any) -> Any:
        """What stands in for a tensor; in a list, tuple or dict for each of its tensors. Anything else is itself."""
        if isinstance(value, torch.Tensor):
            return self._others.get(id(value), value)
        if isinstance(value, (list, tuple)) and value:
            parts = [self.other(part) for part in value]
            if all(new is old for new, old in zip(parts, value, strict=True)):
                return value
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if isinstance(value, dict) and value:
            return {key: self.other(part) for key, part in value.items()}
        return value

    def asked(self, value: Any) -> torch.Tensor | None:
        """The program's own tensor, where the program asks something of it or of what it is passed instead."""
        return value if id(value) in self._others else self.given.get(id(value))

    def own(self, value: Any) -> Any:
        """The program's own tensor for one that stands in for it; anything else is itself."""
        return self._own.get(id(value), value)


class _SubstitutionMode(TorchFunctionMode):
    """Torch functions get the tensors that stand in, and what they give back of these is the program's own again."""

    def __init__(self, substitution: Substitution) -> None:
        super().__init__()
        self._substitution = substitution

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        # By `==`: each look-up of a `__get__` makes a new method wrapper.
        if func == _DATA:
            return func(self._substitution.other(args[0]))
        if (
            func in FACTS
            and (asked := self._substitution.asked(args[0])) is not None
            and not is_of_tracer(sys._getframe(1))
        ):
            with DisableTorchFunction():  # a mode below, of a backward, would ask what stands in
                return func(asked)  # the answer that the trace had
        is_asked = name in ("__get__", "__set__", "__delete__") and func not in _VIEWS
        # The one would change something only in a tensor of the trace, and the other is asked of the program's own.
        if is_asked or func in (torch.Tensor.requires_grad_, torch.Tensor.is_inference):
            return func(*args, **kwargs)
        with kept_whole(name, args, kwargs, is_exact=self._substitution.is_exact):
            result = checked_by_operators(func)(*self._substitution.other(args), **self._substitution.other(kwargs))
        return self._substitution.own(result)


class Rerun:
    """A traced program as a flat function of its tensors: arguments and state, in the order of its signature's inputs.

    Each run leaves the program's Python state as it was, and must show the same as the trace did. It is given the containers
    of the call themselves, which it may know from its state. `reads` are those of the trace, if they are known. `keeps_sizes`:
    sizes of arguments may be symbols, also in containers, which are then others.
    """

    def __init__(
        self,
        program: Callable[..., Any],
        call: Call,
        signature: Signature,
        tensors: Sequence[torch.Tensor],
        reads: Reads | None = None,
        *,
        keeps_sizes: bool = False,
    ) -> None:
        self._program = program
        self._call = call
        self._signature = signature
        self._tensors = list(tensors)
        self._found: Survey = survey_to_record(program, call)
        self._expected = RunFacts(signature.results, signature.refs, signature.writes, ())
        self._substitution = Substitution()
        self._generators: TrackedGenerators | None = None
        self._reads = reads
        self._keeps_sizes = keeps_sizes
        self._caches_casts = True
        self._in_containers = frozenset() if keeps_sizes else in_containers(call)

    def __call__(self, *others: torch.Tensor) -> list[torch.Tensor]:
        direct = self._direct(others)
        self._substitution.set(self._tensors, others, frozenset(map(id, direct.values())))
        own = {id(mine): mine for mine in self._tensors}
        self._substitution.given = {id(other): own[key] for key, other in direct.items()}
        args, kwargs = self._arguments(direct)
        found = over(self._found, args, kwargs, self._call.structure)
        snapshot = Snapshot(found, self._call.tensors)
        flat = TensorNumbers(found, self._refuse, lambda tensor: None)
        reads = self._signature.host_reads
        try:
            with (
                ReadsAsInTheTrace(reads) if reads else contextlib.nullcontext(),
                mode_in_backward(self._substitution.mode()),
                autocast_caches(self._caches_casts),
                # Noted by the first run that has other threads beside it; later runs read and store the same.
                told_apart(self._program, self._call, snapshot, self._reads, self._generators) as self._reads,
                self._substitution.mode(),
                autograd_function_arguments(self._substitution.other),
                transformed_arguments(self._substitution.other),
            ):
                result = self._program(*args, **kwargs)
            if self._keeps_sizes and any(isinstance(leaf, SYMBOLS) for leaf in flatten(result)[0]):
                raise self._refuse("result", "is a size as a number", "return a tensor of it")
            shown = look(flat, result, snapshot, [])
            is_disturbed = snapshot.whose is not None and snapshot.whose.disturbed is not None
        finally:
            self._substitution.given = {}
            snapshot.restore()
            snapshot.whose = None  # which refers to what the run came across
        if shown.is_like(self._expected):
            return [self._substitution.other(tensor) for tensor in flat.tensors]
        if is_disturbed:
            raise Busy  # another thread changed what the program has read
        raise self._refuse("program", "does not do the same on each run", "make it do the same on each call")

    @contextlib.contextmanager
    def ready(self, *, is_exact: bool) -> Iterator[None]:
        """The block in which it may be called, also by a backward that runs parts of the program again.

        `is_exact`: layers take the operators that they take eagerly. Raises `Busy` if another thread traces for long.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(turn())
            if is_exact:
                stack.enter_context(native_layers())
            self._substitution.is_exact = is_exact
            self._caches_casts = torch.is_autocast_cache_enabled()  # torch switches it off for what it traces
            known = self._found.generators.values()
            self._generators = stack.enter_context(TrackedGenerators(known, is_marking=not has_company()))
            for around in (dynamo_off(), ProductsAsEager(), autocast_cache_apart(), rules_fail_quietly()):
                stack.enter_context(around)
            # Not at the end of `__call__`: a backward may run parts of the program again, and needs the others and the mode.
            stack.callback(self._substitution.set, (), ())
            stack.enter_context(told_of_the_trace())
            stack.enter_context(self._substitution.mode())
            stack.enter_context(mode_in_backward(SavedOnly(self._refuse)))  # which the caller will run
            yield

    def repeated(
        self, *, is_exact: bool
    ) -> Callable[[Sequence[torch.Tensor]], contextlib.AbstractContextManager[Rerun]]:
        """What makes the program ready once more, for a call with these tensors, in the order of the inputs. It holds neither
        the program nor the tensors of this call.

        State that the program overwrites may come as it was before: where the program finds it, it is the program's own."""
        signature, structure = self._signature, self._call.structure
        like = LikeArguments(self._call, dict(signature.identity.themselves))
        places = {id(tensor): k for k, tensor in enumerate(self._tensors)}
        given = [places.get(id(leaf)) for leaf in self._call.leaves]
        others = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in self._call.leaves]
        program = _weakly(self._program)

        @contextlib.contextmanager
        def ready(tensors: Sequence[torch.Tensor]) -> Iterator[Rerun]:
            leaves = [other if k is None else tensors[k] for k, other in zip(given, others, strict=True)]
            args, kwargs = like.over(leaves)
            again = program()
            if again is None:
                raise Refusal.of("create_graph", "the program is gone", "keep it until the last backward", None)
            found = [_own(item, given) for item, given in zip(signature.inputs, tensors, strict=True)]
            rerun = Rerun(again, Call(args, kwargs, leaves, structure), signature, found)
            with rerun.ready(is_exact=is_exact):
                yield rerun

        return ready

    def read_again(self) -> dict[int, str]:
        """The inputs that a checkpoint of the program reads, and what they are called."""
        inputs = enumerate(self._signature.inputs)
        return {k: _label(item) for k, item in inputs if item.is_read_again}

    def _direct(self, others: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """The arguments of the next run that need no substitution, by the `id` of what they stand for."""
        every = zip(self._signature.inputs, self._tensors, others, strict=True)
        return {
            id(mine): other
            for item, mine, other in every
            if is_passed(item, mine) and id(mine) not in self._in_containers
        }

    def _arguments(self, direct: Mapping[int, torch.Tensor]) -> tuple[Any, Any]:
        """The call's arguments."""
        call = self._call
        if self._keeps_sizes:
            leaves = [direct.get(id(leaf), leaf) for leaf in call.leaves]
            return LikeArguments(call, {}).over(leaves)
        args = tuple(direct.get(id(arg), arg) for arg in call.args)
        return args, {name: direct.get(id(arg), arg) for name, arg in call.kwargs.items()}

    def _refuse(self, op: str, why: str, advice: str, where: Any = None, **_: Any) -> Refusal:
        return Refusal.of(op, why, advice, where or user_location() or home_of(self._program))


def is_passed(item: Input, tensor: torch.Tensor) -> bool:
    """Whether an input is an argument and nothing else, so that the program may be passed what stands for it."""
    # A tensor of the tracer's has neither history nor gradient: a program that asks for either has to get its own.
    is_only = isinstance(item.source, Argument) and not item.source.also
    return is_only and tensor.grad_fn is None and not _has_grad(tensor)


def _label(item: Input) -> str:
    return f"`{item.source.place.label}`" if isinstance(item.source, State) else f"an argument ({item.spec})"


def _own(item: Input, given: torch.Tensor) -> Any:
    """What the program finds where an input of its state is now; `given` for others, and where nothing is there any more."""
    found = item.source.place.anew().read_or(None) if isinstance(item.source, State) else None
    return found if isinstance(found, torch.Tensor) else given


def _weakly(program: Callable[..., Any]) -> Callable[[], Callable[..., Any] | None]:
    """A reference to a program that does not keep it alive; a bound method is one of its owner."""
    # Each look-up of a method makes another one: a plain reference to it would be dead at once.
    return weakref.WeakMethod(program) if isinstance(program, MethodType) else weakref.ref(program)


def _has_grad(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf and tensor.grad is not None  # in this order: asking a non-leaf for `.grad` warns
