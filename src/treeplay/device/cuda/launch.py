"""The function that launches a captured graph: straight-line text, made from what was found out while it was captured.

def launch(tensors, numbers):
    with lock:                                    one replay of a device at a time is issued
        stream = current_stream(0)
        if stream != lane.stream: order(stream)   recordings share scratch memory
        fill(numbers)
        if not are_at(tensors, ...): moved(...)   state that stays where it is: one native question
        p = tensors[0].data_ptr()
        if p != a0: ...                           arguments that move: their address goes into the graph
        out0 = empty_strided(...)                 results: new tensors, whose address goes into the graph
        block = empty_strided(...)                results that nobody sees but another recording: one tensor, one address
        replay()
    return (out0,)

Where there are many arguments or results, one native question comes first: most lie where they lay in the last launch.
With a `Boxing` it is `launch(args)`, which takes the tensors out of its list, and puts together what its caller returns.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.codegen import Source, Writer, list_of, tuple_of
from treeplay.device.cuda.lane import Lane, Unplaced
from treeplay.device.protocol import Boxing, Fill, InBlock, Replay
from treeplay.errors import InternalError
from treeplay.torch_seam import allocator, streams
from treeplay.torch_seam.tensors import view_in_block
from treeplay.values.block import OutputBlock
from treeplay.values.overlap import overlaps_itself
from treeplay.values.spec import TensorSpec

Move = Callable[[int], None]
NotLaunched = Callable[[Exception, list[torch.Tensor], Sequence[float]], Sequence[torch.Tensor]]
_FEW = 4  # addresses that are compared one by one


def disable(launch: Callable[..., Any]) -> None:
    """Make a launch function fall back for good, and keep no result: its graph goes. The caller holds the lane's lock."""

    def gone(index: int) -> int:
        raise Unplaced

    launch.__globals__["current_stream"] = gone  # the first thing it asks with the lock in its hands
    for name in launch.__globals__:
        if name.startswith("memory"):
            streams.unwatch(launch.__globals__[name])
        if name.startswith(("kept", "storage")):
            launch.__globals__[name] = None


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A bound method that does not keep its object alive, for a launch function which that object keeps."""
    found = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        bound = found()
        if bound is None:
            raise InternalError("a recording was launched that is gone")
        return bound(*args)

    return call


def launches_of(launch: Callable[..., Any]) -> int:
    """How often a launch function has launched."""
    return int(launch.__globals__["launches"])


@dataclass(frozen=True, slots=True)
class Patched:
    """An input whose address goes into the graph when it moves. `modulus` and `residue`: how it has to be aligned."""

    index: int
    address: int
    move: Move
    modulus: int
    residue: int
    is_mutated: bool


@dataclass(frozen=True, slots=True)
class Copied:
    """An input that is read from (and if it is written, written to) a buffer of the recording's."""

    index: int
    buffer: torch.Tensor
    is_mutated: bool


@dataclass(frozen=True, slots=True)
class LaunchOutput:
    """An output: a new tensor on each replay, to whose address the graph writes; or `held` by the graph and copied.

    One that only becomes the gradient of the tensor at `leaf` replaces what the last replay has left there: if nobody
    else has a hold on that, the graph writes to it again.
    """

    spec: TensorSpec
    address: int
    move: Move | None
    held: torch.Tensor | None = None
    leaf: int | None = None


@dataclass(frozen=True, slots=True)
class LaunchBlock:
    """The outputs that are made as one `block`. `move` takes its address: what lies in it moves by the same distance."""

    block: OutputBlock
    device: torch.device
    move: Move


@dataclass(frozen=True, slots=True)
class Otherwise:
    """What a call does that cannot be launched: `plain` where a tensor lies elsewhere, `not_launched` with an exception that
    came before the launch."""

    plain: Replay
    not_launched: NotLaunched


