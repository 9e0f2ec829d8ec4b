"""The outside tensors that a recording reads: whether they are still there, or kept as long as the recording.

A recording holds addresses. On CUDA, a tensor that was freed since leaves its address to somebody else, and a replay reads
what lies there now. Callables that are wrapped keep what they read; a bare recording checks it if that is wanted.
"""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from treeplay.errors import UsageError
from treeplay.observe.lines import is_users, user_location
from treeplay.torch_seam.dynamo import LeavesCompiled
from treeplay.torch_seam.modes import TorchDispatchMode
from treeplay.torch_seam.tensors import storage_of
from treeplay.torch_seam.trees import tree_iter
from treeplay.values.location import Location

_START = "an unknown line (start `tracemalloc` before making it, with Python 3.12 or later, to be told)"


@dataclass(eq=False, slots=True)
class OutsideTensor:
    """One outside tensor: what it is, where it was made, first used and let go of, and whether its memory is there."""

    text: str
    is_there: Callable[[], bool]
    made: Location | None
    used: Location | None
    dropped: Location | None = None
    watch: Any = None  # the weak reference that notes where the tensor was let go of

    def __str__(self) -> str:
        lines = [
            f"made at    {self.made or _START}",
            f"used at    {self.used or 'an unknown line'}, while recording",
            f"freed at   {self.dropped or 'an unknown line'}",
        ]
        return "\n  ".join([self.text, *lines])


@dataclass(eq=False, slots=True)
class Inputs:
    """The outside tensors of one recording."""

    entries: list[OutsideTensor] = field(default_factory=list)

    def note(self, tensor: torch.Tensor, is_there: Callable[[], bool] | None = None) -> None:
        """Note a tensor without keeping it; `is_there` where its storage cannot be asked."""
        dims = ", ".join(map(str, tensor.shape))
        text = f"{str(tensor.dtype).removeprefix('torch.')}[{dims}] on {tensor.device}"
        entry = OutsideTensor(text, is_there or _lives(tensor), made_at(tensor), user_location())
        entry.watch = weakref.ref(tensor, lambda _: _note_drop(entry))
        self.entries.append(entry)

    def check(self) -> None:
        """`UsageError` if one of them was freed."""
        for entry in self.entries:
            if not entry.is_there():
                raise UsageError(
                    f"a tensor that the recording reads was freed before the replay: {entry}\n"
                    "  fix:       keep a reference to it as long as the recording is replayed"
                )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note what a block of CUDA work reads and did not make itself."""
        with _InputWatch(self.note):
            yield

    def clear(self) -> None:
        """Forget them all."""
        self.entries.clear()


def made_at(tensor: torch.Tensor) -> Location | None:
    """The user's line at which the tensor object was made, where `tracemalloc` was on to see it."""
    trace = tracemalloc.get_object_traceback(tensor) if tracemalloc.is_tracing() else None
    frames = [frame for frame in trace or () if is_users(frame.filename)]
    return Location(frames[-1].filename, frames[-1].lineno) if frames else None


class _InputWatch(TorchDispatchMode):
    """Tells inputs from what the block makes, by storage."""

    def __init__(self, note: Callable[[torch.Tensor], object], seen: Iterable[int] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note
        self._seen = set(seen)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor, storage in _storages((args, kwargs or {})):
            if storage not in self._seen and tensor.is_cuda:
                self._note(tensor)
            self._seen.add(storage)
        result = func(*args, **(kwargs or {}))
        self._seen.update(storage for _, storage in _storages(result))
        return result


class OutsideMemory(LeavesCompiled, _InputWatch):
    """While it is entered: keeps the memory that a block of CUDA work reads and did not make itself, in `kept`.

    A block that goes on after another, as a backward after its forward, did not make what the other made, and does not keep it.
    Nor does it what a compiled function inside reads, which is that one's to keep.
    """

    def __init__(self, after: OutsideMemory | None = None) -> None:
        self.kept: list[torch.UntypedStorage] = []
        # Not a bound method, by which the mode would keep itself.
        super().__init__(partial(_keep, self.kept), after._seen if after else ())


def _keep(kept: list[torch.UntypedStorage], tensor: torch.Tensor) -> None:
    kept.append(tensor.untyped_storage())


def _storages(tree: Any) -> Iterator[tuple[torch.Tensor, int]]:
    for leaf in tree_iter(tree):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            yield leaf, storage_of(leaf)


def _lives(tensor: torch.Tensor) -> Callable[[], bool]:
    reference = StorageWeakRef(tensor.untyped_storage())
    return lambda: not reference.expired()


def _note_drop(entry: OutsideTensor) -> None:
    entry.dropped = user_location()
