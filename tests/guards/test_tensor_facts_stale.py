"""Tensors of which a program reads no element: only their dtype, shape, flags, identity, or that they are there."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from support import assert_same, jit
from support.follows import Story, follows

Tensor = torch.Tensor


def _set(**values: Any) -> Callable[[Any], None]:
    return lambda holder: vars(holder).update(values)


class Tagged(Tensor):
    """A kind of tensor of one's own."""


FACTS: dict[str, tuple[Callable[[Any, Tensor], Tensor], Callable[[], Tensor], Callable[[Any], Any]]] = {
    "dtype": (lambda h, x: x.to(h.t.dtype) * 2 - 1, lambda: torch.ones(3), _set(t=torch.ones(3).double())),
    "dtype by comparison": (
        lambda h, x: x * 2 if h.t.dtype == torch.float32 else x - 1,
        lambda: torch.ones(3),
        _set(t=torch.ones(3).half()),
    ),
    "is_floating_point": (
        lambda h, x: x * 2 if h.t.is_floating_point() else x - 1,
        lambda: torch.ones(3),
        _set(t=torch.ones(3).int()),
    ),
    "type_as": (lambda h, x: x.type_as(h.t) * 2 - 1, lambda: torch.ones(3), _set(t=torch.ones(3).double())),
    "shape": (lambda h, x: x * h.t.shape[0] - 1, lambda: torch.ones(3), _set(t=torch.ones(5))),
    "size": (lambda h, x: x * h.t.size(0) - 1, lambda: torch.ones(3), _set(t=torch.ones(5))),
    "length": (lambda h, x: x * len(h.t) - 1, lambda: torch.ones(3), _set(t=torch.ones(5))),
    "dim": (lambda h, x: x * h.t.dim() - 1, lambda: torch.ones(3), _set(t=torch.ones(3, 1))),
    "ndim": (lambda h, x: x * h.t.ndim - 1, lambda: torch.ones(3), _set(t=torch.ones(3, 1))),
    "numel": (lambda h, x: x * h.t.numel() - 1, lambda: torch.ones(3), _set(t=torch.ones(5))),
    "stride": (lambda h, x: x * h.t.stride(0) - 1, lambda: torch.ones(4), _set(t=torch.ones(8)[::2])),
    "is_contiguous": (
        lambda h, x: x * 2 if h.t.is_contiguous() else x - 1,
        lambda: torch.ones(4),
        _set(t=torch.ones(8)[::2]),
    ),
    "storage_offset": (
        lambda h, x: x * (h.t.storage_offset() + 2) - 1,
        lambda: torch.ones(3),
        _set(t=torch.ones(4)[1:]),
    ),
    "element_size": (lambda h, x: x * h.t.element_size() - 1, lambda: torch.ones(3), _set(t=torch.ones(3).double())),
    "device": (
        lambda h, x: x * 2 if h.t.device.type == "cpu" else x - 1,
        lambda: torch.ones(3),
        _set(t=torch.ones(3, device="meta")),
    ),
    "layout": (
        lambda h, x: x * 2 if h.t.layout is torch.strided else x - 1,
        lambda: torch.ones(3),
        _set(t=torch.ones(3).to_sparse()),
    ),
    "requires_grad": (
        lambda h, x: x * 2 if h.t.requires_grad else x - 1,
        lambda: torch.ones(3),
        lambda h: h.t.requires_grad_(),
    ),
    "is_leaf": (
        lambda h, x: x * 2 if h.t.is_leaf else x - 1,
        lambda: torch.ones(3),
        _set(t=torch.ones(3, requires_grad=True) * 2),
    ),
    "grad is None": (
        lambda h, x: x * 2 if h.t.grad is None else x - 1,
        lambda: torch.ones(3, requires_grad=True),
        lambda h: setattr(h.t, "grad", torch.ones(3)),
    ),
    "kind": (
        lambda h, x: x * 2 if isinstance(h.t, nn.Parameter) else x - 1,
        lambda: torch.ones(3),
        _set(t=nn.Parameter(torch.ones(3))),
    ),
    "type": (
        lambda h, x: x * 2 if type(h.t) is Tensor else x - 1,
        lambda: torch.ones(3),
        _set(t=torch.ones(3).as_subclass(Tagged)),
    ),
    "is_tensor": (lambda h, x: x * 2 if torch.is_tensor(h.t) else x - h.t, lambda: torch.ones(3), _set(t=3.0)),
    "isinstance": (lambda h, x: x * 2 if isinstance(h.t, Tensor) else x - h.t, lambda: torch.ones(3), _set(t=3.0)),
    "is None": (lambda h, x: x * 2 if h.t is None else x - 1, lambda: torch.ones(3), _set(t=None)),
    "is not None": (lambda h, x: x * 2 if h.t is not None else x - 1, lambda: torch.ones(3), _set(t=None)),
    "identity": (lambda h, x: x * 2 if h.t is h.same else x - 1, lambda: torch.ones(3), _set(t=torch.ones(3))),
    "no identity": (
        lambda h, x: x * 2 if h.t is not h.same else x - 1,
        lambda: torch.ones(3),
        _set(same=torch.ones(3)),
    ),
    "id": (lambda h, x: x * 2 if id(h.t) == id(h.same) else x - 1, lambda: torch.ones(3), _set(t=torch.ones(3))),
    "membership by identity": (
        lambda h, x: x * 2 if any(h.t is other for other in h.all) else x - 1,
        lambda: torch.ones(3),
        _set(t=torch.ones(3)),
    ),
    "key of a dict": (lambda h, x: x * h.rates.get(h.t, 5.0) - 1, lambda: torch.ones(3), _set(t=torch.ones(3))),
    "member of a set": (
        lambda h, x: x * 2 if h.t in set(h.rates) else x - 1,
        lambda: torch.ones(3),
        _set(t=torch.ones(3)),
    ),
    "same memory": (
        lambda h, x: x * 2 if h.t.data_ptr() == h.same.data_ptr() else x - 1,
        lambda: torch.ones(3),
        _set(t=torch.ones(3)),
    ),
    "same storage": (
        lambda h, x: x * 2 if h.t.untyped_storage()._cdata == h.same.untyped_storage()._cdata else x - 1,
        lambda: torch.ones(3),
        _set(t=torch.ones(3)),
    ),
    "zeros like it": (lambda h, x: x[0] - torch.zeros_like(h.t) - 1, lambda: torch.ones(3), _set(t=torch.ones(2, 3))),
    "new of it": (lambda h, x: x.sum() * h.t.new_ones(2) - 1, lambda: torch.ones(3), _set(t=torch.ones(3).double())),
    "an attribute of it": (
        lambda h, x: x * getattr(h.t, "rate", 2.0) - 1,
        lambda: torch.ones(3),
        lambda h: setattr(h.t, "rate", 5.0),
    ),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize(("read", "make", "change"), FACTS.values(), ids=FACTS)
@follows(may_refuse=True)
def test_a_fact_of_a_tensor(read: Any, make: Callable[[], Tensor], change: Callable[[Any], Any]) -> Story:
    tensor = make()
    holder = types.SimpleNamespace(t=tensor, same=tensor, all=[torch.zeros(3), tensor], rates={tensor: 2.0})
    yield lambda x: read(holder, x)
    change(holder)
    yield


NEVER_REFUSED = [
    "dtype",
    "shape",
    "requires_grad",
    "is None",
    "identity",
    "no identity",
    "kind",
    "key of a dict",
    "dim",
]


@pytest.mark.parametrize("name", NEVER_REFUSED)
@follows()
def test_a_fact_of_a_tensor_that_many_programs_read(name: str) -> Story:
    read, make, change = FACTS[name]
    tensor = make()
    holder = types.SimpleNamespace(t=tensor, same=tensor, all=[torch.zeros(3), tensor], rates={tensor: 2.0})
    yield lambda x: read(holder, x)
    change(holder)
    yield


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.register_buffer("mask", torch.ones(3))

    def typed(self, x: Tensor) -> Tensor:
        return x.to(next(self.parameters()).dtype) * 2 - 1

    def buffer_typed(self, x: Tensor) -> Tensor:
        return x.to(self.mask.dtype) * 2 - 1

    def trained(self, x: Tensor) -> Tensor:
        count = sum(p.requires_grad for p in self.parameters())
        return x * (count + 2) - 1

    def sized(self, x: Tensor) -> Tensor:
        return x * sum(p.numel() for p in self.parameters()) - len(self.inner.weight)


@pytest.mark.parametrize("entry", ["typed", "buffer_typed"])
@pytest.mark.parametrize("change", ["half", "double", "bfloat16"])
@follows()
def test_the_dtype_of_a_model(entry: str, change: str) -> Story:
    model = Model()
    yield getattr(model, entry)
    getattr(model, change)()
    yield
    model.float()
    yield


@pytest.mark.parametrize("how", ["parameter", "module", "attribute"])
@follows()
def test_parameters_that_are_frozen(how: str) -> Story:
    model = Model()
    yield model.trained
    if how == "parameter":
        model.inner.bias.requires_grad_(False)
    elif how == "module":
        model.inner.requires_grad_(False)
    else:
        model.inner.weight.requires_grad = False
    yield


@follows()
def test_a_parameter_of_another_size() -> Story:
    model = Model()
    yield model.sized
    model.inner = nn.Linear(3, 5)
    yield
    model.inner.weight = nn.Parameter(torch.ones(2, 3))
    yield
    model.inner.bias.data = torch.ones(7)
    yield


def test_an_argument_compared_by_identity_with_what_an_attribute_names() -> None:
    first, second = torch.randn(3), torch.randn(3)
    holder = types.SimpleNamespace(best=first)

    def program(x: Tensor) -> Tensor:
        return x * 2 - 1 if x is holder.best else x * 5

    jitted = jit(program)
    for best in (first, second, first):
        holder.best = best
        for x in (first, first, first, second, second, second):
            assert_same(jitted(x), program(x))
    assert jitted.statistics().refusals == 0
    assert jitted.statistics().replays >= 6


def test_an_attribute_of_an_argument() -> None:
    def program(x: Tensor) -> Tensor:
        return x * getattr(x, "rate", 2.0) - 1

    jitted = jit(program)
    for rate in (3.0, 4.0, None):
        for _ in range(4):
            x = torch.randn(3)
            if rate is not None:
                x.rate = rate  # type: ignore[attr-defined]
            assert_same(jitted(x), program(x))
    assert jitted.statistics().refusals == 0
    assert jitted.statistics().replays >= 6


@follows()
def test_a_tied_weight_that_is_untied() -> Story:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight

    def use(x: Tensor) -> Tensor:
        return first(x) * 2 if second.weight is first.weight else first(x) - second(x)

    yield use
    second.weight = nn.Parameter(torch.ones(3, 3))
    yield
    first.weight = second.weight
    yield


@follows()
def test_gradients_that_are_there_or_not() -> Story:
    model = nn.Linear(3, 3)
    yield lambda x: x * 2 if all(p.grad is None for p in model.parameters()) else x - 1
    model(torch.ones(1, 3)).sum().backward()
    yield
    model.zero_grad()
    yield


@follows()
def test_an_attribute_that_appears_on_state_that_was_replaced() -> Story:
    holder = types.SimpleNamespace(mask=torch.full((3,), 1.5))

    def program(x: Tensor) -> Tensor:
        return x * holder.mask - (2.0 if getattr(holder.mask, "mark", None) else 1.0)

    yield program
    holder.mask = torch.full((3,), 0.5)
    yield
    holder.mask.mark = True  # type: ignore[attr-defined]
    yield
    holder.mask = torch.full((3,), 2.5)
    yield


def test_an_attribute_that_appears_where_the_state_is_replaced_before_each_call() -> None:
    holder = types.SimpleNamespace(mask=torch.full((3,), 1.5))

    def make(mask: Tensor) -> tuple[Any, Any]:
        def program(x: Tensor) -> Tensor:
            return x * mask - (2.0 if getattr(mask, "mark", None) else 1.0)

        def put(value: Tensor) -> None:
            nonlocal mask
            mask = value

        return program, put

    program, put = make(holder.mask)
    jitted, x = jit(program), torch.ones(3)
    for call in range(8):
        fresh = torch.full((3,), float(call))
        if call > 5:
            fresh.mark = True  # type: ignore[attr-defined]
        put(fresh)
        assert_same(jitted(x), program(x))
    assert jitted.statistics().recordings == 2 and jitted.statistics().refusals == 0
