"""Which arguments does a function write? Found by a trace in which every argument has memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.torch_seam import fakes, modes
from treeplay.torch_seam.fakes import FakeTensorMode
from treeplay.wrap.aot.plan.bases import WrittenArguments
from treeplay.wrap.aot.plan.overlap import byte_span
from treeplay.wrap.aot.tracing.capture import captured


def probe_writes(
    function: Callable[..., Any], samples: Sequence[Any], names: Sequence[str]
) -> tuple[WrittenArguments, bool]:
    """The arguments whose data is written, and whether any argument changes in any way."""
    with captured(function, apart(samples), None, names=names) as (traced, seen):
        infos = traced.facts.input_info
        data = frozenset(k for k, info in enumerate(infos) if info.mutates_data or info.mutates_storage_metadata)
        any_write = bool(seen.touched) or any(info.mutates_data or info.mutates_metadata for info in infos)
        return WrittenArguments(data, seen.line()), any_write


def apart(samples: Sequence[Any]) -> list[Any]:
    """Tensors without data that lie like the samples, each in a storage of its own."""
    mode = fakes.fake_mode_of(samples) or FakeTensorMode()

    def alone(sample: Any) -> Any:
        if not isinstance(sample, torch.Tensor) or modes.is_wrapper(sample) or sample.layout is not torch.strided:
            return sample
        with mode, torch.enable_grad():
            end = -(-byte_span(sample)[1] // sample.element_size())
            fresh = torch.empty(end, dtype=sample.dtype, device=sample.device, requires_grad=sample.requires_grad)
            if fresh.requires_grad and sample.is_leaf:  # a view of a leaf is none
                fresh = fresh.detach()
            fresh = fresh.as_strided(sample.size(), sample.stride(), sample.storage_offset())
            return fresh.requires_grad_(sample.requires_grad)

    return [alone(sample) for sample in samples]
