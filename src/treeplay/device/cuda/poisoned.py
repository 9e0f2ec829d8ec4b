"""Proof by poison: a launch with every tensor elsewhere, while what lies at the recorded addresses is not a number.

    originals ── kept ──▶ twins for the body (the reference), twins for the launch; the originals poisoned
    body(twins) ≟ launch(twins')       then the originals are as before

For tests, and for `settings.verify`: it runs the work twice and holds three copies of its tensors meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treeplay.device.protocol import InBlock, Replay, Work
from treeplay.observe import same
from treeplay.sandbox.teardown import each
from treeplay.torch_seam.tensors import view_in_block

_TOLERANCE = 1e-3


def differences(work: Work, launch: Replay, tensors: Sequence[torch.Tensor], numbers: Sequence[float]) -> list[str]:
    """What a poisoned launch gives other than the body does, by name; empty if nothing. All is put back."""
    moving = [at for at in range(len(tensors)) if at not in work.fixed]
    kept = {at: _copy(tensors[at]) for at in range(len(tensors))}
    drawn = [*work.generators, *_default_generator(tensors)] if work.draws else []
    random = [generator.get_state() for generator in drawn]
    try:
        expected, written = _run(work.run, tensors, moving, kept, numbers, poison=False)
        each(zip(drawn, random, strict=True), torch.Generator.set_state)
        found, moved = _run(launch, tensors, moving, kept, numbers, poison=True)
    finally:
        for at, copy in kept.items():
            tensors[at].detach().copy_(copy)
        each(zip(drawn, random, strict=True), torch.Generator.set_state)
    expected, found = _each_by_itself(work, expected, expected), _each_by_itself(work, found, expected)
    pairs = enumerate(zip(found, expected, strict=True))
    # Attention that draws nothing has a seed on the host, and in a capture one on the device that nobody writes.
    wrong = [f"out[{at}]" for at, (a, b) in pairs if a.device == b.device and not _agree(a, b)]
    return wrong + [work.names[at] for at in sorted(work.mutated) if not _agree(moved[at], written[at])]


def _each_by_itself(work: Work, made: Sequence[torch.Tensor], like: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Outputs, each as a tensor, also those that came in a block; `like` are such as came one by one."""
    if not isinstance(made, InBlock) or isinstance(like, InBlock) or work.block is None:
        return made
    begins, others = dict(work.block.places), iter(made)
    return [view_in_block(made[-1], begins[at], one) if at in begins else next(others) for at, one in enumerate(like)]


def _default_generator(tensors: Sequence[torch.Tensor]) -> tuple[torch.Generator, ...]:
    return (torch.cuda.default_generators[tensors[0].device.index],) if tensors else ()


def _run(
    run: Replay,
    tensors: Sequence[torch.Tensor],
    moving: Sequence[int],
    kept: dict[int, torch.Tensor],
    numbers: Sequence[float],
    *,
    poison: bool,
) -> tuple[Sequence[torch.Tensor], list[torch.Tensor]]:
    """Outputs of a run over copies, and all tensors as it left them."""
    given = [_copy(kept[at]) if at in moving else tensor for at, tensor in enumerate(tensors)]
    for at in moving:
        if poison:
            _poison(tensors[at])
    for at in range(len(tensors)):
        if at not in moving:
            tensors[at].detach().copy_(kept[at])
    outputs = run(list(given), numbers)
    return outputs, [_copy(tensor) for tensor in given]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor.detach())


def _poison(tensor: torch.Tensor) -> None:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.detach().fill_(float("nan"))
    else:
        tensor.detach().zero_()  # an index out of range would end the process


def _agree(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(same(a.detach(), b.detach(), tol=_TOLERANCE, equal_nan=True, on_message=lambda _: None))
