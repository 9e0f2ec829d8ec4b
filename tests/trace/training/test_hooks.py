"""Hooks: added, removed and exchanged ones are noticed, at the price of one number where there are none."""

from __future__ import annotations

import torch
from torch import nn

from treeplay.trace.training.hooks import HookTables, has_hooks, ours


def test_hooks_elsewhere_do_not_matter() -> None:
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    hooks = HookTables([model], [], [])
    other.register_forward_hook(lambda *_: None)
    assert hooks.are_the_same and hooks.are_the_same


def test_a_hook_of_any_kind_is_noticed_and_forgotten_when_removed() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    for register in (
        model.register_forward_hook,
        model.register_forward_pre_hook,
        model.register_full_backward_hook,
        optimizer.register_step_pre_hook,
        model.weight.register_hook,
        model.weight.register_post_accumulate_grad_hook,
        nn.modules.module.register_module_forward_hook,
    ):
        hooks = HookTables([model], [optimizer], [model.weight])
        handle = register(lambda *_: None)
        assert not hooks.are_the_same
        with_hook = HookTables([model], [optimizer], [model.weight])
        handle.remove()
        assert hooks.are_the_same and not with_hook.are_the_same


def test_a_tensor_tells_whether_hooks_hang_on_it() -> None:
    parameter = nn.Parameter(torch.ones(1))
    assert not has_hooks(parameter)
    handle = parameter.register_hook(lambda grad: grad)
    assert has_hooks(parameter)
    handle.remove()
    assert not has_hooks(parameter)


def test_hooks_of_a_trace_in_another_thread_are_none_of_a_programs() -> None:
    hooks = HookTables([], [], [])
    handle = nn.modules.module.register_module_forward_pre_hook(ours(lambda *_: None))
    while_traced = HookTables([], [], [])
    assert hooks.are_the_same
    handle.remove()
    assert hooks.are_the_same and while_traced.are_the_same
