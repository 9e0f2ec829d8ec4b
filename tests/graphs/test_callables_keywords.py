"""Keyword arguments: tensors are held to their first call, constants are the key of a recording."""

from __future__ import annotations

import enum
import gc

import pytest
import torch
from torch import nn

import treeplay
from treeplay.errors import CaptureFailed, UsageError
from treeplay.graphs import make_graphed_callables
from treeplay.graphs.contract import take_keywords


class Mode(enum.Enum):
    """A constant of the user's."""

    PLUS = 1
    MINUS = 2


def scaled(x: torch.Tensor, scale: float = 1, mode: Mode = Mode.PLUS, bias: torch.Tensor | None = None) -> torch.Tensor:
    out = x * scale
    if bias is not None:
        out = out + bias if mode is Mode.PLUS else out - bias
    return out + 0.5


def test_Gplus3_another_constant_is_another_recording(dev: str) -> None:
    graphed = make_graphed_callables(scaled, (torch.ones(3, device=dev),), sample_kwargs={"scale": 2})
    for scale in (2, 3, 2):
        x = torch.randn(3, device=dev)
        torch.testing.assert_close(graphed(x, scale=scale), scaled(x, scale=scale))
    statistics = graphed.statistics()
    assert (statistics.recordings, statistics.replays, statistics.eager_calls) == (2, 3, 0)
    assert str(statistics).startswith("scaled: 2 recordings, 3 replays")


def test_Gplus3_without_sample_keywords_they_are_recorded_when_they_come(dev: str) -> None:
    graphed = make_graphed_callables(scaled, (torch.ones(3, device=dev),))
    calls = [{}, {"scale": 2}, {"scale": 2.0}, {"scale": True}, {"mode": Mode.MINUS}, {"scale": 2}]
    for kwargs in calls:
        x = torch.randn(3, device=dev)
        torch.testing.assert_close(graphed(x, **kwargs), scaled(x, **kwargs))
    assert graphed.statistics().recordings == 5


def test_Gplus3_the_order_of_keywords_does_not_matter(dev: str) -> None:
    graphed = make_graphed_callables(scaled, (torch.ones(3, device=dev),))
    x, bias = torch.randn(3, device=dev), torch.randn(3, device=dev)
    for kwargs in ({"bias": bias, "mode": Mode.MINUS}, {"mode": Mode.MINUS, "bias": bias}):
        torch.testing.assert_close(graphed(x, **kwargs), scaled(x, **kwargs))
    assert graphed.statistics().recordings == 2


def test_Gplus3_keyword_tensors_have_a_contract_too(dev: str) -> None:
    graphed = make_graphed_callables(scaled, (torch.ones(3, device=dev),))
    x = torch.randn(3, device=dev)
    for _ in range(2):
        bias = torch.randn(3, device=dev)
        torch.testing.assert_close(graphed(x, bias=bias), scaled(x, bias=bias))
    with pytest.raises(UsageError, match=r"\$\.bias: shape \(1,\), recorded with \(3,\)"):
        graphed(x, bias=torch.randn(1, device=dev))
    with pytest.raises(UsageError, match=r"\$\[0\]: shape"):
        graphed(torch.randn(4, device=dev), scale=11)


def test_Gplus3_all_kinds_of_constants(dev: str) -> None:
    def everything(x: torch.Tensor, **kwargs: object) -> torch.Tensor:
        offset = kwargs["nested"]["a"][1] if kwargs["flag"] else 0
        return x.to(kwargs["dtype"]) * len(kwargs["text"]) + offset

    sample = {"nested": {"a": [None, 3]}, "flag": True, "dtype": torch.float64, "text": "abc"}
    graphed = make_graphed_callables(everything, (torch.ones(3, device=dev),), sample_kwargs=sample)
    for flag in (True, False):
        for dtype in (torch.float64, torch.float16):
            kwargs = {**sample, "flag": flag, "dtype": dtype}
            x = torch.randn(3, device=dev)
            assert torch.equal(graphed(x, **kwargs), everything(x, **kwargs))
    assert graphed.statistics().recordings == 4


def everything_has_a_default(x: torch.Tensor, **kwargs: object) -> torch.Tensor:
    return x * 2


def test_Gplus3_a_constant_without_a_hash_is_named(dev: str) -> None:
    graphed = make_graphed_callables(everything_has_a_default, (torch.ones(3, device=dev),))
    with pytest.raises(UsageError, match=r"\$\.option\['a'\]: a value of type set cannot be hashed"):
        graphed(torch.ones(3, device=dev), option={"a": {1, 2}})


