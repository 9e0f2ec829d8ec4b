"""Modes of a thread: what was put on top of them and never taken off, and what was taken away, is as it was."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from treeplay.torch_seam.modes import ThreadModes


class Through(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_modes_that_were_never_left_are_gone() -> None:
    modes = ThreadModes()
    torch.set_grad_enabled(False)
    FakeTensorMode().__enter__()  # type: ignore[no-untyped-call]
    Through().__enter__()
    torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept).__enter__()
    torch._C._dispatch_tls_set_dispatch_key_excluded(torch._C.DispatchKey.AutogradCPU, True)
    torch._C.DisableTorchFunctionSubclass().__enter__()
    torch.autograd.set_multithreading_enabled(False)
    modes.put_back()
    assert vars(ThreadModes()).keys() == vars(modes).keys() and str(vars(ThreadModes())) == str(vars(modes))
    doubled = torch.ones(2, requires_grad=True) * 2
    assert type(doubled) is torch.Tensor and doubled.grad_fn is not None


def test_modes_that_were_left_too_often_are_there_again() -> None:
    with Through() as mode, torch.no_grad(), FakeTensorMode() as fakes:
        modes = ThreadModes()
        torch._C._pop_torch_dispatch_stack(torch._C._TorchDispatchModeKey.FAKE)
        torch.overrides._pop_mode()  # type: ignore[no-untyped-call]
        torch.set_grad_enabled(True)
        modes.put_back()
        assert torch.overrides._get_current_function_mode_stack() == [mode] and not torch.is_grad_enabled()
        assert torch._C._get_dispatch_stack_at(0) is fakes


def test_a_function_transform_that_was_never_left_is_gone() -> None:
    modes = ThreadModes()
    torch._C._functorch._vmap_increment_nesting(3, "error")
    modes.put_back()
    assert torch._C._functorch.peek_interpreter_stack() is None and not torch.ones(2).requires_grad
