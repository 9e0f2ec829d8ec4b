"""What may be going on around a call or its backward: transforms, deterministic mode, compiled autograd, other threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treeplay.errors import InternalError, UsageError
from treeplay.torch_seam import aot, autograd
from treeplay.values.boxed import Boxed
from treeplay.wrap.aot.tracing.findings import refusal_to_wrap


def transformed(place: str) -> UsageError:
    """The error of a call, or a backward, inside vmap, grad or vjp."""
    return UsageError(
        f"the {place} of a compiled function ran inside a transform of torch.func (vmap, grad, vjp), which cannot see "
        "into it. Fix: apply the transform inside the compiled function, or run this part without treeplay"
    )


def became_deterministic() -> UsageError:
    """The error of a backward under deterministic mode whose forward was traced without it."""
    return UsageError(
        "torch.use_deterministic_algorithms was turned on after this function was compiled: its backward may use an "
        "algorithm that is not deterministic. Fix: turn it on before the function is compiled"
    )


def run_in_callers_context(run: Boxed, values: list[Any]) -> Sequence[Any]:
    """Run a backward on a thread of the autograd engine, with the context variables of whoever called backward."""
    result: Sequence[Any] = autograd.in_callers_context(run, values)
    return result


def refuse_compiled_autograd() -> None:
    """Refuse a training plan while backwards are traced: the node has no graph to offer to such a trace."""
    if aot.is_autograd_compiled():
        why = "compiled autograd is on, and it cannot trace the backward of a compiled function"
        raise refusal_to_wrap("wrap", why, None, "turn compiled autograd off: backwards are compiled here without it")


def refuse_backward_states(samples: Sequence[Any]) -> None:
    """Refuse what Dynamo passes for hooks that only compiled autograd can run."""
    count = sum(type(sample).__name__ == "BackwardState" for sample in samples)
    if count > 1:
        raise InternalError(f"a function takes {count} backward states, expected at most 1")
    if count:
        raise refusal_to_wrap("wrap", "a hook that runs in the backward needs compiled autograd", None)
