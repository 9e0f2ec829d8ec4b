"""Records what a piece of code does with CPU tensors, so that it can be replayed: the host's stream capture.

    user's code ── torch functions ── autograd ── ATen operators
                        │                               │
                   _HostReads                       Recorder (dispatch): refuses, saves what is written outside, runs, notes

Nothing of the body may show when the recording ends: operators run while they are recorded, because later ones need their
results, and then what they wrote to tensors that were there before, and the random generators, are put back.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from treeplay.device.host.draws import Draws
from treeplay.device.host.rules import refusal_of, refusal_of_method, refusal_of_tensors
from treeplay.device.host.tape import HostTape
from treeplay.errors import CaptureFailed, UsageError
from treeplay.sandbox.teardown import Teardown
from treeplay.torch_seam.dynamo import dynamo_off
from treeplay.torch_seam.modes import DisableTorchFunction, TorchDispatchMode, is_innermost_mode, native_layers
from treeplay.torch_seam.schemas import (
    EMPTY,
    LIFTS,
    aten,
    is_foreach_write,
    is_inplace_view,
    leaves_of,
    tell_autograd,
    written_arguments,
)
from treeplay.torch_seam.tensors import storage_of
from treeplay.values.refusal import Reason

_local = threading.local()


def is_recording() -> bool:
    """Whether a recorder is at work in this thread."""
    return getattr(_local, "recorder", None) is not None


class Recorder(TorchDispatchMode):
    """One recording, from begin to end, in one thread.

    `generators`: those besides the default one that the body may draw from. `on_outside` is told once of each tensor that
    was there before.
    """

    supports_higher_order_operators = True  # to refuse them

    def __init__(
        self, generators: Sequence[torch.Generator] = (), on_outside: Callable[[torch.Tensor], None] | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = HostTape()
        self._draws = Draws([torch.default_generator, *generators])
        self._saved: list[tuple[torch.Tensor, torch.Tensor]] = []  # bytes of an outside storage, and a copy of them
        self._saved_storages: set[int] = set()
        self._reads = _HostReads(weakref.proxy(self))  # what it noted goes with the recording
        self._native = native_layers()  # which a function mode would keep from taking one large operator
        self._entered: list[tuple[str, Callable[[], object]]] = []  # contexts, and how each is left
        self._refused: Reason | None = None
        self._on_outside = on_outside

    def begin(self) -> None:
        """Start to record what this thread does."""
        self._draws.begin()
        entered: list[tuple[str, Any]] = [
            # Under a mode compiled code runs as plain Python; and Dynamo, if it saw that, would never compile it again.
            ("letting Dynamo look again", dynamo_off()),
            ("leaving native layers", self._native),
            ("leaving the function mode", self._reads),
            ("leaving the dispatch mode", self),
        ]
        try:
            for what, context in entered:
                context.__enter__()
                self._entered.append((what, partial(context.__exit__, None, None, None)))
            _local.recorder = self
        except BaseException as error:
            self._leave(error)
            raise

    def end(self) -> HostTape:
        """Stop, and put back what the body wrote; `CaptureFailed` if it did something that cannot be recorded."""
        self.check_ends_here()
        self._draws.end()
        first = self._leave(None)
        if first is not None:
            raise first
        self._refused = self._refused or self._draws.refusal_at_end()
        if self._refused is not None:
            raise CaptureFailed(self._refused)
        return self.tape

    def abandon(self, first: BaseException | None = None) -> BaseException | None:
        """Stop, put back what the body wrote, and keep nothing; safe to call after an end that failed. Returns the first
        error, `first` if given, with later ones as its notes."""
        first = self._leave(first)
        self.tape = HostTape()
        return first

    def refuse_if(self, reason: Reason | None) -> None:
        """Raise `CaptureFailed` if there is a reason. The first is noted, so that a body which swallows exceptions is refused
        all the same."""
        if reason is not None:
            self._refused = self._refused or reason
            raise CaptureFailed(reason)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for kind in types):
            return NotImplemented  # a tensor subclass takes it apart first; a parameter has nothing to take apart
        with DisableTorchFunction():
            return self._run(func, args, kwargs or {})

    def _run(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        op, args = _truthful(op, args)
        self.refuse_if(refusal_of(op, args, kwargs) or self._draws.refusal_of(op, args, kwargs))
        given = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        for tensor in given:
            self._meet(tensor)
        for tensor in written_arguments(op, args, kwargs):
            self._save(tensor)
        if op in LIFTS:
            return self._lift(args[0])
        # Aliases from before the call: it may change the shape of the very tensors it is given.
        aliased = self.tape.aliased((args, kwargs))
        result = op(*args, **kwargs)
        if is_foreach_write(op):
            tell_autograd(op, args)
        self.refuse_if(refusal_of_tensors(op, result))
        if not is_inplace_view(op):
            self._note(op, aliased[0], _with_dtype(op, aliased[1], result), given, result)
        self._draws.note(op, args, kwargs)
        return result

    def _note(self, op: Any, args: Any, kwargs: Any, given: list[torch.Tensor], result: Any) -> None:
        fresh = [self._own(leaf, given) for leaf in leaves_of(result)]
        written = written_arguments(op, args, kwargs)
        makes = any(tensor is not None for tensor in fresh)
        # What returns nothing is called for what it does, but for a profiler's marks.
        has_effect = makes or written or (not op._schema.returns and op.namespace != "profiler")
        if op in EMPTY or not has_effect:
            return  # memory without contents, a view, or a question about shapes
        self.tape.add(op, args, kwargs, written, fresh)

    def _own(self, leaf: Any, given: list[torch.Tensor]) -> torch.Tensor | None:
        """An alias of a result if it lies in memory of its own."""
        if not isinstance(leaf, torch.Tensor):
            return None
        storage = storage_of(leaf)
        if storage in self.tape.outside or any(storage_of(tensor) == storage for tensor in given):
            return None
        alias = self.tape.alias(leaf)
        self.tape.made.setdefault(storage, alias)
        return alias

    def _lift(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor made from Python numbers, in memory of its own, so that each replay can give it its values again."""
        result = value.clone()
        target = self.tape.alias(result)
        self.tape.made[storage_of(result)] = target
        self.tape.add(aten.copy_.default, (target, self.tape.alias(value)), {}, [target], [None])
        return result

    def _meet(self, tensor: torch.Tensor) -> None:
        storage = storage_of(tensor)
        if storage not in self.tape.made and storage not in self.tape.outside:
            self.tape.outside[storage] = self.tape.alias(tensor)
            if self._on_outside is not None:
                self._on_outside(tensor)

    def _save(self, tensor: torch.Tensor) -> None:
        """Copy the whole storage of an outside tensor before it is first written."""
        storage = storage_of(tensor)
        if storage not in self.tape.made and storage not in self._saved_storages:
            self._saved_storages.add(storage)
            content = _bytes_of(tensor)
            self._saved.append((content, content.clone()))

    def _leave(self, first: BaseException | None) -> BaseException | None:
        steps = Teardown()
        for restore in self._draws.restorers() if self._entered else ():
            steps.add("putting a random generator back", restore)
        for content, copy in self._saved:
            steps.add("putting back what was written", partial(_put_back, content, copy))
        # Steps run last first: the modes are left before anything is put back, which would be recorded otherwise.
        for what, leave in self._entered:
            steps.add(what, leave)
        if self._entered:
            _local.recorder = None
        first = steps.run(first)
        self._saved, self._saved_storages, self._entered = [], set(), []
        return first

    def check_ends_here(self) -> None:
        """`UsageError` where the recording cannot be ended; it then goes on."""
        if not is_innermost_mode(self):
            raise UsageError(
                "a capture on the CPU was ended in another thread than it began in, or inside of another torch mode: "
                "end it where it was begun"
            )


class _HostReads(TorchFunctionMode):
    """Refuses what reads a tensor's memory without an operator: `numpy()`, `tolist()`, printing."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._recorder.refuse_if(refusal_of_method(func))
        return func(*args, **(kwargs or {}))


def _truthful(op: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The operator, or its twin whose schema says that it writes running statistics."""
    if op is aten.native_batch_norm.default and args[3] is not None and args[5]:
        return aten._native_batch_norm_legit.default, args
    return op, args


def _with_dtype(op: Any, kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    """A factory's arguments with the dtype that it chose, which is the default dtype of that moment."""
    chose = "device" in kwargs and kwargs.get("dtype") is None and isinstance(result, torch.Tensor)
    if chose and any(argument.name == "dtype" for argument in op._schema.arguments):
        return {**kwargs, "dtype": result.dtype}
    return kwargs


def _put_back(content: torch.Tensor, copy: torch.Tensor) -> None:
    with torch.inference_mode():  # which may write to tensors that were made under it, and to all others
        content.copy_(copy)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
