"""ATen operators: their kinds, their fastest entry, the dispatch keys above them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket

from treeplay.torch_seam.casts import CASTS, OTHERS, casts_inside, has_kernel
from treeplay.torch_seam.modes import as_eager
from treeplay.torch_seam.patched import Wanted

BINDING: type = type(getattr(torch._C._get_tracing_state, "__self__", None))
"""The class of what pybind11 keeps behind each of torch's functions in C."""
nn_functions: Any = torch._C._nn
foreach_copy_: Callable[..., None] = torch._foreach_copy_
foreach_zero_: Callable[..., None] = torch._foreach_zero_
assert_async: Callable[..., None] = torch._assert_async
is_all_true: Callable[..., torch.Tensor] = torch._is_all_true
foreach_clone: Callable[..., Any] | None = getattr(torch, "_foreach_clone", None)  # torch 2.13 and later


CHECKS = (torch.ops.aten._linalg_check_errors.default, torch.ops.aten._assert_async.default)
"""Operators that raise, and do nothing else."""

ExcludeKeys: Any = torch._C._ExcludeDispatchKeyGuard

_DIFFERENTIATE = ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView")
_ABOVE_OPERATORS = (*_DIFFERENTIATE, "AutocastCPU", "AutocastCUDA")


def operator_name(op: Any) -> str:
    """What an operator is called, without its namespace and its overload; nothing for anything else."""
    return str(op._schema.name).partition("::")[2] if isinstance(op, OpOverload) else ""


_EXPLICIT = (
    torch._C.DispatchKey.CompositeExplicitAutograd,
    torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional,
)
_AsCalled: Any = getattr(torch._C, "_RestorePythonTLSSnapshot")  # noqa: B009 - not in torch's stubs


@lru_cache(maxsize=4096)
def is_made_of_others(op: OpOverload, device: str) -> bool:
    """Whether an operator has no kernel of its own on a type of device, and calls other operators there."""
    return has_kernel(op.name(), OTHERS) and not has_kernel(op.name(), device.upper())


def by_others(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the operators give that an operator is made of. For code of a dispatch mode: what stands above operators (autocast,
    lazy conjugates, views that need gradients) sees each of them that has not seen the whole, as it does where no mode is."""
    kernel = next((key for key in _EXPLICIT if has_kernel(op.name(), key)), OTHERS)
    casts = casts_inside(op)
    with _AsCalled():  # as it was where the program called the operator
        excluded = torch._C._dispatch_tls_local_exclude_set()
        for key in CASTS:
            is_off = key not in casts if casts else has_kernel(op.name(), key)
            excluded = excluded.add(key) if is_off else excluded
        if kernel is not OTHERS:  # autograd has its own rule for the whole
            excluded = excluded | _keys(_DIFFERENTIATE)
        with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
            return op._op_dk(kernel, *args, **kwargs)


def is_by_others_alone(op: OpOverload) -> bool:
    """Whether an operator, or its kernel, computes with other operators and reads no memory itself."""
    return any(has_kernel(op.name(), key) for key in (OTHERS, *_EXPLICIT))


def keys_above_operators() -> Any:
    """The dispatch keys that a traced operator has already been through: autograd, view tracking and autocast."""
    return _keys(_ABOVE_OPERATORS)


def _keys(names: Sequence[str]) -> Any:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, names[0]))
    for name in names[1:]:
        keys = keys | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
    return keys


def python_functions(name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """torch's own Python bindings that carry this operator name; each is cheaper to call than the operator object."""
    for prefix, holder in _BINDINGS:
        function = getattr(holder, name, None)
        if function is not None:
            yield f"{prefix}{name}", function


_BINDINGS: tuple[tuple[str, Any], ...] = (
    ("", torch._C.TensorBase),
    ("", torch._C._VariableFunctions),
    ("", torch._C._nn),
    ("", getattr(torch._C, "_linalg")),  # noqa: B009 - not in torch's stubs
    ("", getattr(torch._C, "_special")),  # noqa: B009
)


def with_gradients_on(op: Any) -> Callable[..., Any]:
    """The operator with gradients switched on around it, as its kernel saw them when autograd called it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            return op._op(*args, **kwargs)

    return run


def direct(op: Any) -> Callable[..., Any]:
    """The operator without the Python layer of `OpOverload.__call__`."""
    function: Callable[..., Any] = op._op
    return function


def schema_returns(target: Callable[..., Any]) -> int | None:
    """How many values an ATen operator returns by its schema; None for anything else."""
    return len(target._schema.returns) if isinstance(target, torch._ops.OpOverload) else None


_METHODS = {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder"}
"""What the operators of Python's syntax are called."""


def names_elementwise(name: str) -> bool:
    """Whether an operator of this name works element by element."""
    packet = getattr(torch.ops.aten, _METHODS.get(name, name), None)
    overloads = packet.overloads() if packet is not None else ()
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in overloads)


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source into its target, in as few launches as possible."""
    if len(targets) == 1:
        targets[0].copy_(sources[0])
    elif targets:
        foreach_copy_(targets, sources)


def clone_all(tensors: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> Sequence[torch.Tensor]:
    """New tensors with memory of their own and the same values."""
    if len(tensors) < 2:
        return [tensor.clone() for tensor in tensors]
    if foreach_clone is not None:
        return foreach_clone(tensors)  # type: ignore[no-any-return]
    made = [torch.empty_like(tensor) for tensor in tensors]
    copy_all(made, list(tensors))
    return made


_WRITES_OUT = (torch._C.DispatchKey.Autograd, OTHERS)


def written_out(op: OpOverload, make: Callable[[Any, Callable[[], Any]], Any]) -> Wanted:
    """While it is wanted, what `make(original, is_wanted)` gives writes `op` out in other operators where torch traces, instead
    of torch's own function in Python, or of the operator itself where torch has none."""

    def as_it_is(*args: Any) -> Any:
        with as_eager():
            return op(*args)

    def put() -> Callable[[], object]:
        originals = dict(op.py_kernels)
        give(originals | {key: make(originals.get(key, as_it_is), wanted.value) for key in _WRITES_OUT})
        return lambda: give(originals)

    def give(kernels: Mapping[Any, Any]) -> None:
        op.py_kernels.update(kernels)
        for key in op.py_kernels.keys() - kernels.keys():
            del op.py_kernels[key]
        op._dispatch_cache.clear()

    wanted = Wanted(put)
    return wanted
