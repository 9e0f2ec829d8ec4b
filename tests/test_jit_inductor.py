"""The compiled lowering, a handful: close to eager, state in place, and apart from what it must not touch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from support import training

pytestmark = pytest.mark.compile


def compiled(program: Any) -> Any:
    return treeplay.jit(program, lower="inductor", on_refusal="raise")


def test_a_whole_step_with_batch_norm_and_adamw_is_close_to_eager() -> None:
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    twin, eager_optimizer = copy.deepcopy((model, optimizer))
    jitted, eager = compiled(training(model, optimizer)), training(twin, eager_optimizer)
    for call in range(6):
        if call == 4:
            optimizer.param_groups[0]["lr"] = eager_optimizer.param_groups[0]["lr"] = 0.5
        x, y = torch.randn(4, 3), torch.randn(4, 2)
        assert torch.allclose(jitted(x, y), eager(x, y), rtol=1e-4, atol=1e-5)
        for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
            assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)
    assert jitted.statistics().recordings == 1 and model[1].num_batches_tracked == 6


def test_kept_results_and_aliases_are_eagers() -> None:
    def use(x: torch.Tensor, table: dict[str, torch.Tensor]) -> Any:
        table["total"].mul_(0.5).add_(x)
        made = x * 3 - table["total"]
        return made, made[1:], x[0], table["total"]

    jitted, total, twin = compiled(use), torch.zeros(3), torch.zeros(3)
    kept = []
    for _ in range(5):
        x = torch.randn(3)
        found = jitted(x, {"total": total})
        expected = use(x, {"total": twin})
        kept.append((found[0], expected[0].clone()))
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))
        assert found[3] is total and found[2].data_ptr() == x.data_ptr()
        assert found[1].data_ptr() == found[0][1:].data_ptr()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in kept)


@pytest.mark.parametrize("lower", ["auto", "inductor"])
def test_arguments_that_share_written_memory_are_right(lower: Any) -> None:
    def shift(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        target.mul_(2)
        return target * 3 - source

    jitted = treeplay.jit(shift, lower=lower)
    for call in range(8):
        base = torch.arange(8.0) + call
        twin = base.clone()
        start = (4, 4, 4, 2, 0, 4, 2, 0)[call]
        expected = shift(twin[:4], twin[start : start + 4])
        assert torch.equal(jitted(base[:4], base[start : start + 4]), expected)
        assert torch.equal(base, twin)


@pytest.mark.parametrize("lower", ["auto", "inductor"])
def test_one_written_tensor_given_twice_is_right(lower: Any) -> None:
    def change(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x - 2 * y

    jitted = treeplay.jit(change, lower=lower)
    for call in range(8):
        x, y = torch.randn(3), torch.randn(3)
        twins = (x.clone(), y.clone())
        is_twice = call in (3, 4, 6)
        found = jitted(x, x if is_twice else y)
        assert torch.allclose(found, change(twins[0], twins[0] if is_twice else twins[1]))
        assert torch.equal(x, twins[0])


def test_eager_random_draws_what_eager_draws() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        drawn = torch.bernoulli(x / 2) + x.long().random_(3, 9) + x.clone().view(4, 4).t().random_(2, 5).flatten()
        return F.dropout(x, 0.5) - torch.rand(16) + drawn

    jitted, x = compiled(program), torch.ones(16)
    with treeplay.settings.changed(eager_random=True):
        for seed in range(4):
            torch.manual_seed(seed)
            found = jitted(x)
            torch.manual_seed(seed)
            assert torch.allclose(found, program(x))


def test_eager_random_draws_also_what_nobody_uses() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        F.dropout(x, 0.5)
        dropped = F.dropout(x, 0.5) * 3.0
        torch.rand(3)
        return dropped - torch.rand(8)

    with treeplay.settings.changed(eager_random=True):
        jitted = compiled(program)
        for seed in range(3):
            x = torch.ones(8)
            torch.manual_seed(seed)
            found = jitted(x), torch.rand(2)
            torch.manual_seed(seed)
            torch.testing.assert_close(found, (program(x), torch.rand(2)))


def test_random_numbers_differ_from_call_to_call() -> None:
    jitted = compiled(lambda x: x - torch.rand(16))
    found = [jitted(torch.zeros(16)) for _ in range(5)]
    assert len({tuple(tensor.tolist()) for tensor in found}) == 5


def test_version_counters_move_so_that_stale_backwards_are_caught() -> None:
    weight = torch.ones(3)
    jitted = compiled(lambda x: weight.mul_(2) - x)
    for _ in range(4):
        other = torch.ones(3, requires_grad=True)
        product = other * weight
        jitted(torch.ones(3))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()
