"""Opaque work on the CPU: its operators are taped when it is first replayed, and run again from the tape.

Arguments are copied into the tensors that the tape was made with, and back where they are written; results are copies of
those that the tape writes. State is read and written where it lies: if it has moved, a new tape is made.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treeplay.device.host.recorder import Recorder
from treeplay.device.host.tape import HostTape
from treeplay.device.protocol import Capturable, InBlock, Work
from treeplay.torch_seam.tensors import view_in_block
from treeplay.values.block import OutputBlock
from treeplay.values.launch import LaunchFacts
from treeplay.values.spec import TensorSpec

Tensors = list[torch.Tensor]


def record_tape(
    body: Capturable, tensors: Sequence[torch.Tensor], generators: Sequence[torch.Generator] = ()
) -> tuple[HostTape, Sequence[torch.Tensor]]:
    """The tape of `body` over `tensors`, and its outputs in the tape's memory. What the body wrote is put back."""
    recorder = Recorder(generators)
    recorder.begin()
    try:
        outputs = body(list(tensors))
        return recorder.end(), outputs
    except BaseException as error:
        recorder.abandon(error)
        raise


class Taped:
    """Callable like the work that it tapes."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._tape: HostTape | None = None
        self._given: Tensors = []
        self._addresses: list[int] = []
        self._outputs: Sequence[torch.Tensor] = ()
        self._tapes = self._launches = self._copied_bytes = self._copied_bytes_per_call = 0

    def __call__(self, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        tape = self._tape_for(tensors)
        arguments = [at for at in range(len(tensors)) if at not in self._work.fixed]
        with torch.no_grad():
            for at in arguments:
                self._given[at].copy_(tensors[at])
            tape.replay()
            self._launches += 1
            for at in arguments:
                if at in self._work.mutated:
                    tensors[at].copy_(self._given[at])
            self._copied_bytes += self._copied_bytes_per_call
            return self._made(self._work.block)

    def _made(self, block: OutputBlock | None) -> Sequence[torch.Tensor]:
        """What the tape wrote, in new memory: copies, and one block with copies."""
        if block is None:
            return [output.detach().clone() for output in self._outputs]
        memory = torch.empty(block.nbytes, dtype=torch.uint8)
        for at, begin in block.places:
            view_in_block(memory, begin, self._outputs[at]).copy_(self._outputs[at])
        return InBlock((*(one.detach().clone() for at, one in enumerate(self._outputs) if at not in block), memory))

    def facts(self) -> LaunchFacts:
        """What a replay copies, and what the tape holds."""
        tape = self._tape
        return LaunchFacts(
            "cpu",
            "warming" if tape is None else "recorded",
            nodes=len(tape.operations) if tape is not None else 0,
            scratch_bytes=tape.size_bytes if tape is not None else 0,
            copied_bytes_per_call=self._copied_bytes_per_call,
            launches=self._launches,
            captures=self._tapes,
            copied_bytes=self._copied_bytes,
        )

    def free(self) -> None:
        """Give the tape and its memory back; a later call makes a new one."""
        self._tape, self._given, self._outputs, self._copied_bytes_per_call = None, [], (), 0

    def _tape_for(self, tensors: Tensors) -> HostTape:
        if self._tape is not None and all(self._is_in_place(at, tensors[at]) for at in self._work.fixed):
            return self._tape
        self.free()
        self._given = [
            tensor if at in self._work.fixed else tensor.detach().clone().requires_grad_(tensor.requires_grad)
            for at, tensor in enumerate(tensors)
        ]
        self._tape, self._outputs = record_tape(self._work.body, self._given, self._work.generators)
        self._tapes += 1
        self._copied_bytes_per_call = self._copied()
        # Noted, not asked for later: a tensor that is given other memory (`p.data = ...`) is the same object.
        self._addresses = [tensor.data_ptr() for tensor in self._given]
        return self._tape

    def _copied(self) -> int:
        """Arguments to the tape's tensors, and back where they are written; results out of the tape's memory."""
        given = ((at, TensorSpec.of(tensor).nbytes) for at, tensor in enumerate(self._given))
        into = sum(size * (1 + (at in self._work.mutated)) for at, size in given if at not in self._work.fixed)
        return into + sum(TensorSpec.of(output).nbytes for output in self._outputs)

    def _is_in_place(self, at: int, tensor: torch.Tensor) -> bool:
        return tensor.data_ptr() == self._addresses[at]
