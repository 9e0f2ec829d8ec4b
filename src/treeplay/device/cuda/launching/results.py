"""Lines of a launch function that make its results.

A result is a new tensor, to whose address the graph is to write, made alone or in a block with others; or the last launch's
tensor, if nobody else has a hold on it (the gradient of a leaf); or, after the launch, a copy of what the graph holds.
"""

from __future__ import annotations

import sys

import torch

from treeplay.codegen import list_of
from treeplay.device.cuda.launching.parts import LaunchBlock, LaunchOutput, LaunchParts
from treeplay.device.cuda.launching.text import FEW, LaunchText, lines_of_move
from treeplay.torch_seam import allocator, streams
from treeplay.torch_seam.tensors import view_in_block
from treeplay.values.overlap import overlaps_itself
from treeplay.values.spec import TensorSpec


def write_launch_results(text: LaunchText, parts: LaunchParts) -> None:
    """Lines for the results."""
    if parts.block is not None:
        _write_block(text, parts.block)
    single = [(at, result) for at, result in enumerate(parts.results) if not parts.is_inside(at)]
    new = [at for at, result in single if result.move is not None and result.leaf is None]
    if len(new) <= FEW:
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
            text.add(*lines_of_move(f"{made_at}[place]", f"{moves}[place]"))


def _write_result(text: LaunchText, at: int, result: LaunchOutput) -> None:
    if result.held is not None:
        return
    if result.move is None:  # it has no elements
        text.add(_made(text, at, result))
    elif result.leaf is None:
        _write_new(text, at, result)
    else:
        _write_again(text, at, result)


def _write_block(text: LaunchText, block: LaunchBlock) -> None:
    """Lines that make the block, to which the graph is to write. The graph was captured without one, so it moves at first."""
    spec = TensorSpec((block.block.nbytes,), (1,), torch.uint8, block.device)
    text.add(_new_tensor(text, "block", spec, "bytes_of_block"), "p = block.data_ptr()")
    at, move = text.keep("block_at", 0), text.use("move_block", block.move)
    with text.block(f"if p != {at}:"):
        text.add(*lines_of_move(at, move))


def _write_new(text: LaunchText, at: int, result: LaunchOutput) -> None:
    """Lines that make a new tensor, to which the graph is to write."""
    text.add(_made(text, at, result), f"p = out{at}.data_ptr()")
    with text.block(f"if p != out_at{at}:"):
        text.add(*lines_of_move(text.keep(f"out_at{at}", result.address), text.use(f"out_move{at}", result.move)))


def _made(text: LaunchText, at: int, result: LaunchOutput) -> str:
    """The line that makes the new tensor of a result."""
    return _new_tensor(text, f"out{at}", result.spec, f"dtype{at}")


def _new_tensor(text: LaunchText, name: str, spec: TensorSpec, dtype_name: str) -> str:
    dtype = text.name(spec.dtype, dtype_name)
    # The quick way allocates on the current device, which need not be the recording's if there are several.
    if torch.is_inference_mode_enabled() or torch.cuda.device_count() > 1:
        make, device = text.use("empty_strided", torch.empty_strided), text.constant(spec.device)
        return f"{name} = {make}({spec.shape}, {spec.stride}, dtype={dtype}, device={device})"
    return f"{name} = {text.use('empty', allocator.empty_on_gpu())}({spec.shape}, {spec.stride}, {dtype})"


def _write_again(text: LaunchText, at: int, result: LaunchOutput) -> None:
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
        # The names are empty until all three are of one tensor. The old gradient goes first, as where a program clears it
        # before its forward: the new one gets its memory.
        slot = f"tensors[{result.leaf}].grad = " if result.clears else ""
        text.add(f"{kept} = {storage} = {slot}None")
        _write_new(text, at, result)
        text.add(f"{storage} = out{at}.untyped_storage()", f"{memory} = {storage}._cdata", f"{kept} = out{at}")
        text.add(f"{text.use('watch', streams.watch)}({memory})")


def write_copies(text: LaunchText, parts: LaunchParts) -> None:
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


def _copy_of_held(text: LaunchText, at: int, held: torch.Tensor, spec: TensorSpec) -> str:
    """A copy with the strides of the output: a clone packs what has holes, and views of it would be of other elements."""
    name = text.use(f"held{at}", held)
    if torch.empty_like(held).stride() == spec.stride or overlaps_itself(held):
        return f"{name}.clone()"
    new_strided = text.use("new_strided", torch.Tensor.new_empty_strided)
    return f"{new_strided}({name}, {tuple(spec.shape)}, {tuple(spec.stride)}).copy_({name})"