def test_Gplus3_backwards_of_two_recordings_do_not_disturb_each_other(dev: str) -> None:
    layer = nn.Linear(3, 3).to(dev)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor, power: int = 1) -> torch.Tensor:
            return self.layer(x).tanh().pow(power)

    module = make_graphed_callables(Scaled(), (torch.randn(2, 3, device=dev),))
    x, y = torch.randn(2, 3, device=dev), torch.randn(2, 3, device=dev)
    (module(x, power=2) + module(y, power=3)).sum().backward()
    found = layer.weight.grad
    layer.zero_grad()
    (layer(x).tanh().pow(2) + layer(y).tanh().pow(3)).sum().backward()
    torch.testing.assert_close(found, layer.weight.grad)


def test_Gplus3_a_recording_made_at_a_call_has_its_effects_once(dev: str) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: torch.Tensor, p: float = 0.5) -> torch.Tensor:
            return nn.functional.dropout(self.norm(x), p)

    module, twin = Noisy().to(dev), Noisy().to(dev)
    make_graphed_callables(module, (torch.randn(4, 3, device=dev),))
    for p in (0.5, 0.25, 0.75, 0.25):
        x = torch.randn(4, 3, device=dev)
        torch.manual_seed(7)
        found = module(x, p=p)
        torch.manual_seed(7)
        torch.testing.assert_close(found, twin(x, p=p))
        torch.testing.assert_close(dict(module.named_buffers()), dict(twin.named_buffers()))


def test_Gplus3_recordings_are_bounded(dev: str) -> None:
    with treeplay.settings.changed(max_recordings_per_program=3):
        graphed = make_graphed_callables(scaled, (torch.ones(3, device=dev),))
        x = torch.randn(3, device=dev)
        for scale in (1, 2, 3, 4, 5, 3, 5):
            torch.testing.assert_close(graphed(x, scale=scale), scaled(x, scale=scale))
        statistics = graphed.statistics()
        assert (statistics.recordings, statistics.kept, statistics.replays) == (6, 3, 7)
        torch.testing.assert_close(graphed(x, scale=1), scaled(x, scale=1))
        assert graphed.statistics().recordings == 7


def test_a_dropped_recording_serves_its_pending_backward(dev: str) -> None:
    w = torch.randn(3, device=dev, requires_grad=True)
    with treeplay.settings.changed(max_recordings_per_program=1):
        graphed = make_graphed_callables(lambda x, by=1: x * w.pow(by), (torch.ones(3, device=dev),))
        loss = graphed(torch.ones(3, device=dev), by=2).sum()
        graphed(torch.ones(3, device=dev), by=3)
    gc.collect()
    loss.backward()
    torch.testing.assert_close(w.grad, 2 * w.detach())


@pytest.mark.parametrize(
    ("a", "b"), [(1, 1.0), (1, True), (0.0, -0.0), ("1", 1), (None, 0), ([1], (1,)), (torch.int32, torch.int64)]
)
def test_constants_that_differ_have_different_keys(a: object, b: object) -> None:
    assert take_keywords({"x": a}).key != take_keywords({"x": b}).key


def test_equal_constants_have_equal_keys() -> None:
    for value in (1, float("nan"), "a", [1, {"b": None}], complex(0, 1), torch.float32, Mode.PLUS):
        assert take_keywords({"x": value}).key == take_keywords({"x": value}).key


def test_a_constant_whose_body_cannot_be_recorded(dev: str) -> None:
    def reads(x: torch.Tensor, by_value: bool = False) -> torch.Tensor:
        return x * x.sum().item() if by_value else x * 2

    x = torch.full((3,), 2.0, device=dev)
    with pytest.raises(CaptureFailed, match="item"):
        make_graphed_callables(reads, (torch.ones(3, device=dev),))(x, by_value=True)
    graphed = make_graphed_callables(reads, (torch.ones(3, device=dev),), on_mismatch="eager")
    with pytest.warns(UserWarning, match="unrecorded: item"):
        assert graphed(x, by_value=True).eq(12).all()
    assert graphed(x, by_value=True).eq(12).all()
    assert graphed(x).eq(4).all()
    assert (graphed.statistics().replays, graphed.statistics().eager_calls) == (1, 2)
