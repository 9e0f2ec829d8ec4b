"""The private parts of torch that call functions use exist and behave."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from treeplay.wrap import torch_private

BASE = torch.ones(2, 3)
OTHERS = {
    "shape": torch.ones(3, 3),
    "stride": torch.ones(3, 2).t(),
    "dtype": torch.ones(2, 3, dtype=torch.float64),
    "requires_grad": torch.ones(2, 3, requires_grad=True),
    "conjugated": torch.ones(2, 3, dtype=torch.complex64).conj(),
    "a parameter": nn.Parameter(torch.ones(2, 3), requires_grad=False),
}


@pytest.mark.parametrize("what", OTHERS)
def test_the_native_check_tells_tensors_apart(what: str) -> None:
    check = torch_private.tensor_check([BASE])
    assert check(torch.zeros(2, 3)) and not check(OTHERS[what])


def test_the_native_check_refuses_other_kinds_and_one_tensor_twice() -> None:
    check = torch_private.tensor_check([BASE, torch.ones(2, 3)])
    assert check(torch.ones(2, 3), torch.ones(2, 3))
    assert not check(BASE, BASE) and not check(BASE, None)


def test_the_native_check_compares_the_dispatch_state() -> None:
    check = torch_private.tensor_check([BASE])
    with torch.inference_mode():
        assert not check(BASE)
    with torch.autocast("cpu", torch.bfloat16):
        assert not check(BASE)
    assert check(BASE)


def test_the_users_of_a_storage_are_counted() -> None:
    tensor = torch.ones(4)
    assert torch_private.storage_users(tensor) == 1
    view = tensor[1:]
    assert torch_private.storage_users(tensor) == torch_private.storage_users(view) == 2
    del view
    assert torch_private.storage_users(tensor) == 1


def test_modes_can_be_set_and_versions_moved() -> None:
    torch_private.set_grad_enabled(False)
    assert not torch.is_grad_enabled()
    torch_private.set_grad_enabled(True)
    with torch.autocast("cpu", torch.bfloat16), torch_private.DisableAutocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
    tensor = torch.ones(1)
    torch_private.increment_version((tensor,))
    assert tensor._version == 1