@dataclass(frozen=True, slots=True)
class LaunchParts:
    """What a launch consists of.

    `addresses` of all inputs; `steady` are those that seldom move, asked about in one go; `moved` is called if one has. Results
    that lie in the `block` are not moved one by one.
    """

    lane: Lane
    replay: Callable[[], None]
    otherwise: Otherwise
    vector: Fill | None
    steady: tuple[int, ...]
    addresses: list[int]
    moved: Callable[[list[torch.Tensor]], None]
    patched: tuple[Patched, ...]
    copied: tuple[Copied, ...]
    results: tuple[LaunchOutput, ...]
    align: Callable[[torch.Tensor, int, int], torch.Tensor]
    boxing: Boxing | None = None
    block: LaunchBlock | None = None

    def is_inside(self, at: int) -> bool:
        """Whether a result lies in the block."""
        return self.block is not None and at in self.block.block


class _LaunchText(Writer):
    """A writer that keeps what a launch remembers for the next one: names that the function assigns."""

    def __init__(self, **names: Any) -> None:
        super().__init__(**names)
        self.state: list[str] = []

    def keep(self, name: str, value: Any) -> str:
        """A name whose value changes; it begins as `value`."""
        self.names[name] = value
        self.taken.add(name)
        self.state.append(name)
        return name

    def are_at(self) -> str:
        """The native question whether tensors of a list lie at addresses."""
        return self.use("are_at", allocator.native("_tensors_data_ptrs_at_indices_equal"))


def emit_launch(parts: LaunchParts, name: str) -> Source:
    """The launch function of these parts."""
    text = _LaunchText(
        lane=parts.lane,
        lock=parts.lane.lock,
        order=parts.lane.order,
        current_stream=allocator.native("_cuda_getCurrentRawStream"),
        replay=parts.replay,
        plain=parts.otherwise.plain,
        not_launched=parts.otherwise.not_launched,
        Unplaced=Unplaced,
    )
    text.keep("launches", 0)
    with text.aside() as before:
        _write_inputs(text, parts)
        _write_results(text, parts)
    # A gradient that is written again lies where the stream of its allocation may have it anew: on another stream, a new one.
    kept = [name for name in text.state if name.startswith("kept")]
    made = [f"out{at}" for at in range(len(parts.results))]
    outside = [name for at, name in enumerate(made) if not parts.is_inside(at)]
    given, otherwise, end = "tensors, numbers", "return ", ""
    if parts.boxing is not None and parts.block is not None:
        given, end = "tensors, ()", ")"
        otherwise = f"return {text.use('put_together', parts.boxing.put_together)}(args, "
    elif parts.boxing is not None:
        given, otherwise = "tensors, ()", f"{', '.join(made)}, = " if made else ""

    def write_launch() -> None:
        with text.block("try:"), text.block("with lock:"):
            text.add(f"stream = current_stream({parts.lane.device.index})")
            with text.block("if stream != lane.stream:"):
                text.add("order(stream)", *([f"{' = '.join(kept)} = None"] if kept else []))
            text.add(*before, "replay()")
            launched = len(text.lines) + 1  # the number of the next line
            text.add("launches += 1")
            _write_copies(text, parts)
        text.add("except Unplaced:", f"    {otherwise}plain({given}){end}")
        with text.block("except Exception as error:"):
            text.add(f"if error.__traceback__.tb_lineno >= {launched}: raise")
            text.add(f"{otherwise}not_launched(error, {given}){end}")

    with text.block(f"def launch({'tensors, numbers' if parts.boxing is None else 'args'}):"):
        text.add(f"global {', '.join(text.state)}")
        if parts.boxing is None:
            write_launch()
            if parts.block is None:
                text.add(f"return {tuple_of(outside)}")
            else:
                text.add(f"return {text.use('InBlock', InBlock)}({tuple_of([*outside, 'block'])})")
        else:
            with parts.boxing.around(text):
                write_launch()
            parts.boxing.returned(text, made, None if parts.block is None else "block")
    return text.source(f"launch {name}", entry="launch")


def _write_inputs(text: _LaunchText, parts: LaunchParts) -> None:
    """Lines that bring numbers and arguments to where the graph reads them."""
    if parts.vector is not None:
        text.add(f"{text.use('fill', parts.vector.fill)}(numbers)")
    if parts.steady:
        addresses, steady = text.use("addresses", parts.addresses), text.use("steady", list(parts.steady))
        text.add(f"if not {text.are_at()}(tensors, {addresses}, {steady}):")
        text.add(f"    {text.use('moved', parts.moved)}(tensors)")
    _write_patched(text, parts)
    for copied in parts.copied:
        text.add(f"{text.use(f'buffer{copied.index}', copied.buffer)}.copy_(tensors[{copied.index}])")


