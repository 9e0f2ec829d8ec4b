"""Objects among the arguments and the results that are containers of tensors: batches as frameworks and users make them."""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same, jit

CALLS = 5


class Batch:
    """Hashed by identity, as most objects: a loader makes another one for each call."""

    def __init__(self, x: Any, y: Any, **more: Any) -> None:
        self.x = x
        self.y = y
        vars(self).update(more)

    def scaled(self) -> torch.Tensor:
        out: torch.Tensor = self.x * 2 - self.y
        return out


class Unhashable(Batch):
    def __eq__(self, other: object) -> bool:
        return self is other


class Called(Unhashable):
    """As a batch of PyG: its entries are asked for by calling it, too."""

    def __call__(self, *names: str) -> list[torch.Tensor]:
        return [getattr(self, name) for name in names]


class Slots:
    __slots__ = ("out", "x", "y")

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y, self.out = x, y, None

    def __eq__(self, other: object) -> bool:
        return self is other


class Encoding(collections.UserDict[str, Any]):
    """As the result of a tokenizer: a dictionary in an attribute, beside what is another object in each call."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__(x=x, y=y)
        self.encodings = [object()]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


class Attributes(dict[str, Any]):
    __getattr__ = dict.__getitem__

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__(x=x, y=y)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
KINDS = [Batch, Unhashable, Slots, Called, Encoding, Attributes, lambda x, y: SimpleNamespace(x=x, y=y)]


def tensors(call: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(call)).to(device)
    return x, y


def check(program: Any, make: Callable[[int], Any], replays: int, look: Callable[[Any], Any] = lambda out: out) -> Any:
    """Calls with an argument made anew give what eager gives, and leave the argument as eager does."""
    jitted = jit(program)
    for call in range(CALLS):
        mine, theirs = make(call), make(call)
        assert_same(look(jitted(mine)), look(program(theirs)))
        assert_same(read(mine), read(theirs))
    assert jitted.statistics().replays == replays
    return jitted


def read(value: Any) -> list[Any]:
    if isinstance(value, Slots):
        return [value.out, value.x]
    parts = value if isinstance(value, dict) else getattr(value, "data", None) or vars(value)
    return [(name, part) for name, part in parts.items() if isinstance(part, (torch.Tensor, float))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_objects_that_are_made_for_each_call_are_read_as_containers(kind: Any, device: str) -> None:
    late = kind is Batch  # of objects that may be compared it takes a second one to know
    replays = CALLS - 1 - late - (device == "cuda")
    jitted = check(lambda batch: batch.x * 2 - batch.y, lambda call: kind(*tensors(call, device)), replays)
    launch = jitted.statistics().keys[-1].recordings[-1].launch
    assert device == "cpu" or launch.stage == "recorded"


@pytest.mark.parametrize("kind", KINDS[1:4])
def test_what_a_program_assigns_is_there_after_a_replay(kind: Any) -> None:
    def program(batch: Any) -> Any:
        batch.out = batch.x * 2 - batch.y
        batch.x = batch.out + 1
        return batch

    jitted = check(program, lambda call: kind(*tensors(call)), CALLS - 1, lambda out: [out.out, out.x])
    batch = kind(*tensors(9))
    assert jitted(batch) is batch


def test_an_argument_that_is_called() -> None:
    check(lambda batch: batch("x")[0] * 2 - batch("y", "x")[0], lambda call: Called(*tensors(call)), CALLS - 1)


READS: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda batch: batch.x * batch.scale,
    "getattr": lambda batch: batch.x * getattr(batch, "".join(["sc", "ale"])),
    "vars": lambda batch: batch.x * vars(batch)["scale"],
    "copy": lambda batch: batch.x * copy.copy(batch).scale,
    "behind": lambda batch: batch.x * object.__getattribute__(batch, "scale"),
    "hasattr": lambda batch: batch.x * 3 if hasattr(batch, "other") else batch.y,
}


@pytest.mark.parametrize("how", READS)
def test_a_value_that_is_read_belongs_to_a_recording(how: str) -> None:
    def make(call: int) -> Unhashable:
        return Unhashable(*tensors(call), scale=float(call % 2), **{"other": 1} if call % 2 else {})

    jitted = check(READS[how], make, CALLS - 2)
    assert jitted.statistics().recordings == 2


def test_a_value_that_is_not_read_may_be_another_one_in_each_call() -> None:
    def make(call: int) -> Unhashable:
        return Unhashable(*tensors(call), path=f"{call}.png", handle=object(), numbers=[call])

    assert check(Unhashable.scaled, make, CALLS - 1).statistics().recordings == 1


def test_a_value_that_is_read_and_never_the_same_is_named() -> None:
    jitted = jit(lambda batch: batch.x * batch.scale, on_refusal="eager")
    for call in range(4):
        jitted(Unhashable(*tensors(call), scale=float(call)))
    assert "args[0].scale: another value" in jitted.explain()


def test_a_method_that_is_replaced_is_seen() -> None:
    class Other(Batch):
        def __eq__(self, other: object) -> bool:
            return self is other

        def scaled(self) -> torch.Tensor:
            return self.x - 1  # type: ignore[no-any-return]

    jitted = jit(lambda batch: batch.scaled())
    for call in range(3):
        jitted(Other(*tensors(call)))
    Other.scaled = lambda self: self.x - 7  # type: ignore[method-assign]
    assert_same(jitted(Other(*tensors(3))), tensors(3)[0] - 7)


def test_objects_of_the_program_come_back_as_they_would_in_eager() -> None:
    def program(batch: Any) -> Any:
        made = Batch(batch.x * 2, Slots(batch.x - 1, None), name="made", given=batch)
        return made, collections.defaultdict[str, Any](list, {"again": made})

    jitted = jit(program)
    for call in range(CALLS):
        batch = Unhashable(*tensors(call))
        made, table = jitted(batch)
        assert (
            type(made) is Batch
            and vars(made)["name"] == "made"
            and vars(made)["given"] is batch
            and table["again"] is made
        )
        assert table["no such"] == []
        assert_same((made.x, made.y.x), (batch.x * 2, batch.x - 1))
    assert jitted.statistics().replays == CALLS - 1


def test_the_caller_differentiates_what_was_read_from_an_object() -> None:
    layer = torch.nn.Linear(4, 2)
    jitted = jit(lambda batch: Batch(layer(batch.x), batch.x.device))  # a device is another object each time
    for call in range(3):
        batch = Unhashable(tensors(call)[0].requires_grad_(), None)
        gradients = torch.autograd.grad(jitted(batch).x.square().sum(), [batch.x, *layer.parameters()])
        expected = torch.autograd.grad(layer(batch.x).square().sum(), [batch.x, *layer.parameters()])
        assert_same(gradients, expected)
    assert jitted.statistics().replays == 2


def test_an_object_that_comes_again_counts_as_itself() -> None:
    keep = Batch(*tensors(0))
    jitted = jit(Batch.scaled)
    for call in range(4):
        keep.x, keep.y = tensors(call)
        assert_same(jitted(keep), keep.x * 2 - keep.y)
    assert jitted.statistics().replays == 3


def test_a_numpy_array_in_an_object_is_refused_with_an_advice_that_works() -> None:
    @dataclasses.dataclass
    class Batch:
        x: Any

    arrays = [value.numpy() for value in tensors(0)]
    with pytest.raises(treeplay.Refusal, match=r"pass torch.from_numpy\(array\)"):
        jit(lambda batch: torch.from_numpy(batch.x) * 2)(Batch(arrays[0]))
    jitted = jit(lambda x: x * 2 - 1)
    for array in (*arrays, arrays[0]):
        assert_same(jitted(torch.from_numpy(array)), torch.from_numpy(array) * 2 - 1)
    assert jitted.statistics().replays == 2


def test_objects_whose_classes_name_no_module_are_followed_like_others() -> None:
    """Of code that was executed without a `__name__`."""
    names: dict[str, Any] = {"torch": torch}
    exec(
        "Net = type('Net', (torch.nn.Module,), {'forward': lambda self, x: x * self.rate - 1})\n"
        "Base = type('Base', (), {})\n"
        "Plain = type('Plain', (Base,), {})\n",
        names,
    )
    net, plain = names["Net"](), names["Plain"]()
    net.rate, plain.rate = 2.0, 3.0
    jitted, program = treeplay.jit(net, lower="aten"), treeplay.jit(lambda x: x * plain.rate - 1, lower="aten")
    for _ in range(3):
        assert (jitted(torch.ones(1)).item(), program(torch.ones(1)).item()) == (1.0, 2.0)
    net.rate, plain.rate = 5.0, 7.0
    assert (jitted(torch.ones(1)).item(), program(torch.ones(1)).item()) == (4.0, 6.0)
    assert program.statistics().replays >= 2
