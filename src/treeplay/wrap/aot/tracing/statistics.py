"""Running statistics of batch norms, which eager writes without telling autograd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_NAMES = {
    torch.nn.functional.batch_norm: ("input", "running_mean", "running_var", "weight", "bias", "training"),
    torch.batch_norm: ("input", "weight", "bias", "running_mean", "running_var", "training"),
    torch.native_batch_norm: ("input", "weight", "bias", "running_mean", "running_var", "training"),
}


def statistics_written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The running statistics that a call brings up to date; none for other functions than batch norms in training."""
    names = _NAMES.get(func)
    if names is None:
        return []
    given = dict(zip(names, args, strict=False)) | {**kwargs}
    found = (given.get("running_mean"), given.get("running_var"))
    return [one for one in found if isinstance(one, torch.Tensor)] if given.get("training") else []
