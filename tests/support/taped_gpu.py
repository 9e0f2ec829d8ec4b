"""A GPU made of the CPU: recordings and launch functions are as on a GPU; a tape stands in for the graph that is captured.

Like a graph's nodes, the tape has words for the addresses of what moves. A replay copies bytes from the arguments to where
the tape reads, runs it, and copies what it wrote to the results (and to arguments that it writes).
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from treeplay.backend import job
from treeplay.backend.recording.recorded import recorded_on
from treeplay.codegen import load_source
from treeplay.device.cuda import recording
from treeplay.device.cuda.captured import CapturedGraph, CaptureFindings
from treeplay.device.cuda.lane import Lane
from treeplay.device.cuda.launching.launch import emit_launch, weakly
from treeplay.device.cuda.launching.parts import LaunchBlock, LaunchOutput, LaunchParts, NotLaunched, Otherwise, Patched
from treeplay.device.cuda.recording import CudaRecording
from treeplay.device.host.taped import record_tape
from treeplay.device.protocol import Recorded, Replay, Work
from treeplay.device.use import Use
from treeplay.torch_seam import allocator
from treeplay.values.spec import TensorSpec


def are_at(tensors: Sequence[torch.Tensor], addresses: Sequence[int], indices: Sequence[int]) -> bool:
    return all(tensors[at].data_ptr() == addresses[at] for at in indices)


NATIVE: dict[str, Callable[..., Any]] = {
    "_cuda_getCurrentRawStream": operator.index,  # the stream of device 0 is 0
    "_tensors_data_ptrs_at_indices_equal": are_at,
    "_storage_Use_Count": torch._C._storage_Use_Count,
}


TAPE = "a tape"
"""Under this name a profiler shows when one is replayed."""


def lying_as(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies in its memory as the tensor does in its own: a clone has no gaps."""
    spec = TensorSpec.of(tensor)
    made = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype)
    ctypes.memmove(made.data_ptr(), tensor.data_ptr(), spec.nbytes)
    return made


class TapedGraph:
    """The tape of a body over copies of its arguments, and over state where it lies."""

    def __init__(self, work: Work, tensors: Sequence[torch.Tensor]) -> None:
        own = [at in work.state for at in range(len(tensors))]
        self.given = [one if kept else lying_as(one) for one, kept in zip(tensors, own, strict=True)]
        self.tape, outputs = record_tape(work.body, self.given, work.generators)
        self.outputs = [output.detach() for output in outputs]
        self.written = work.mutated - work.state
        self.inputs: dict[int, int] = {}
        self.results = [0] * len(self.outputs)
        self.block_moves = 0

    def input_mover(self, at: int) -> Callable[[int], None]:
        return lambda address: self.inputs.__setitem__(at, address)

    def result_mover(self, at: int) -> Callable[[int], None]:
        return lambda address: self.results.__setitem__(at, address)

    def block_mover(self, places: Sequence[tuple[int, int]]) -> Callable[[int], None]:
        def move(address: int) -> None:
            self.block_moves += 1
            for at, begin in places:
                self.results[at] = address + begin

        return move

    def replay(self) -> None:
        for at, address in self.inputs.items():
            ctypes.memmove(self.given[at].data_ptr(), address, TensorSpec.of(self.given[at]).nbytes)
        with torch.profiler.record_function(TAPE):
            self.tape.replay()
        for at in self.written:
            ctypes.memmove(self.inputs[at], self.given[at].data_ptr(), TensorSpec.of(self.given[at]).nbytes)
        for output, address in zip(self.outputs, self.results, strict=True):
            ctypes.memmove(address, output.data_ptr(), TensorSpec.of(output).nbytes)


def capture_on_tape(
    work: Work, tensors: Sequence[torch.Tensor], lane: Lane, plain: Replay, not_launched: NotLaunched, use: Use
) -> CapturedGraph:
    """What `capture_work` does on a GPU. State that moves has the graph captured anew."""
    graph = TapedGraph(work, tensors)
    addresses = [tensor.data_ptr() for tensor in tensors]
    made: Any = SimpleNamespace(captured=None, outputs=[], space=None, drop=lambda: None)
    captured = CapturedGraph(work, made, lane, CaptureFindings(), {}, {}, None, addresses, plain, 0, {}, use=use)
    arguments = [at for at, tensor in enumerate(tensors) if at not in work.state and tensor.numel()]
    parts = LaunchParts(
        lane=lane,
        replay=graph.replay,
        otherwise=Otherwise(plain, not_launched),
        vector=work.vector,
        steady=tuple(at for at in sorted(work.state) if tensors[at].numel()),
        addresses=addresses,
        moved=weakly(captured.move_state),
        patched=tuple(Patched(at, 0, graph.input_mover(at), 1, 0, at in work.mutated) for at in arguments),
        copied=(),
        results=tuple(
            LaunchOutput(TensorSpec.of(output), 0, graph.result_mover(at)) for at, output in enumerate(graph.outputs)
        ),
        align=lambda tensor, residue, modulus: tensor.clone(),
        boxing=work.boxing,
        block=LaunchBlock(work.block, torch.device("cpu"), graph.block_mover(work.block.places))
        if work.block
        else None,
    )
    captured.launch = load_source(emit_launch(parts, work.name))
    return captured


class TapedGpu:
    """A device whose recordings are those of a GPU."""

    name = "cuda:0"

    def __init__(self) -> None:
        self.lane = Lane(torch.device("cuda", 0))
        self.lane.stream = 0  # nothing has to be put in order

    def record(self, work: Work) -> Recorded:
        one = CudaRecording(work, self.lane)
        return Recorded(one, one.facts, one.free, one.subscribe, one.plain_calls)

    def rehearse(self, body: Any, tensors: Sequence[torch.Tensor]) -> None:
        record_tape(body, tensors)

    def facts(self) -> dict[str, Any]:
        return {}


def capture_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> TapedGpu:
    """From here on CUDA recordings capture tapes, and graphs of `torch.compile` are recorded by the device that is given."""
    gpu = TapedGpu()
    monkeypatch.setattr(allocator, "native", NATIVE.__getitem__)
    monkeypatch.setattr(allocator, "empty_on_gpu", lambda: torch._C._dynamo.guards._empty_strided_cpu)
    monkeypatch.setattr(recording, "capture_work", capture_on_tape)
    monkeypatch.setattr(recording, "is_capturing", lambda: False)
    monkeypatch.setattr(
        job, "recorded", lambda run, module, inputs, roles, report: recorded_on(gpu, run, module, roles, report)
    )
    return gpu
