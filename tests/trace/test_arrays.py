"""NumPy arrays among the arguments: a program that makes tensors of them is recorded, and reads each call's arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import assert_same, jit

numpy = pytest.importorskip("numpy")

CONVERSIONS: dict[str, Callable[[Any], torch.Tensor]] = {
    "from_numpy": lambda x: torch.from_numpy(x) * 2,
    "as_tensor": lambda x: torch.as_tensor(x) - 1,
    "as_tensor of a dtype": lambda x: torch.as_tensor(x, dtype=torch.float32, device="cpu"),
    "tensor": lambda x: torch.tensor(x).add_(1),
    "tensor of a dtype": lambda x: torch.tensor(x, dtype=torch.float16),
    "if it is one": lambda x: torch.from_numpy(x) if isinstance(x, numpy.ndarray) else x,
    "shape": lambda x: torch.as_tensor(x, device=torch.device("cpu").type).reshape(x.shape[::-1]) * x.ndim + len(x),
}


@pytest.mark.parametrize("how", CONVERSIONS)
def test_each_call_reads_its_own_array(how: str) -> None:
    convert = CONVERSIONS[how]
    layer = nn.Linear(2, 2)

    def program(x: Any, *, scale: Any) -> torch.Tensor:
        with torch.no_grad():
            return layer(convert(x).flatten()[:2].float()) - torch.as_tensor(scale)

    jitted = jit(program)
    for call in range(5):
        x, scale = numpy.random.rand(2, 3).T if call % 2 else numpy.random.rand(3, 2), numpy.array(call, numpy.float32)
        assert_same(jitted(x, scale=scale), program(x, scale=scale))
    assert jitted.statistics().replays == 3
    assert jitted.statistics().recordings == 2  # two layouts


@pytest.mark.parametrize("kind", ["dict", "list", "tuple", "keyword", "deep"])
def test_arrays_in_containers_are_read_by_each_call(kind: str) -> None:
    make: dict[str, Callable[[Any, Any], tuple[tuple[Any, ...], dict[str, Any]]]] = {
        "dict": lambda x, y: (({"x": x, "y": y},), {}),
        "list": lambda x, y: (([x, y],), {}),
        "tuple": lambda x, y: (((x, y),), {}),
        "keyword": lambda x, y: ((), {"batch": {"x": x, "y": y}}),
        "deep": lambda x, y: (({"x": [x], "y": (y, 3)},), {}),
    }

    def program(batch: Any) -> torch.Tensor:
        x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
        x, y = (x[0], y[0]) if kind == "deep" else (x, y)
        return torch.as_tensor(x, dtype=torch.float32) * 2 - torch.from_numpy(y)

    jitted = jit(program)
    for _ in range(5):
        x, y = numpy.random.rand(3), numpy.random.rand(3)
        args, kwargs = make[kind](x, y)
        assert_same(jitted(*args, **kwargs), program(*args, **kwargs))
        inside = [*args, *kwargs.values()][0]
        inside = inside["x"] if isinstance(inside, dict) else inside[0]
        assert (inside[0] if kind == "deep" else inside) is x  # as it was given
    assert jitted.statistics().replays == 4


@pytest.mark.parametrize(
    "program",
    [
        lambda batch: (torch.as_tensor(batch["x"]) * 2, batch),
        lambda batch: (torch.as_tensor(batch["x"]) * 2, batch["x"]),
        lambda batch: (torch.as_tensor(batch.pop("x")) * 2, len(batch)),
        lambda batch: torch.as_tensor(batch["x"]) * (batch["x"].sum() if "x" in batch else 0),
        lambda batch: torch.as_tensor(next(iter(batch.values()))) - torch.as_tensor(numpy.stack([*batch.values()])[0]),
        lambda batch: batch.update(z=torch.as_tensor(batch["x"]) * 3) or batch["z"] - 1,
        lambda batch: batch.update(x=batch["x"] * 2) or torch.as_tensor(batch["x"]) - 1,
    ],
)
def test_whatever_is_done_with_a_container_of_arrays_is_eagers(program: Callable[[Any], Any]) -> None:
    jitted = jit(program, on_refusal="eager")
    for _ in range(5):
        x = numpy.random.rand(3)
        ours, eager = {"x": x.copy()}, {"x": x.copy()}
        assert_same(_plain(jitted(ours)), _plain(program(eager)))
        assert _plain(list(ours.items())) == _plain(list(eager.items()))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, (numpy.ndarray, torch.Tensor)) else value


def test_an_array_that_the_program_writes_to_is_written() -> None:
    def program(x: Any) -> torch.Tensor:
        return torch.from_numpy(x).mul_(2).sub_(1)

    jitted = jit(program)
    for call in range(4):
        x = numpy.full(3, float(call))
        found = jitted(x)
        assert x.tolist() == [call * 2.0 - 1] * 3
        x[0] = 7.0
        assert found[0] == 7  # it is the array's memory, as in eager


@pytest.mark.parametrize(
    "read", [lambda x: x.mean(), lambda x: x / 2, lambda x: x[0], lambda x: numpy.asarray(x), lambda x: x < 2]
)
def test_numpys_own_arithmetic_is_refused_at_its_line(read: Callable[[Any], Any]) -> None:
    def program(x: Any) -> torch.Tensor:
        return torch.as_tensor(read(x)) * 2

    jitted = jit(program)
    jitted(numpy.ones(3))
    with pytest.raises(treeplay.Refusal, match="NumPy computes with an argument") as caught:
        jitted(numpy.ones(3))
    assert caught.value.where is not None
    eager = jit(program, on_refusal="eager")
    for call in range(4):
        assert_same(eager(numpy.full(3, call)), program(numpy.full(3, call)))


def test_a_program_that_the_caller_differentiates_takes_tensors() -> None:
    layer = nn.Linear(3, 2)
    jitted = jit(lambda x: layer(torch.as_tensor(x)).sum(), on_refusal="eager")
    with pytest.warns(UserWarning, match="from_numpy"):
        for _ in range(3):
            jitted(numpy.ones(3, numpy.float32)).backward()
    assert layer.weight.grad.tolist() == [[3.0] * 3] * 2


class Keeper:
    last: Any = None


def asked(x: Any) -> torch.Tensor:
    if type(x) is numpy.ndarray:
        return torch.as_tensor(x) * 2
    return torch.as_tensor(x) + 1


def stored(x: Any) -> torch.Tensor:
    Keeper.last = x
    return torch.as_tensor(x) * 2


def returned(x: Any) -> Any:
    return torch.as_tensor(x) * 2, x


@pytest.mark.parametrize("program", [asked, stored, returned])
def test_what_would_see_that_it_is_no_array_runs_eagerly(program: Callable[[Any], Any]) -> None:
    jitted = jit(program, on_refusal="eager")
    for call in range(4):
        x = numpy.full(3, float(call))
        found, expected = jitted(x), program(x)
        assert type(found) is type(expected)
        assert_same(found[0], expected[0])
        assert program is not returned or found[1] is x
    assert jitted.statistics().replays == 0


def test_an_audit_makes_arrays_again() -> None:
    layer = nn.Linear(3, 2).requires_grad_(False)
    jitted = jit(lambda x: layer(torch.as_tensor(x, dtype=torch.float32)))
    for call in range(13):
        x = numpy.full(3, float(call))
        assert_same(jitted(x), layer(torch.as_tensor(x, dtype=torch.float32)))
    assert jitted.statistics().replays == 12


@pytest.mark.gpu
def test_a_program_on_a_gpu_moves_its_arrays_first_of_all() -> None:
    layer = nn.Linear(3, 2, device="cuda").requires_grad_(False)

    def first(x: numpy.ndarray) -> torch.Tensor:
        return layer(torch.as_tensor(x, device="cuda"))

    def later(x: numpy.ndarray) -> torch.Tensor:
        return layer((torch.as_tensor(x) * 2 - 1).to("cuda"))

    recorded, refused = jit(first), jit(later, on_refusal="eager")
    with pytest.warns(UserWarning, match="on the CPU in a program that computes on a GPU"):
        for call in range(6):
            x = numpy.full(3, float(call), numpy.float32)
            torch.testing.assert_close(recorded(x), first(x))
            torch.testing.assert_close(refused(x), later(x))
    assert recorded.statistics().keys[0].recordings[0].launch.stage == "recorded"