def _write_copies(text: _LaunchText, parts: LaunchParts) -> None:
    """Lines for what is copied out of the recording."""
    for copied in parts.copied:
        if copied.is_mutated:
            text.add(f"tensors[{copied.index}].copy_(buffer{copied.index})")
    begins = dict(parts.block.block.places) if parts.block is not None else {}
    for at, result in enumerate(parts.results):
        if result.held is not None and at in begins:
            place = (
                f"{text.use('view_in_block', view_in_block)}(block, {begins[at]}, {text.use(f'spec{at}', result.spec)})"
            )
            text.add(f"{place}.copy_({text.use(f'held{at}', result.held)})")
        elif result.held is not None:
            text.add(f"out{at} = {_copy_of_held(text, at, result.held, result.spec)}")


def _copy_of_held(text: _LaunchText, at: int, held: torch.Tensor, spec: TensorSpec) -> str:
    """A copy with the strides of the output: a clone packs what has holes, and views of it would be of other elements."""
    name = text.use(f"held{at}", held)
    if torch.empty_like(held).stride() == spec.stride or overlaps_itself(held):
        return f"{name}.clone()"
    new_strided = text.use("new_strided", torch.Tensor.new_empty_strided)
    return f"{new_strided}({name}, {tuple(spec.shape)}, {tuple(spec.stride)}).copy_({name})"


def _write_patched(text: _LaunchText, parts: LaunchParts) -> None:
    """Lines for the arguments that move."""
    if len(parts.patched) <= _FEW:
        for item in parts.patched:
            _write_move(text, item, parts.align, at=text.keep(f"at{item.index}", item.address))
        return
    count = max(item.index for item in parts.patched) + 1
    captured = {item.index: item.address for item in parts.patched}
    # Of all, since one index is for both lists; and as captured, which need not be where the first call's tensors lie.
    given_at = text.use("given_at", [captured.get(at, 0) for at in range(count)])
    given = text.use("given", [item.index for item in parts.patched])
    with text.block(f"if not {text.are_at()}(tensors, {given_at}, {given}):"):
        for item in parts.patched:
            _write_move(text, item, parts.align, at=f"{given_at}[{item.index}]")


def _write_move(text: _LaunchText, item: Patched, align: Any, *, at: str) -> None:
    """Lines for one argument; where it lies is kept in `at`."""
    text.add(f"p = tensors[{item.index}].data_ptr()")
    with text.block(f"if p != {at}:"):
        if item.modulus > 1:
            with text.block(f"if p % {item.modulus} != {item.residue}:"):
                if item.is_mutated:
                    text.add("raise Unplaced")
                else:
                    aligned = f"{text.use('align', align)}(tensors[{item.index}], {item.residue}, {item.modulus})"
                    text.add(f"aligned{item.index} = {aligned}", f"p = aligned{item.index}.data_ptr()")
        text.add(*_moved(at, text.use(f"move{item.index}", item.move)))


def _moved(at: str, move: str) -> list[str]:
    """Lines that move to `p`. Where it lies is unknown meanwhile: what is broken off is done anew by the next launch."""
    return [f"{at} = 0", f"{move}(p)", f"{at} = p"]


def _write_results(text: _LaunchText, parts: LaunchParts) -> None:
    """Lines for the results."""
    if parts.block is not None:
        _write_block(text, parts.block)
    single = [(at, result) for at, result in enumerate(parts.results) if not parts.is_inside(at)]
    new = [at for at, result in single if result.move is not None and result.leaf is None]
    if len(new) <= _FEW:
        for at, result in single:
            _write_result(text, at, result)
        return
    results = [parts.results[at] for at in new]
    made_at = text.use("made_at", [result.address for result in results])
    every, moves = text.use("every", list(range(len(new)))), text.use("moves", [result.move for result in results])
    for at, result in single:
        if at in new:
            text.add(_made(text, at, result))
        else:
            _write_result(text, at, result)
    text.add(f"made = {list_of(f'out{at}' for at in new)}")
    with text.block(f"if not {text.are_at()}(made, {made_at}, {every}):"), text.block(f"for place in {every}:"):
        text.add("p = made[place].data_ptr()")
        with text.block(f"if p != {made_at}[place]:"):
            text.add(*_moved(f"{made_at}[place]", f"{moves}[place]"))


