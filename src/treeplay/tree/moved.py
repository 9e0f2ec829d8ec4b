"""State that lives on another device with a recording than without one, such as an optimizer's step counts.

Loading a `state_dict` puts tensors on the CPU in its places again; they move before the recording is given up for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from treeplay.values.place import How
from treeplay.values.signature import Input, State
from treeplay.values.spec import TensorSpec


def bring_back(inputs: Iterable[Input]) -> bool:
    """Move the state of `inputs` that lies elsewhere to where its recording reads it; whether there was any."""
    any_moved = False
    for item in inputs:
        if not isinstance(item.source, State) or item.source.place.how is not How.ITEM:
            continue
        place = item.source.place.anew()
        tensor = place.read_or(None)
        if not isinstance(tensor, torch.Tensor) or tensor.device == item.spec.device:
            continue
        if replace(TensorSpec.of(tensor), device=item.spec.device) == item.spec:
            place.write(tensor.to(item.spec.device))
            any_moved = True
    return any_moved
