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
        replay()
    return (out0,)

Where there are many arguments or results, one native question comes first: most lie where they lay in the last launch.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.device.cuda.lane import Lane, Unplaced
from treeplay.device.protocol import Fill, Replay
from treeplay.errors import InternalError
from treeplay.torch_seam import allocator
from treeplay.values.overlap import overlaps_itself
from treeplay.values.source import Source
from treeplay.values.spec import TensorSpec

Move = Callable[[int], None]
NotLaunched = Callable[[Exception, list[torch.Tensor], Sequence[float]], Sequence[torch.Tensor]]
_AFTER_ORDER = 3  # lines of a launch
_FEW = 4  # addresses that are compared one by one


def disable(launch: Replay) -> None:
    """Make a launch function fall back for good: its graph goes. The caller holds the lane's lock."""

    def gone(index: int) -> int:
        raise Unplaced

    launch.__globals__["current_stream"] = gone  # the first thing it asks with the lock in its hands


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A bound method that does not keep its object alive, for a launch function which that object keeps."""
    found = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        bound = found()
        if bound is None:
            raise InternalError("a recording was launched that is gone")
        return bound(*args)

    return call


def launches_of(launch: Replay) -> int:
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
class Result:
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
class Otherwise:
    """What a call does that cannot be launched: `plain` where a tensor lies elsewhere, `not_launched` with an exception that
    came before the launch."""

    plain: Replay
    not_launched: NotLaunched


@dataclass(frozen=True, slots=True)
class LaunchParts:
    """What a launch consists of.

    `addresses` of all inputs; `steady` are those that seldom move, asked about in one go; `moved` is called if one has.
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
    results: tuple[Result, ...]
    align: Callable[[torch.Tensor, int, int], torch.Tensor]


def emit_launch(parts: LaunchParts, name: str) -> Source:
    """The launch function of these parts."""
    names: dict[str, Any] = {
        "lane": parts.lane,
        "lock": parts.lane.lock,
        "order": parts.lane.order,
        "current_stream": allocator.native("_cuda_getCurrentRawStream"),
        "replay": parts.replay,
        "plain": parts.otherwise.plain,
        "not_launched": parts.otherwise.not_launched,
        "Unplaced": Unplaced,
    }
    state = ["launches"]
    names["launches"] = 0
    body = [f"stream = current_stream({parts.lane.device.index})", "if stream != lane.stream:", "    order(stream)"]
    if parts.vector is not None:
        names["fill"] = parts.vector.fill
        body.append("fill(numbers)")
    if parts.steady:
        names |= {
            "are_at": allocator.native("_tensors_data_ptrs_at_indices_equal"),
            "addresses": parts.addresses,
            "steady": list(parts.steady),
        }
        names["moved"] = parts.moved
        body += ["if not are_at(tensors, addresses, steady):", "    moved(tensors)"]
    body += _all_patched(names, state, parts)
    for copied in parts.copied:
        names[f"buffer{copied.index}"] = copied.buffer
        body.append(f"buffer{copied.index}.copy_(tensors[{copied.index}])")
    body += _all_results(names, state, parts)
    body += ["replay()", "launches += 1"]
    for copied in parts.copied:
        if copied.is_mutated:
            body.append(f"tensors[{copied.index}].copy_(buffer{copied.index})")
    for position, result in enumerate(parts.results):
        if result.held is not None:
            body.append(f"out{position} = {_copy_of_held(position, result, names)}")
    # A gradient that is written again lies where the stream of its allocation may have it anew: on another stream, a new one.
    kept = [name for name in state if name.startswith("kept")]
    body[_AFTER_ORDER:_AFTER_ORDER] = [f"    {' = '.join(kept)} = None"] if kept else []
    outputs = "".join(f"out{position}, " for position in range(len(parts.results)))
    lines = ["def launch(tensors, numbers):"]
    lines += [
        f"    global {', '.join(state)}",
        "    try:",
        "        with lock:",
        *(f"            {line}" for line in body),
    ]
    launched = len(lines) - len(body) + body.index("replay()") + 2  # the number of the line after it
    lines += [
        "    except Unplaced:",
        "        return plain(tensors, numbers)",
        "    except Exception as error:",
        f"        if error.__traceback__.tb_lineno >= {launched}: raise",
        "        return not_launched(error, tensors, numbers)",
        f"    return ({outputs})",
    ]
    return Source(f"launch {name}", "\n".join(lines) + "\n", names, entry="launch")


def _copy_of_held(position: int, result: Result, names: dict[str, Any]) -> str:
    """A copy with the strides of the output: a clone packs what has holes, and views of it would be of other elements."""
    held, stride = result.held, result.spec.stride
    if held is None or torch.empty_like(held).stride() == stride or overlaps_itself(held):
        return f"held{position}.clone()"
    names["new_strided"] = torch.Tensor.new_empty_strided
    return f"new_strided(held{position}, {tuple(result.spec.shape)}, {tuple(stride)}).copy_(held{position})"


