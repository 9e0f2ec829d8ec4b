"""What a backward may compute with that the caller runs, after a recorded forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

from treeplay.errors import Refusal
from treeplay.torch_seam.modes import is_untraced
from treeplay.torch_seam.schemas import leaves_of
from treeplay.torch_seam.tensors import is_known_zero

_ASKED = frozenset(
    ["__get__", "__len__", "size", "dim", "ndimension", "numel", "nelement", "stride", "is_floating_point"]
)
"""What a backward may ask of any tensor: none of them computes."""


class SavedOnly(TorchFunctionMode):
    """A backward computes with what was saved for it. Nothing stands in for other tensors, which may change before it runs."""

    def __init__(self, refuse: Callable[[str, str, str], Refusal]) -> None:
        super().__init__()
        self._refuse = refuse

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in _ASKED and any(map(_may_change, leaves_of((args, kwargs)))):
            raise self._refuse(
                name,
                "computes, in a backward that the caller runs, with a tensor that is not saved for it",
                "pass the tensor to the function's apply() and keep it by ctx.save_for_backward(...); or call backward inside "
                "of the program",
            )
        return func(*args, **kwargs)


def _may_change(value: Any) -> bool:
    """Whether nothing stands in for a tensor that holds something. Zeros without memory hold nothing, nor does what torch asks
    for the shape of a product with them."""
    return is_untraced(value) and value.device.type != "meta" and not is_known_zero(value)
