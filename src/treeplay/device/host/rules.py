"""What a recording on the host refuses: the same that a CUDA capture refuses, so that a laptop tells what a GPU would say."""

from __future__ import annotations

from typing import Any

import torch

from treeplay.observe.lines import running_call
from treeplay.torch_seam.operators import HigherOrderOperator, operator_name
from treeplay.torch_seam.schemas import aten
from treeplay.torch_seam.trees import tree_iter
from treeplay.values.refusal import Reason

_READS = "reads a tensor's value on the host, which only exists when the recording is replayed"
_READ_LATER = "return the tensor and read it after the replay; decide on the device (`torch.where`)"
_SHAPES = "makes a result whose shape depends on values"
_FIXED_SHAPE = "use a form with a fixed shape: `torch.where`, multiply by the mask, `topk`"

# Not tagged by torch as reading values, though they do.
_HOST_READS = frozenset({aten.is_nonzero.default, aten.item.default, aten._linalg_check_errors.default})
_WITH_INDICES = frozenset(
    {aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default, aten._unsafe_index_put.default}
)

# Methods that read memory without an operator.
HOST_METHODS: dict[Any, str] = {
    torch.Tensor.numpy: "numpy",
    torch.Tensor.__array__: "numpy",
    torch.Tensor.tolist: "tolist",
    torch.Tensor.__repr__: "print",
    torch.Tensor.__format__: "format",
}


def refusal_of_method(function: Any) -> Reason | None:
    """Why a torch function cannot be part of a recording, or None."""
    name = HOST_METHODS.get(function)
    return None if name is None else _reason(name, _READS, _READ_LATER)


def refusal_of(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reason | None:
    """Why an operator with these arguments cannot be part of a recording on the host, or None."""
    if isinstance(op, HigherOrderOperator):
        return _reason(op.name(), "takes functions, which a recording on the CPU does not follow", "compute without it")
    return refusal_of_operator(op, args, kwargs) or refusal_of_tensors(op, (args, kwargs))


def refusal_of_operator(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reason | None:
    """Why an operator with these arguments cannot be part of a recording on any device, or None."""
    if op in _HOST_READS or torch.Tag.data_dependent_output in op.tags:
        return _reason(_spoken(op, "item"), _READS, _READ_LATER)
    if torch.Tag.dynamic_output_shape in op.tags and not _has_fixed_shape(op, args, kwargs):
        return _reason(_spoken(op), _SHAPES, _FIXED_SHAPE)
    if op in _WITH_INDICES and _has_mask(args[1]) and args[2].numel() != 1:
        return _reason(_spoken(op), "writes as many elements as a mask has", "`masked_fill_`, or `torch.where`")
    return None


def refusal_of_tensors(op: Any, tree: Any) -> Reason | None:
    """Why the tensors among an operator's arguments, or its results, cannot be part of a recording, or None."""
    for leaf in tree_iter(tree):
        if not isinstance(leaf, torch.Tensor):
            continue
        if leaf.device.type != "cpu":
            why = f"works on a tensor of {leaf.device}, and the capture is of cpu"
            elsewhere = f"capture on {leaf.device} (`device=`), or " if leaf.is_cuda else ""
            return _reason(_spoken(op), why, f"{elsewhere}move the tensor to the CPU")
        if leaf.layout is not torch.strided:
            return _reason(
                _spoken(op), f"works on a tensor of layout {leaf.layout}", "use strided tensors (`to_dense()`)"
            )
        if leaf.is_nested:
            return _reason(_spoken(op), "works on a nested tensor", "use a padded tensor (`to_padded_tensor()`)")
    return None


def unregistered(op: Any) -> Reason:
    """The refusal of a draw from a generator that the recording does not know."""
    name = running_call().keyword("generator") or "generator"
    return _reason(
        _spoken(op),
        f"draws from the generator `{name}`, which is not registered on the recording",
        f"call `register_generator_state({name})` on the graph before the capture begins",
    )


def state_was_set(op: Any, *, is_shared: bool) -> Reason:
    """The refusal of a draw that a replay would make differently; `is_shared`: where other threads may draw meanwhile."""
    others = ", unless it was another thread that drew from it meanwhile" if is_shared else ""
    apart = "; give other threads that draw generators of their own" if is_shared else ""
    return _reason(
        _spoken(op),
        f"draws from a generator whose state was set inside of the capture, and a replay does not set it{others}",
        f"seed before the replay; give `torch.utils.checkpoint.checkpoint` the option `preserve_rng_state=False`{apart}",
    )


def seed_was_set() -> Reason:
    """The refusal of a body that seeds a generator and draws nothing from it."""
    return _reason(
        "manual_seed", "seeds a generator inside of the capture, and a replay does not", "seed before the replay"
    )


def _has_fixed_shape(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if op is aten.index.Tensor:
        return not _has_mask(args[1])
    if op is aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is not None
    return False


def _has_mask(indices: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _spoken(op: Any, read: str | None = None) -> str:
    """The operation as the user's line calls it, where that can be told; `read` where the operator's own name is internal."""
    called = running_call().name
    return called or read or operator_name(op)


def _reason(op: str, why: str, advice: str) -> Reason:
    return Reason(op, why, advice, running_call().where)