def _all_patched(names: dict[str, Any], state: list[str], parts: LaunchParts) -> list[str]:
    """Lines for the arguments that move."""
    if len(parts.patched) <= _FEW:
        return [line for item in parts.patched for line in _patched(item, names, state, parts)]
    count = max(item.index for item in parts.patched) + 1
    captured = {item.index: item.address for item in parts.patched}
    names |= {
        "are_at": allocator.native("_tensors_data_ptrs_at_indices_equal"),
        # Of all, since one index is for both lists; and as captured, which need not be where the first call's tensors lie.
        "given_at": [captured.get(at, 0) for at in range(count)],
        "given": [item.index for item in parts.patched],
    }
    lines = ["if not are_at(tensors, given_at, given):"]
    for item in parts.patched:
        lines += [f"    {line}" for line in _patched(item, names, state, parts, at=f"given_at[{item.index}]")]
    return lines


def _all_results(names: dict[str, Any], state: list[str], parts: LaunchParts) -> list[str]:
    """Lines for the results."""
    new = [at for at, result in enumerate(parts.results) if result.move is not None and result.leaf is None]
    if len(new) <= _FEW:
        return [line for at, result in enumerate(parts.results) for line in _result(at, result, names, state)]
    results = [parts.results[at] for at in new]
    names |= {
        "are_at": allocator.native("_tensors_data_ptrs_at_indices_equal"),
        "made_at": [result.address for result in results],
        "every": list(range(len(new))),
        "moves": [result.move for result in results],
    }
    lines = []
    for at, result in enumerate(parts.results):
        lines += [_made(at, result, names)] if at in new else _result(at, result, names, state)
    return [
        *lines,
        f"made = [{', '.join(f'out{at}' for at in new)}]",
        "if not are_at(made, made_at, every):",
        "    for place in every:",
        "        p = made[place].data_ptr()",
        "        if p != made_at[place]:",
        "            made_at[place] = 0",
        "            moves[place](p)",
        "            made_at[place] = p",
    ]


def _patched(
    item: Patched, names: dict[str, Any], state: list[str], parts: LaunchParts, *, at: str | None = None
) -> list[str]:
    """Lines for one argument; where it lies is kept in `at`, by default in a name of its own."""
    move = f"move{item.index}"
    names[move] = item.move
    if at is None:
        at = f"at{item.index}"
        names[at] = item.address
        state.append(at)
    lines = [f"p = tensors[{item.index}].data_ptr()", f"if p != {at}:"]
    if item.modulus > 1:
        lines.append(f"    if p % {item.modulus} != {item.residue}:")
        if item.is_mutated:
            lines.append("        raise Unplaced")
        else:
            names["align"] = parts.align
            lines += [f"        aligned{item.index} = align(tensors[{item.index}], {item.residue}, {item.modulus})"]
            lines += [f"        p = aligned{item.index}.data_ptr()"]
    return [*lines, *_moved(at, move)]


def _moved(at: str, move: str) -> list[str]:
    """Lines that move to `p`. Where it lies is unknown meanwhile: what is broken off is done anew by the next launch."""
    return [f"    {at} = 0", f"    {move}(p)", f"    {at} = p"]


def _result(position: int, result: Result, names: dict[str, Any], state: list[str]) -> list[str]:
    if result.held is not None:
        names[f"held{position}"] = result.held
        return []
    make = _made(position, result, names)
    if result.move is None:  # it has no elements
        return [make]
    at, move = f"out_at{position}", f"out_move{position}"
    names |= {at: result.address, move: result.move}
    state.append(at)
    lines = [
        make,
        f"p = out{position}.data_ptr()",
        f"if p != {at}:",
        *_moved(at, move),
    ]
    return lines if result.leaf is None else _again(position, result.leaf, lines, names, state)


def _made(position: int, result: Result, names: dict[str, Any]) -> str:
    """The line that makes the new tensor of a result."""
    names[f"dtype{position}"] = result.spec.dtype
    # The quick way allocates on the current device, which need not be the recording's if there are several.
    if torch.is_inference_mode_enabled() or torch.cuda.device_count() > 1:
        names |= {"empty_strided": torch.empty_strided, "device": result.spec.device}
        make = f"empty_strided({result.spec.shape}, {result.spec.stride}, dtype=dtype{position}, device=device)"
    else:
        names["empty"] = allocator.empty_on_gpu()
        make = f"empty({result.spec.shape}, {result.spec.stride}, dtype{position})"
    return f"out{position} = {make}"


def _again(position: int, leaf: int, lines: list[str], names: dict[str, Any], state: list[str]) -> list[str]:
    """Lines that take the tensor of the last replay if at most its slot has it, and make a new one as `lines` do if not."""
    kept, storage, memory = f"kept{position}", f"storage{position}", f"memory{position}"
    loose, in_slot = allocator.counts_of_ours()
    names |= {kept: None, storage: None, memory: 0, "references": sys.getrefcount, "loose": loose, "in_slot": in_slot}
    names["users"] = allocator.native("_storage_Use_Count")
    state += [kept, storage, memory]
    counts = f"(references({kept}), {kept}._use_count(), users({memory}), references({storage}))"
    return [
        f"counts = {counts} if {kept} is not None else None",
        f"if counts == loose or (counts == in_slot and tensors[{leaf}].grad is {kept}):",
        f"    out{position} = {kept}",
        "else:",
        f"    {kept} = None",  # until all three are of one tensor
        *(f"    {line}" for line in lines),
        f"    {storage} = out{position}.untyped_storage()",
        f"    {memory} = {storage}._cdata",
        f"    {kept} = out{position}",
    ]
