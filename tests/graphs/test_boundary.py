"""Errors of our own while callables are recorded or called: nothing is left behind, and users' own pass as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import assert_same
from support.faults import raising_once, surroundings
from treeplay.errors import InternalError
from treeplay.graphs import callables, make_graphed_callables
from treeplay.graphs import record as record_module
from treeplay.observe import counters, internal_errors


def scaled(x: torch.Tensor, scale: int = 1) -> torch.Tensor:
    return x * scale - 1


def broken(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException) -> None:
    monkeypatch.setattr(owner, name, raising_once(error, getattr(owner, name)))


PLACES: dict[str, tuple[Any, str]] = {
    "prepare": (callables, "_body"),
    "warm up": (callables, "warm_up"),
    "record": (record_module, "_take_forward"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", [KeyError("told to"), MemoryError("told to"), KeyboardInterrupt("told to")])
def test_an_error_while_callables_are_made_leaves_no_mark(
    dev: str, place: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, before = torch.ones(3, device=dev), surroundings()
    broken(monkeypatch, *PLACES[place], error)
    with pytest.raises(InternalError if isinstance(error, Exception) else KeyboardInterrupt, match="told to"):
        make_graphed_callables(scaled, (x,))
    assert surroundings() == before and len(internal_errors()) == isinstance(error, Exception)
    graphed = make_graphed_callables(scaled, (x.clone(),))
    assert_same(graphed(x * 2), x * 2 - 1)


@pytest.mark.parametrize("on_mismatch", ["eager", "raise"])
def test_an_error_at_a_call_with_new_constants_runs_it_as_it_is_or_is_raised(
    dev: str, on_mismatch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(3, device=dev)
    graphed = make_graphed_callables(scaled, (x,), on_mismatch=on_mismatch)
    broken(monkeypatch, record_module, "_take_forward", KeyError("told to"))
    if on_mismatch == "raise":
        with pytest.raises(InternalError, match="told to"):
            graphed(x, scale=3)
    else:
        with pytest.warns(UserWarning, match="because of an error of its own"):
            assert_same(graphed(x, scale=3), x * 3 - 1)
        assert graphed.statistics().eager_calls == 1
    assert counters["internal errors"] == {"KeyError": 1} and "fault.py" in internal_errors()[0]
    assert_same(graphed(x * 2, scale=3), x * 6 - 1)
    assert graphed.statistics().recordings == 2


@pytest.mark.parametrize("kind", [KeyError, RuntimeError])
def test_what_a_callable_raises_is_its_own(dev: str, kind: Callable[..., Exception]) -> None:
    def mine(x: torch.Tensor) -> torch.Tensor:
        raise kind("mine")

    with pytest.raises(kind, match="mine"):  # type: ignore[call-overload]
        make_graphed_callables(mine, (torch.ones(3, device=dev),))
    assert not internal_errors()
