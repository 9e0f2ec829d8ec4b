"""`one_hot` as a recording can have it: a class that is out of range still fails, and the host is not asked.

torch's own reads the largest class on the host before it makes anything of a tensor, and where it is traced it does not look
at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

_torchs: Any = F.one_hot


def checked_by_operators(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function to call for a torch function in a trace: the function itself for all but one."""
    return _one_hot if function is _torchs else function


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    if num_classes < 1:  # as many as the values say, or an error
        whole: torch.Tensor = _torchs(tensor, num_classes)
        return whole
    classes = torch.arange(num_classes, device=tensor.device)
    return (F.embedding(tensor, classes.unsqueeze(-1)) == classes).to(torch.int64)  # the look-up fails out of range
