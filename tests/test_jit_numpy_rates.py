"""Numbers of an optimizer that are no floats of Python's: NumPy's are inputs too, others are compared on each call."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from support import Twins, training

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True, weight_decay=0.1),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True, amsgrad=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


def twins(make: Callable[..., torch.optim.Optimizer], **options: Any) -> Twins:
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    return Twins(training, net, make(net.parameters()), **options)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3), torch.randn(4, 2)


def groups(pair: Twins) -> list[dict[str, Any]]:
    return [owners[1].param_groups[0] for owners in (pair.owners, pair.eager_owners)]


@pytest.mark.parametrize("lower", ["aten", "auto"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_schedule_of_numpys_needs_one_recording(name: str, lower: str) -> None:
    if lower == "auto" and name not in ("sgd", "adamw foreach"):
        pytest.skip("two are enough to compile")
    pair = twins(OPTIMIZERS[name], lower="aten") if lower == "aten" else twins(OPTIMIZERS[name])
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(owners[1], lambda epoch: numpy.cos(epoch / 10))
        for owners in (pair.owners, pair.eager_owners)
    ]
    for _ in range(6):
        assert type(groups(pair)[0]["lr"]) is numpy.float64
        pair.call(*batch())
        for scheduler in schedulers:
            scheduler.step()
    assert (pair.statistics.recordings, pair.statistics.replays) == (1, 5)
    assert type(groups(pair)[0]["lr"]) is numpy.float64


def test_floats_of_both_kinds_share_a_recording() -> None:
    pair = twins(OPTIMIZERS["adam"])
    for rate in (0.1, 0.2, numpy.float64(0.3), 0.4, numpy.float64(0.5)):
        for group in groups(pair):
            group["lr"] = rate
            group["betas"] = (numpy.float64(0.9 - rate / 10), 0.99)
        pair.call(*batch())
    assert (pair.statistics.recordings, pair.statistics.replays) == (1, 4)


@pytest.mark.parametrize(
    "make",
    [numpy.float32, Fraction, lambda value: numpy.float16(value), lambda value: numpy.array(value), numpy.longdouble],
    ids=["float32", "Fraction", "float16", "array", "longdouble"],
)
def test_other_kinds_of_numbers_never_freeze(make: Callable[[float], Any]) -> None:
    pair = twins(OPTIMIZERS["sgd"], on_refusal="eager")
    for call in range(9):
        for group in groups(pair):
            group["lr"] = make((0.5, 0.25, 0.125)[call // 3])
        try:
            pair.call(*batch())
        except TypeError:  # torch's own, of both sides
            pytest.skip("this torch takes no such number")


def test_a_number_that_comes_back_is_replayed() -> None:
    pair = twins(OPTIMIZERS["sgd"])
    for call in range(12):
        for group in groups(pair):
            group["lr"] = numpy.float32((0.5, 0.25)[call // 3 % 2])
        pair.call(*batch())
    assert pair.statistics.recordings == 2
    assert "'lr'" in pair.step.explain()


def test_an_array_that_is_written_to_is_noticed() -> None:
    pair = twins(OPTIMIZERS["sgd"], on_refusal="eager")
    for group in groups(pair):
        group["lr"] = numpy.array(0.5)
    for call in range(9):
        for group in groups(pair):
            group["lr"][...] = (0.5, 0.25, 0.125)[call // 3]
        pair.call(*batch())


@pytest.mark.parametrize("betas", [[0.9, 0.99], [0, 0.99], (0, 0.99)])
def test_the_numbers_of_a_list_or_a_mixed_tuple_do_not_freeze(betas: Any) -> None:
    pair = twins(OPTIMIZERS["adam"])
    for group in groups(pair):
        group["betas"] = type(betas)(betas)
    pair.calls(3, batch)
    for group in groups(pair):
        group["betas"] = type(betas)([betas[0], 0.5])
    pair.calls(2, batch)
    assert pair.statistics.recordings == 1
    for group in groups(pair):
        group["betas"] = type(betas)([type(betas[0])(0.75), 0.5])
    pair.calls(3, batch)
    if isinstance(betas, list):
        for group in groups(pair):
            group["betas"][1] = 0.25
        pair.calls(2, batch)
        assert groups(pair)[0]["betas"][1] == 0.25


def test_decimals_raise_what_eager_raises() -> None:
    pair = twins(OPTIMIZERS["sgd"], on_refusal="eager")
    pair.calls(3, batch)
    for group in groups(pair):
        group["lr"] = Decimal("0.5")
    with pytest.raises(TypeError):
        pair.eager(*batch())
    with pytest.raises(TypeError):
        pair.step(*batch())


@pytest.mark.parametrize("make", [numpy.float32, numpy.array], ids=["float32", "array"])
@pytest.mark.parametrize("name", ["adam", "adamw foreach"])
def test_numbers_of_another_precision_run_eagerly(name: str, make: Callable[[float], Any]) -> None:
    pair = twins(OPTIMIZERS[name], on_refusal="eager")
    for call in range(4):
        for group in groups(pair):
            group["lr"] = make(0.1 / (call + 1))
        pair.call(*batch())


def test_numpys_numbers_of_the_same_precision_meet_symbols() -> None:
    class Own(torch.optim.Optimizer):
        """Arithmetic of all kinds with its learning rate."""

        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                rate = numpy.float64(0.3) * group["lr"] + group["lr"] ** numpy.float64(2) - numpy.int64(1) / 7
                if numpy.float64(10.0) > group["lr"]:
                    rate = rate / numpy.float64(3.0)
                for param in group["params"]:
                    if param.grad is not None:
                        param.sub_(rate * param.grad)

    pair = twins(Own)
    for call in range(6):
        for group in groups(pair):
            group["lr"] = (numpy.float64 if call % 2 else float)(0.1 / (call + 1))
        pair.call(*batch())
    assert pair.statistics.recordings == 1
