"""What only the first call does: fakes for whoever traces on, and a look at custom operators."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from treeplay.errors import Refusal
from wrap.aot.oracle import boxed, numbers, wrapped
from wrap.aot.pairs import pair

LIBRARY = torch.library.Library("treeplay_aliases", "DEF")
LIBRARY.define("same(Tensor x) -> Tensor")
LIBRARY.define("said(Tensor(a) x) -> Tensor(a)")
LIBRARY.define("both(Tensor x) -> (Tensor, Tensor)")
LIBRARY.define("fine(Tensor x) -> Tensor")
LIBRARY.define("write(Tensor(a!) x) -> ()")


def _both(x: torch.Tensor) -> Any:
    y = x + 1
    return y, y.view(-1)


def _write(x: torch.Tensor) -> None:
    x.mul_(2).sub_(1)


for name, function in {"same": lambda x: x, "said": lambda x: x, "both": _both, "fine": lambda x: x + 1}.items():
    LIBRARY.impl(name, function, "CPU")
LIBRARY.impl("same", lambda x: torch.empty_like(x), "Meta")
LIBRARY.impl("said", lambda x: x, "Meta")
LIBRARY.impl("both", lambda x: (torch.empty_like(x), torch.empty_like(x.view(-1))), "Meta")
LIBRARY.impl("fine", lambda x: torch.empty_like(x), "Meta")
LIBRARY.impl("write", _write, "CPU")
LIBRARY.impl("write", lambda x: None, "Meta")
OPS = torch.ops.treeplay_aliases


def warned(call: Any, *args: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(list(args))
    return [str(item.message) for item in caught if "custom operator" in str(item.message)]


@pytest.mark.parametrize(("name", "said"), [("same", "an argument"), ("both", "another result")])
def test_W47_an_alias_that_the_schema_denies_is_warned_of_once(name: str, said: str) -> None:
    def function(x: Any) -> Any:
        found = getattr(OPS, name)(x)
        return [(found[0] if isinstance(found, tuple) else found) * 2]

    call = wrapped(function, lambda: [numbers(2)])
    (text,) = warned(call, numbers(2))
    assert f"treeplay_aliases.{name}" in text and said in text and "Fix: " in text
    assert warned(call, numbers(2)) == []


def test_W47_later_calls_pay_nothing() -> None:
    runs: list[Any] = []
    call = wrapped(
        lambda x: [OPS.same(x) * 2], lambda: [numbers(2)], inference=lambda *a: runs.append(boxed(*a)) or runs[0]
    )
    warned(call, numbers(2))
    assert call.__globals__["run"] is runs[0]


def test_W47_in_training_too() -> None:
    call = wrapped(lambda x, w: [OPS.same(x) * w], lambda: [numbers(2), numbers(2, grad=True)])
    assert len(warned(call, numbers(2), numbers(2, grad=True))) == 1
    assert warned(call, numbers(2), numbers(2, grad=True)) == []


def test_W47_as_an_error() -> None:
    call = wrapped(lambda x: [OPS.same(x) * 2], lambda: [numbers(2)], alias_check="raise")
    with pytest.raises(RuntimeError, match=r"treeplay_aliases\.same"):
        call([numbers(2)])


def test_W47_an_operator_that_returns_what_its_schema_says_is_not_warned_of() -> None:
    assert warned(wrapped(lambda x: [OPS.fine(x) * 2], lambda: [numbers(2)]), numbers(2)) == []


def test_W47_an_alias_in_the_schema_is_refused_by_the_trace_and_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Refusal, match="alias annotations"):
            wrapped(lambda x: [OPS.said(x) * 2], lambda: [numbers(2)])


def test_W47_it_can_be_switched_off_and_leaves_out_pairs() -> None:
    assert warned(wrapped(lambda x: [OPS.same(x) * 2], lambda: [numbers(2)], alias_check="off"), numbers(2)) == []
    call = wrapped(lambda x, y: [OPS.same(x) * 2, y * 2], lambda: [numbers(2), pair(2)])
    assert warned(call, numbers(2), pair(2)) == []


@pytest.mark.parametrize("grad", [False, True])
def test_W20_the_first_call_computes_nothing_if_the_trace_asks_for_it(grad: bool) -> None:
    ran: list[Any] = []

    def compiler(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)
        return lambda args: (ran.append(1), run(args))[1]

    context = TracingContext(FakeTensorMode())
    context.fakify_first_call = True
    with tracing(context):
        call = wrapped(
            lambda x: [x.t() * 2, 3], lambda: [numbers(2, 3, grad=grad)], inference=compiler, forward=compiler
        )
    first = call([numbers(2, 3, grad=grad)])
    assert isinstance(first[0], FakeTensor) and first[0].shape == (3, 2) and first[0].stride() == (1, 3)
    assert first[1] == 3 and first[0].requires_grad is grad and ran == []
    y, number = call([numbers(2, 3, grad=grad)])
    assert ran == [1] and number == 3 and torch.equal(y, numbers(2, 3).t() * 2) and not isinstance(y, FakeTensor)
    if grad:
        y.sum().backward()


def test_W20_without_being_asked_the_first_call_is_real() -> None:
    with tracing(TracingContext(FakeTensorMode())):
        call = wrapped(lambda x: [x * 2], lambda: [numbers(2)])
    assert torch.equal(call([numbers(2)])[0], numbers(2) * 2)


def test_a_custom_operator_that_writes_is_looked_at_with_what_calls_it() -> None:
    def function(x: Any, w: Any) -> Any:
        OPS.write(x)
        return [OPS.fine(x) * w]

    x, w = numbers(2), numbers(2, grad=True)
    wanted = numbers(2) * 2 - 1
    (result,) = wrapped(function, lambda: [numbers(2), numbers(2, grad=True)])([x, w])
    assert torch.equal(x, wanted) and torch.equal(result, (wanted + 1) * w)
