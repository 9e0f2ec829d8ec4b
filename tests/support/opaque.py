"""Opaque programs: prepared, recorded over buffers (by the host's recorder, or as a CUDA graph), and called through the
generated function, as a driver would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from support import call_of
from treeplay.codegen import load_source
from treeplay.device.host.recorder import Recorder
from treeplay.torch_seam import dynamo
from treeplay.trace.call import Call
from treeplay.trace.opaque.program import OpaqueBody, OpaqueProgram, Prepared, plain_run, prepare
from treeplay.tree.make import make_opaque_work
from treeplay.values.signature import Argument, Signature
from treeplay.wrap.ambience import Ambience
from treeplay.wrap.emit import MISS, CallParts, emit_recording_call


def rehearsed(prepared: Prepared) -> OpaqueProgram:
    """The program, after a run in a recording that is thrown away."""
    return prepared.rehearsed(lambda body, tensors: _recorded(prepared, body, tensors)).program()


def recorded_run(program: OpaqueProgram, tensors: Sequence[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    """One run in a recorder: what replays it, and its outputs in memory of the recording."""
    return _recorded(program, program.run, tensors)


def _recorded(
    state: Prepared | OpaqueProgram, body: OpaqueBody, tensors: Sequence[torch.Tensor]
) -> tuple[Any, list[torch.Tensor]]:
    if state.runs.host.device.type == "cuda":
        return _captured(state, body, tensors)
    recorder = Recorder([*state.runs.found.generators.values()])
    recorder.begin()
    try:
        outputs = body(tensors)
    except BaseException:
        recorder.abandon()
        raise
    return recorder.end(), outputs


def _captured(
    state: Prepared | OpaqueProgram, body: OpaqueBody, tensors: Sequence[torch.Tensor]
) -> tuple[Any, list[torch.Tensor]]:
    from treeplay.device.cuda.capturing.capture import capturing

    graph = torch.cuda.CUDAGraph()
    for generator in state.runs.found.generators.values():
        graph.register_generator_state(generator)
    with capturing(graph, device=state.runs.host.device):
        outputs = body(tensors)
    return graph, outputs


def inputs_of(program: OpaqueProgram, prepared: Prepared) -> list[torch.Tensor]:
    """Those of the prepared tensors that the program needs."""
    return [prepared.tensors[at] for at in program.kept]


def moved(program: OpaqueProgram, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Other tensors where that is allowed."""
    return [
        torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t)
        if at in program.movable
        else t
        for at, t in enumerate(tensors)
    ]


class Recorded:
    """What `record` made: a call function over a tape, and what the call gives to it."""

    def __init__(self, program: Callable[..., Any], call: Call) -> None:
        prepared = prepare(program, call)
        self.program = rehearsed(prepared)
        self.signature, self.given = self.program.signature, inputs_of(self.program, prepared)
        self.movable = {str(self.signature.inputs[at]) for at in self.program.movable}
        self.replays = 0
        if prepared.device.type == "cuda":
            from treeplay.device.cuda.device import CudaDevice

            self.recorded = CudaDevice(prepared.device).record(make_opaque_work(self.program, "opaque"))
            self.replay = self.recorded.replay
        else:
            self.held = moved(self.program, self.given)
            self.tape, self.outputs = recorded_run(self.program, self.held)
            self.replay = self._on_host
        self.steady = [tensor.data_ptr() for tensor in self.given]
        self.call = _call_function(self.signature, call, self.given, self._replay)
        self.given = []

    def _replay(self, tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        self.replays += 1
        return self.replay(tensors, numbers)

    def _on_host(self, tensors: list[torch.Tensor], numbers: Sequence[float]) -> list[torch.Tensor]:
        with torch.no_grad():
            for at, (held, tensor) in enumerate(zip(self.held, tensors, strict=True)):
                if at in self.program.movable:
                    held.copy_(tensor)
                else:
                    assert tensor.data_ptr() == self.steady[at], f"{self.signature.inputs[at]} has moved"
            self.tape.replay()
            for at in self.program.movable:
                if not torch.equal(tensors[at], self.held[at]):
                    tensors[at].copy_(self.held[at])
            return [output.clone() for output in self.outputs]


def _call_function(signature: Signature, call: Call, given: list[torch.Tensor], run: Any) -> Any:
    checked = call.tensors + [
        tensor for item, tensor in zip(signature.inputs, given, strict=True) if not isinstance(item.source, Argument)
    ]
    parts = CallParts(
        run=run,
        check=dynamo.tensor_check(checked) if checked else None,
        is_apart=None,
    )
    return load_source(emit_recording_call(signature, Ambience.now(), parts, name="call opaque"))


class Captured:
    """A program that runs as it is on its first call, and is recorded on the next that no recording fits."""

    def __init__(self, program: Callable[..., Any], *, plain_calls: int = 1) -> None:
        self.program = program
        self.left = plain_calls
        self.recordings: list[Recorded] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.left:
            self.left -= 1
            return plain_run(self.program, call_of(*args, **kwargs))[0]
        for recording in self.recordings:
            out = recording.call(args, kwargs)
            if out is not MISS:
                return out
        self.recordings.append(Recorded(self.program, call_of(*args, **kwargs)))
        out = self.recordings[-1].call(args, kwargs)
        assert out is not MISS, "a recording does not fit the call it was made for"
        return out
