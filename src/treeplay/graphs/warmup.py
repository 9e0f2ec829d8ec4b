"""Runs before recording: kernels compile and libraries set themselves up, and nobody sees that it happened.

Put back afterwards: buffers, the sample tensors, random generators, the current stream. No gradient is accumulated, no hook
of a parameter fires. What a plain function writes to tensors that only it knows of stays written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from treeplay.graphs.body import Body, sequence_number_for
from treeplay.observe import keep_rng
from treeplay.observe.restore import as_integers
from treeplay.torch_seam.tensors import storage_of


def warm_up(bodies: Sequence[Body], runs: int, device: torch.device) -> None:
    """Run each of `bodies` with its gradients `runs` times on a side stream, the device drained before and after."""
    if runs == 0:
        for body in bodies:
            unknown = "which may be written: no run has told"
            told = {storage_of(tensor): f"{name}, {unknown}" for name, tensor in body.roster.buffers}
            body.roster.written.update(told)
        return
    with keep_rng(), _on_a_side_stream(device):
        for body in bodies:
            with kept_state(body):
                for _ in range(runs):
                    _run_once(body)


def _run_once(body: Body) -> None:
    ran = body.run(sequence_number_for(body.modes))
    to = body.differentiated(ran)
    if ran.differentiable and to:
        body.gradients(ran, [torch.zeros_like(ran.outputs[index]) for index in ran.differentiable], to)


@contextlib.contextmanager
def _on_a_side_stream(device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    torch.cuda.synchronize(device)
    try:
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
            yield
    finally:
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def kept_state(body: Body) -> Iterator[None]:
    """Put buffers and sample tensors back to their values if something wrote to them, and entries that were replaced."""
    names = {storage_of(tensor): name for name, tensor in body.roster.buffers}
    tensors = [tensor for _, tensor in body.roster.buffers] + [item.detach() for item in body.inputs]
    before = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        body.roster.put_back()
        with torch.no_grad():
            for tensor, values in before:
                # Versions do not tell: batch norm writes without a trace.
                if not torch.equal(as_integers(tensor), as_integers(values)):
                    tensor.copy_(values)
                    if (storage := storage_of(tensor)) in names:
                        body.roster.written[storage] = f"{names[storage]}, which is written"