def _write_result(text: _LaunchText, at: int, result: LaunchOutput) -> None:
    if result.held is not None:
        return
    if result.move is None:  # it has no elements
        text.add(_made(text, at, result))
    elif result.leaf is None:
        _write_new(text, at, result)
    else:
        _write_again(text, at, result)


def _write_block(text: _LaunchText, block: LaunchBlock) -> None:
    """Lines that make the block, to which the graph is to write. The graph was captured without one, so it moves at first."""
    spec = TensorSpec((block.block.nbytes,), (1,), torch.uint8, block.device)
    text.add(_new_tensor(text, "block", spec, "bytes_of_block"), "p = block.data_ptr()")
    at, move = text.keep("block_at", 0), text.use("move_block", block.move)
    with text.block(f"if p != {at}:"):
        text.add(*_moved(at, move))


def _write_new(text: _LaunchText, at: int, result: LaunchOutput) -> None:
    """Lines that make a new tensor, to which the graph is to write."""
    text.add(_made(text, at, result), f"p = out{at}.data_ptr()")
    with text.block(f"if p != out_at{at}:"):
        text.add(*_moved(text.keep(f"out_at{at}", result.address), text.use(f"out_move{at}", result.move)))


def _made(text: _LaunchText, at: int, result: LaunchOutput) -> str:
    """The line that makes the new tensor of a result."""
    return _new_tensor(text, f"out{at}", result.spec, f"dtype{at}")


def _new_tensor(text: _LaunchText, name: str, spec: TensorSpec, dtype_name: str) -> str:
    dtype = text.name(spec.dtype, dtype_name)
    # The quick way allocates on the current device, which need not be the recording's if there are several.
    if torch.is_inference_mode_enabled() or torch.cuda.device_count() > 1:
        make, device = text.use("empty_strided", torch.empty_strided), text.constant(spec.device)
        return f"{name} = {make}({spec.shape}, {spec.stride}, dtype={dtype}, device={device})"
    return f"{name} = {text.use('empty', allocator.empty_on_gpu())}({spec.shape}, {spec.stride}, {dtype})"


def _write_again(text: _LaunchText, at: int, result: LaunchOutput) -> None:
    """Lines that take the tensor of the last replay if at most its slot has it, and make a new one if not. Who reads it on
    another stream is nowhere in these counts: for what was recorded there, torch has to wait before it gives the memory out."""
    kept, storage, memory = text.keep(f"kept{at}", None), text.keep(f"storage{at}", None), text.keep(f"memory{at}", 0)
    loose, in_slot = allocator.counts_of_ours()
    references, users = (
        text.use("references", sys.getrefcount),
        text.use("users", allocator.native("_storage_Use_Count")),
    )
    counts = f"({references}({kept}), {kept}._use_count(), {users}({memory}), {references}({storage}))"
    text.add(f"counts = {counts} if {kept} is not None else None")
    in_its_slot = f"(counts == {in_slot} and tensors[{result.leaf}].grad is {kept})"
    recorded = text.use("recorded", streams.recorded)  # an empty set almost always
    text.add(f"if (counts == {loose} or {in_its_slot}) and not ({recorded} and {memory} in {recorded}):")
    text.add(f"    out{at} = {kept}")
    with text.block("else:"):
        text.add(f"{text.use('unwatch', streams.unwatch)}({memory})")
        text.add(f"{kept} = {storage} = None")  # until all three are of one tensor
        _write_new(text, at, result)
        text.add(f"{storage} = out{at}.untyped_storage()", f"{memory} = {storage}._cdata", f"{kept} = out{at}")
        text.add(f"{text.use('watch', streams.watch)}({memory})")
