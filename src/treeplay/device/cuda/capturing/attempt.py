"""One capture of a body, and everything about it that relocation wants to know."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from treeplay.device.cuda.capturing.capture import capturing
from treeplay.device.cuda.capturing.history import AllocationHistory, Lifetime, allocations
from treeplay.device.cuda.capturing.marks import Marks
from treeplay.device.cuda.lane import Lane
from treeplay.device.cuda.memory.space import AddressSpace
from treeplay.device.cuda.nodes.reading import Shapes, read_nodes
from treeplay.device.protocol import Work
from treeplay.errors import CaptureFailed
from treeplay.observe.rng import moving
from treeplay.torch_seam import allocator
from treeplay.torch_seam.allocator import Pool
from treeplay.torch_seam.tensors import storage_of
from treeplay.values.nodes import CaptureNotes, Placed
from treeplay.values.spec import TensorSpec


@dataclass(eq=False)
class Attempt:
    """A captured graph, not yet instantiated, and its outputs in pool memory. `leave` gives its claim on the pool back.

    `space`: the addresses that all of it has, if they are its own.
    """

    graph: torch.cuda.CUDAGraph
    outputs: list[torch.Tensor]
    leave: Callable[[], Any]
    space: AddressSpace | None = None
    births: dict[int, int] = field(default_factory=dict)  # of outputs by index: nodes before belong to others
    captured: CaptureNotes | None = None  # None where nodes cannot be read
    lifetimes: tuple[Lifetime, ...] = ()  # of what it allocated, in order

    def drop(self) -> None:
        """Give graph and memory back."""
        self.outputs.clear()
        self.graph.reset()
        self.leave()


def attempt_capture(
    work: Work,
    tensors: Sequence[torch.Tensor],
    lane: Lane,
    *,
    cloned: Collection[int] = (),
    rewritten: frozenset[int] = frozenset(),
    movable: Sequence[int] | None = None,
    shapes: Shapes | None = None,
    is_apart: bool = False,
    space: AddressSpace | None = None,
) -> Attempt:
    """Capture the body over `tensors`; executes nothing.

    Outputs at `cloned` are copied as the last thing that is captured, so that they lie in memory of their own. Until it makes
    those that are `rewritten`, the body may keep temporaries in their memory. With `movable`, the indices of the tensors that
    may move, the nodes are read; `shapes` is what that has told before.
    What it allocates gets addresses from `space`, which is closed when it is dropped. Without one, memory comes from the pool
    that recordings share; one that `is_apart` gets a pool of its own then, so that all that it allocates lies elsewhere than
    in any other capture. Raises `CaptureFailed`, or what the body raises.
    """
    # Kept, and not instantiated when the capture ends: its nodes are read, and some of them set, before that.
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    for generator in work.generators:
        graph.register_generator_state(generator)
    pool, leave = _pool(lane, space, is_apart=is_apart)
    made = None
    spared = SparedGenerator(lane.device, is_drawn_from=work.draws)
    seen = AllocationHistory()

    @contextmanager
    def beginning() -> Iterator[None]:  # of the whole process, so in this thread's turn
        nonlocal seen
        with allocations(lane.device, pool) as seen, spared, space.in_use() if space is not None else nullcontext():
            yield

    try:
        with (
            capturing(graph, device=lane.device, pool=pool, gives_back_caches=False, beginning=beginning()),
            torch.no_grad(),
        ):
            spared.put_back()
            # Addresses of a space need memory only where something else than a result lies.
            births = Marks(lane.device, results_first=space is not None, rewritten=rewritten)
            with work.tells(births) if work.tells is not None else nullcontext(), kept_in_place(tensors):
                # A list of its own, which the body may empty.
                outputs = list(work.body(list(tensors)))
            for index in cloned:
                before = births.now()
                outputs[index] = outputs[index].clone()
                births.born(outputs[index], before)
        made = Attempt(graph, outputs, leave, space, births.of(outputs, seen.blocks, seen.notes))
        made.lifetimes = seen.lifetimes
        made.leave = weakref.finalize(made, leave)  # once, also if nobody drops it
        made.leave.atexit = False  # the process's end gives all back
        if movable is not None:
            made.captured = CaptureNotes(
                read_nodes(graph.raw_cuda_graph(), shapes),
                tuple(_placed(index, tensors[index]) for index in movable),
                tuple(_placed(index, outputs[index], made.births.get(index)) for index in in_own_memory(outputs)),
                seen.blocks,
            )
    except BaseException:
        if made is None:
            leave()
        else:
            made.drop()
        raise
    return made


def _pool(lane: Lane, space: AddressSpace | None, *, is_apart: bool) -> tuple[Pool, Callable[[], Any]]:
    """Where a capture allocates, and how to leave that."""
    if space is not None:
        return space.pool.token, partial(lane.close, space)
    return (allocator.new_pool_token(), _nothing) if is_apart else (lane.enter(), lane.leave)


def _nothing() -> None:
    """A pool of its own has nobody to tell that a graph has left it."""


@contextmanager
def kept_in_place(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Refuse a body that gives its tensors other memory, and undo that: cuDNN does it to weights that are not in one piece."""
    homes = [(tensor.untyped_storage(), tensor.data_ptr()) for tensor in tensors]
    try:
        yield
    finally:
        strays = [at for at, (_, address) in enumerate(homes) if tensors[at].data_ptr() != address]
        for at in strays:
            tensor = tensors[at]
            tensor.data = tensor.data.set_(homes[at][0], tensor.storage_offset(), tensor.shape, tensor.stride())
    if strays:
        raise CaptureFailed.of(
            "set_",
            (
                "the program gives a tensor other memory while it is captured, as recurrent layers do to weights that do "
                "not lie in one piece"
            ),
            "call flatten_parameters() on the layer before",
        )


class SparedGenerator:
    """Keeps the default generator out of a capture that does not draw from it.

    While a capture has it, nobody else in the process can draw random numbers on that device. So the capture begins with
    another one in its place, put there when this is entered; `put_back` is called when the capture has begun.
    """

    def __init__(self, device: torch.device, *, is_drawn_from: bool) -> None:
        self._device = device
        self._is_drawn_from = is_drawn_from
        self._swapped = ExitStack()

    def __enter__(self) -> None:
        if self._is_drawn_from:
            return
        generator = torch.cuda.default_generators[self._device.index]
        # Held until `put_back`: in between, the default generator has a state that is not its own.
        self._swapped.enter_context(moving)
        own = generator.graphsafe_get_state()
        self._swapped.callback(generator.graphsafe_set_state, own)
        generator.graphsafe_set_state(generator.clone_state())

    def put_back(self) -> None:
        """Give the default generator its own state back, once."""
        self._swapped.close()

    def __exit__(self, *_: object) -> None:
        self.put_back()


def in_own_memory(outputs: Sequence[torch.Tensor]) -> list[int]:
    """The outputs that have a storage of their own, no larger than they are, and begin where it begins."""
    storages = [storage_of(output) for output in outputs]
    return [
        index
        for index, output in enumerate(outputs)
        if output.is_cuda
        and output.numel()
        and output.storage_offset() == 0
        and storages.count(storages[index]) == 1
        # A new tensor in its place has no room for what the graph writes behind it.
        and output.untyped_storage().nbytes() <= TensorSpec.of(output).nbytes
    ]


def _placed(index: int, tensor: torch.Tensor, birth: int | None = None) -> Placed:
    storage = tensor.untyped_storage()
    return Placed(index, tensor.data_ptr(), storage.nbytes(), storage.data_ptr(), birth)
