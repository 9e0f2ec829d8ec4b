"""What changes on every call is refused by its name, what changed once is told by its name; results are right all along."""

from __future__ import annotations

import collections
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import treeplay
from support import assert_same, jit

Tensor = torch.Tensor


class Config:
    scale = 2.0


class Holder:
    """A place for everything."""

    def __init__(self) -> None:
        self.cfg: dict[str, Any] = {"n": 2, "more": {"deep": 3.0}}
        self.sizes = [1.0, 2.0]
        self.recent = collections.deque([1.0])
        self.names = {"a"}
        self.weights = np.array([2.0, 3.0])
        self.option: Any = types.SimpleNamespace(rate=2.0)
        self.function: Callable[[Tensor], Tensor] = torch.sin
        self.mask = torch.ones(3)
        self.model = nn.LayerNorm(3)


def _grow(h: Holder, call: int) -> None:
    h.cfg["n"] += 1


CHANGING: dict[str, tuple[Callable[[Holder, Tensor], Tensor], Callable[[Holder, int], Any], str]] = {
    "item": (lambda h, x: x * h.cfg["n"] - 1, _grow, "cfg"),
    "deep item": (
        lambda h, x: x * h.cfg["more"]["deep"] - 1,
        lambda h, k: h.cfg["more"].update(deep=float(k)),
        "deep",
    ),
    "items": (lambda h, x: x * sum(len(str(v)) for _, v in h.cfg.items()) - h.cfg["n"], _grow, "cfg"),
    "get": (lambda h, x: x * h.cfg.get("k" + "ey", 1.0) - 1, lambda h, k: h.cfg.update(key=float(k)), "cfg"),
    "length": (lambda h, x: x * len(h.sizes) - 1, lambda h, k: h.sizes.append(1.0), "sizes"),
    "list": (lambda h, x: x * h.sizes[0] - 1, lambda h, k: h.sizes.__setitem__(0, float(k)), "sizes"),
    "deque": (lambda h, x: x * h.recent[-1] - 1, lambda h, k: h.recent.append(float(k)), "recent"),
    "set": (lambda h, x: x * len(h.names) - 1, lambda h, k: h.names.add(str(k)), "names"),
    "array": (lambda h, x: x * float(h.weights[0]) - 1, lambda h, k: h.weights.__setitem__(0, k), "weights"),
    "attribute": (lambda h, x: x * h.option.rate - 1, lambda h, k: setattr(h.option, "rate", float(k)), "rate"),
    "getattr": (
        lambda h, x: x * getattr(h.option, "sc" + "ale", 1.0) - 1,
        lambda h, k: setattr(h.option, "scale", float(k)),
        "scale",
    ),
    "object": (
        lambda h, x: x * h.option.rate - 1,
        lambda h, k: setattr(h, "option", types.SimpleNamespace(rate=float(k))),
        "option",
    ),
    "function": (
        lambda h, x: h.function(x) * 2 - 1,
        lambda h, k: setattr(h, "function", lambda x: x * float(k) - 1),
        "function",
    ),
    "class": (lambda h, x: x * Config.scale - 1, lambda h, k: setattr(Config, "scale", float(k)), "scale"),
    "shape": (lambda h, x: x * h.mask.shape[0] - 1, lambda h, k: setattr(h, "mask", torch.ones(k + 2)), "mask"),
    "module": (lambda h, x: h.model(x) * 2 - 1, lambda h, k: setattr(h.model, "eps", 0.1 * k + 0.1), "eps"),
}


# A number that changes is an input; but for one in an object that is another one in each call, or whose value is needed.
INPUTS = ("item", "deep item", "get", "list", "attribute", "getattr", "class")
REFUSED = {what: case for what, case in CHANGING.items() if what not in INPUTS}


@pytest.fixture(autouse=True)
def class_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Config, "scale", 2.0)


def check_calls(jitted: Any, read: Any, change: Any, holder: Holder, each: int) -> None:
    """Calls beside eager, with a change before each, or before every so many."""
    for call in range(14 * each):
        if call % each == 0 and call:
            change(holder, call)
        x = torch.randn(3)
        assert_same(jitted(x), read(holder, x))


