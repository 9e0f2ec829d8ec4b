"""Hooks of modules and optimizers, and the scaler of gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules import module as _module
from torch.nn.utils import parametrize
from torch.optim import optimizer as _optimizer
from torch.utils.hooks import RemovableHandle

from treeplay.torch_seam.patched import Shared

# Where layers, optimizers and tensors keep what is theirs.
MODULE_TABLES = ("_parameters", "_buffers", "_modules")
MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
OPTIMIZER_OWN = ("_optimizer_", "_zero_grad_", "_warned_")
"""How the private names begin that torch gives to every optimizer."""
TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def _but_ours(original: Any, _: Callable[[], Any]) -> Any:
    def has_any_global_hook() -> bool:
        return any(map(hooks_but_ours, global_hook_tables()[:4]))

    return has_any_global_hook


_ASKED_FOR_HOOKS = Shared(_module, "_has_any_global_hook", _but_ours)


@contextlib.contextmanager
def call_hook(hook: Callable[..., None]) -> Iterator[None]:
    """A hook of ours (`stand_in`) is told of each call of a module in a block; a module of `torch.compile`'s, which warns of
    such hooks, finds none."""
    handle = _module.register_module_forward_pre_hook(hook)
    try:
        with _ASKED_FOR_HOOKS.wanted():
            yield
    finally:
        handle.remove()


def is_parametrized_cache(tensor: torch.Tensor) -> bool:
    """Whether torch keeps a tensor for what is called inside of `parametrize.cached()`."""
    return any(kept is tensor for kept in parametrize._cache.values())


def hooks_made() -> int:
    """How many hooks of modules, optimizers and tensors this process has made so far."""
    return int(RemovableHandle.next_id)


def global_hook_tables() -> tuple[dict[int, Any], ...]:
    """The tables of hooks that run for every module or every optimizer; the first four run where a module is called."""
    return (
        _module._global_forward_pre_hooks,
        _module._global_forward_hooks,
        _module._global_backward_pre_hooks,
        _module._global_backward_hooks,
        _optimizer._global_optimizer_pre_hooks,
        _optimizer._global_optimizer_post_hooks,
        _module._global_parameter_registration_hooks,
        _module._global_buffer_registration_hooks,
        _module._global_module_registration_hooks,
    )


def hooks_but_ours(table: dict[int, Any]) -> dict[int, Any]:
    """The hooks of a table without those that are there only while treeplay traces, in whichever thread."""
    # A copy, which is made in one step: another thread may add its hook meanwhile.
    return {key: hook for key, hook in table.copy().items() if not hasattr(hook, "is_treeplays")}


def has_backward_hooks(modules: Iterable[torch.nn.Module]) -> bool:
    """Whether a backward through one of these modules would run a hook of the module's, or one of all modules'."""
    everywhere = (_module._global_backward_pre_hooks, _module._global_backward_hooks)
    own = (table for item in modules for table in (item._backward_pre_hooks, item._backward_hooks))
    return any(everywhere) or any(own)


def has_hooks_after_accumulation(tensor: torch.Tensor) -> bool:
    """Whether a hook runs once a leaf's gradient was added to."""
    return bool(tensor._post_accumulate_grad_hooks)


def _without_asking(original: Any, value: Callable[[], Any]) -> Any:
    def maybe_step(self: Any, optimizer: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        step = value()
        if step is None:
            return original(self, optimizer, state, *args, **kwargs)
        return step(optimizer, state["found_inf_per_device"].values(), args, kwargs)

    return maybe_step


scaled_step_replaced = Shared(GradScaler, "_maybe_opt_step", _without_asking).wanted
"""Where `GradScaler.step` of this thread would ask on the host whether an optimizer may step, `step(optimizer, found, args,
kwargs)` is called instead, with the tensors that hold the answer."""
