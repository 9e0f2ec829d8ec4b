"""The private parts of torch that the `aten` lowering uses, in one place, each with a test that it exists and behaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

ExcludeKeys: Any = torch._C._ExcludeDispatchKeyGuard
increment_version: Callable[..., None] = torch._C._increment_version
empty_strided_host: Callable[..., torch.Tensor] = getattr(torch._C._dynamo.guards, "_empty_strided_cpu")  # noqa: B009 - not in torch's stubs

_ABOVE_OPERATORS = (
    "AutogradFunctionality",
    "AutogradOther",
    "AutogradNestedTensor",
    "ADInplaceOrView",
    "AutocastCPU",
    "AutocastCUDA",
)


def keys_above_operators() -> Any:
    """The dispatch keys that a traced operator has already been through: autograd, view tracking and autocast."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)
    for name in _ABOVE_OPERATORS[1:]:
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