@pytest.mark.parametrize("what", INPUTS)
@pytest.mark.parametrize("each", [1, 2], ids=["every call", "every other call"])
def test_a_number_that_keeps_changing_is_an_input(what: str, each: int) -> None:
    (read, change, _), holder = CHANGING[what], Holder()
    jitted = jit(lambda x: read(holder, x))
    with treeplay.settings.changed(max_rerecordings=3):
        check_calls(jitted, read, change, holder, each)
    made = jitted.statistics()
    assert made.recordings <= 3 and made.replays >= 14 * each - 4, jitted.explain()


@pytest.mark.parametrize(("read", "change", "name"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("each", [1, 2], ids=["every call", "every other call"])
def test_what_keeps_changing_is_refused_by_its_name(read: Any, change: Any, name: str, each: int) -> None:
    holder = Holder()
    jitted = jit(lambda x: read(holder, x), on_refusal="eager")
    with treeplay.settings.changed(max_rerecordings=3), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_calls(jitted, read, change, holder, each)
    made = jitted.statistics()
    assert made.refusals == 1, jitted.explain()
    assert made.recordings <= 5
    assert name in (made.keys[0].refusal or ""), jitted.explain()
    assert any(name in str(warning.message) for warning in caught)


@pytest.mark.parametrize(("read", "change", "name"), REFUSED.values(), ids=REFUSED)
def test_what_keeps_changing_is_raised_by_its_name_where_that_is_asked_for(read: Any, change: Any, name: str) -> None:
    holder = Holder()
    jitted = jit(lambda x: read(holder, x))
    with treeplay.settings.changed(max_rerecordings=3), pytest.raises(treeplay.Refusal, match=name):
        for call in range(20):
            if call:
                change(holder, call)
            x = torch.randn(3)
            assert_same(jitted(x), read(holder, x))


@pytest.mark.parametrize(("read", "change", "name"), CHANGING.values(), ids=CHANGING)
def test_what_changed_once_is_told_by_its_name(read: Any, change: Any, name: str) -> None:
    holder = Holder()
    jitted = jit(lambda x: read(holder, x))
    for call in range(10):
        if call == 5:
            change(holder, 7)
        x = torch.randn(3)
        assert_same(jitted(x), read(holder, x))
    causes = jitted.statistics().keys[0].rerecorded_because
    assert len(causes) == 1, jitted.explain()
    assert name in causes[0]
    assert "recorded anew" in jitted.explain()
    assert causes[0] in jitted.explain()


@pytest.mark.parametrize(
    ("first", "second"), [(2.0, 5.0), (2, 2.0), (True, 1), ("relu", "tanh"), (None, 3.0), ((1, 2), (1, 3))], ids=str
)
def test_the_values_before_and_after_are_told(first: Any, second: Any) -> None:
    holder = types.SimpleNamespace(table={"gain": first})
    jitted = jit(lambda x: x * 2 - len(str(holder.table["ga" + "in"])) * (3 if holder.table["gain"] is True else 4))
    for call in range(8):
        holder.table["gain"] = first if call < 4 else second
        x = torch.randn(3)
        jitted(x)
    text = jitted.explain()
    (line,) = (line for line in text.splitlines() if "recorded anew" in line)
    assert "gain" in line
    assert repr(first) in line and repr(second) in line


def test_what_changes_among_a_few_values_is_not_refused() -> None:
    holder = Holder()
    jitted = jit(lambda x: x * len(holder.cfg["n"]) - len(holder.cfg))
    for call in range(40):
        holder.cfg["n"] = "a" * (call % 4)
        x = torch.randn(3)
        assert_same(jitted(x), x * (call % 4) - 2)
    made = jitted.statistics()
    assert made.refusals == 0
    assert made.recordings == 4


def test_a_refused_program_may_be_recorded_again_after_a_reset() -> None:
    holder = Holder()
    jitted = jit(lambda x: x * len(holder.cfg["n"]) - 1, on_refusal="eager")
    with treeplay.settings.changed(max_rerecordings=3), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in range(20):
            holder.cfg["n"] = "a" * call
            jitted(torch.ones(3))
    assert jitted.statistics().refusals == 1
    jitted.reset()
    before = jitted.statistics().replays
    for _ in range(4):
        x = torch.randn(3)
        assert_same(jitted(x), x * 19 - 1)
    assert jitted.statistics().replays >= before + 3
