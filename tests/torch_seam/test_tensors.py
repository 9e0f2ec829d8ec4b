"""The private parts of torch that the host device uses exist and behave."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from support import jit
from treeplay.errors import Refusal
from treeplay.torch_seam import fakes, flags, modes, tensors


def test_function_modes_look_away() -> None:
    seen: list[object] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.ones(2)
    with Watch():
        with modes.DisableTorchFunction():
            x + 1
        assert seen == []
        x + 1
    assert len(seen) == 1


def test_autocast_can_be_left_out() -> None:
    a = torch.ones(2, 2)
    with torch.autocast("cpu"):
        assert torch.mm(a, a).dtype == torch.bfloat16
        with flags.without_autocast():
            assert torch.mm(a, a).dtype == torch.float32


def test_storages_are_told_apart_and_counted() -> None:
    x = torch.ones(4)
    alone = tensors.uses_of_storage(x)
    view = x[1:]
    assert tensors.storage_of(x) == tensors.storage_of(view) != tensors.storage_of(x.clone())
    assert tensors.uses_of_storage(x) == alone + 1
    del view
    assert tensors.uses_of_storage(x) == alone


def test_a_generator_has_an_address() -> None:
    seen: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.extend(tensors.address_of(v) for v in kwargs.values() if isinstance(v, torch.Generator))
            return func(*args, **kwargs)

    mine = torch.Generator()
    with Watch():
        torch.rand(2, generator=mine)
    assert seen == [tensors.address_of(mine)] != [tensors.address_of(torch.default_generator)]


def test_the_innermost_mode_is_known() -> None:
    outer, inner = TorchDispatchMode(), TorchDispatchMode()
    with outer:
        assert modes.is_innermost_mode(outer)
        with inner:
            assert modes.is_innermost_mode(inner) and not modes.is_innermost_mode(outer)
    assert not modes.is_innermost_mode(outer)


def test_an_operator_runs_the_method_in_c_whatever_stands_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "mul", lambda one, other: one + other)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 5 - x.mul(7)

    step = jit(program, lower="aten", on_refusal="raise")
    for k in range(4):
        x = torch.tensor([k, 2.0, 3.0])
        assert torch.equal(step(x), program(x))
    assert step.statistics().replays >= 2


def test_an_operator_whose_method_is_replaced_is_refused_where_the_caller_differentiates_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    monkeypatch.setattr(torch.Tensor, "mul", lambda one, other: one + other)
    step = jit(lambda x: x * weight, lower="aten", on_refusal="raise")
    step(torch.ones(3))
    with pytest.raises(Refusal, match=r"torch\.Tensor\.mul"):
        step(torch.ones(3))


def test_zeros_without_memory_are_known_and_so_are_fakes_of_them_and_views() -> None:
    make = torch.ops.aten._efficientzerotensor.default
    zeros = make([3, 2])
    assert (
        tensors.is_known_zero(zeros)
        and tensors.is_known_zero(zeros.t())
        and not tensors.is_known_zero(torch.zeros(3, 2))
    )
    assert tensors.is_known_zero(zeros * float("inf")) and not tensors.is_known_zero(zeros.clone())
    with FakeTensorMode() as mode:
        fakes.ask_rules_anew(mode)  # else an answer of before may be taken for one, which is none of such zeros
        fake = make([3, 2])
        assert tensors.is_known_zero(fake) and tensors.is_known_zero(fake.t()) and tensors.is_known_zero(fake.view(6))


def test_a_view_of_a_fake_of_zeros_without_memory_is_made_by_torch_alone() -> None:
    with FakeTensorMode():
        fake = torch.ops.aten._efficientzerotensor.default([3, 2])
        assert type(fake.view(6)) is torch.Tensor and type(fake.t()) is FakeTensor
