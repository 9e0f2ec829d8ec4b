"""Random operators as functions of seed and offset: both are read before each direction, and the offset is moved on."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._decomp.decompositions_for_rng import PhiloxStateTracker
from torch._prims_common import CUDARngStateHelper

from treeplay.errors import Refusal
from wrap.aot.oracle import min_cut, numbers, wrapped
from wrap.aot.pairs import pair

pytestmark = pytest.mark.programs

IS_GPU = torch.cuda.is_available()


class Generator:
    """Stands for a CUDA device's generator: a seed, and an offset that grows."""

    def __init__(self) -> None:
        self.seed, self.offset = 3, 8


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Generator]:
    made = Generator()

    def state(mode: Any = None) -> Any:
        with mode or contextlib.nullcontext():
            return torch.tensor(made.seed), torch.tensor(made.offset)

    monkeypatch.setattr(CUDARngStateHelper, "get_torch_state_as_tuple", staticmethod(state))
    monkeypatch.setattr(CUDARngStateHelper, "set_new_offset", staticmethod(lambda o: setattr(made, "offset", int(o))))
    yield made


def drawing(x: Any) -> list[Any]:
    """Uses seed and offset as a random operator would, and four numbers of the generator."""
    if not PhiloxStateTracker.running_state.seed.numel():  # torch looks at the function before it has a generator
        return [x * 2.5]
    seed, offset = PhiloxStateTracker.get_state_as_tuple()
    PhiloxStateTracker.advance_offset(4)
    return [x * seed + offset]


def test_W17_seed_and_offset_go_in_and_the_new_offset_comes_out(generator: Generator) -> None:
    counts: list[tuple[int, int]] = []

    def counting(module: Any, inputs: Any) -> Any:
        def run(args: list[Any]) -> Any:
            values = tuple(args)
            args.clear()
            result = module(*values)
            counts.append((len(values), len(result)))
            return result

        return run

    wrapped(lambda x: [x * 2.5], lambda: [numbers(2)], inference=counting)([numbers(2)])
    call = wrapped(drawing, lambda: [numbers(2)], functional_random=True, inference=counting)
    for offset in (8, 12):
        (y,) = call([numbers(2)])
        torch.testing.assert_close(y, numbers(2) * 3 + offset)
    assert generator.offset == 16
    assert counts == [(1, 1), (3, 2), (3, 2)], "two more go in, and one more comes out"
    generator.seed, generator.offset = 5, 0
    torch.testing.assert_close(call([numbers(2)])[0], numbers(2) * 5)


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_W17_each_direction_counts_on_its_own(generator: Generator, partition: str) -> None:
    changes = {"partition": min_cut} if partition == "min_cut" else {}
    seen: dict[str, int] = {}

    def counting(name: str) -> Any:
        def compiler(module: Any, inputs: Any) -> Any:
            def run(args: list[Any]) -> Any:
                values = tuple(args)
                args.clear()
                assert len(values) == len(inputs)
                result = module(*values)
                seen[name] = len(result)
                return result

            return run

        return compiler

    changes |= {"forward": counting("forward"), "backward": counting("backward")}
    call = wrapped(lambda x: [drawing(x)[0].sin()], lambda: [numbers(2, grad=True)], functional_random=True, **changes)
    x = numbers(2, grad=True)
    (y,) = call([x])
    assert generator.offset == 12 and len(call.plan.results) == 1
    y.sum().backward()
    assert generator.offset == 12 and seen["backward"] == 2
    torch.testing.assert_close(x.grad, (numbers(2) * 3 + 8).cos() * 3)
    node = call.__globals__["run"].__self__
    assert "args += random_values()" in inspect.getsource(node.backward)


@pytest.mark.skipif(IS_GPU, reason="needs a machine without a GPU")
def test_W17_without_the_device_it_is_refused_at_the_trace() -> None:
    with pytest.raises(Refusal, match="CUDA"):
        wrapped(lambda x: [x * 2], lambda: [numbers(2)], functional_random=True)


def test_W17_an_operator_that_draws_by_itself_is_refused(generator: Generator) -> None:
    with pytest.raises(Refusal, match=r"randn_like.*no function of seed"):
        wrapped(lambda x: [torch.randn_like(x) * x], lambda: [numbers(2)], functional_random=True)


def test_W17_beside_pairs_it_is_refused(generator: Generator) -> None:
    with pytest.raises(Refusal):
        wrapped(lambda x: [x * 2], lambda: [pair(2)], functional_random=True)


@pytest.mark.gpu
@pytest.mark.skipif(not IS_GPU, reason="needs an NVIDIA GPU")
def test_W17_two_calls_are_two_draws_of_eager() -> None:
    def function(x: Any) -> list[Any]:
        return [x * torch.rand_like(x) + torch.rand_like(x)]

    call = wrapped(function, lambda: [torch.ones(64, device="cuda")], functional_random=True)
    results = []
    for run in (function, lambda x: call([x])):
        for seed in (4, 9, 4):
            torch.manual_seed(seed)
            drawn = [run(torch.ones(64, device="cuda"))[0] for _ in range(2)]
            results.append([*drawn, torch.cuda.get_rng_state(), torch.rand(2, device="cuda")])
    for eager, ours in zip(results[:3], results[3:], strict=True):
        assert all(torch.equal(mine, wanted) for mine, wanted in zip(ours, eager, strict=True))
    assert not torch.equal(results[3][0], results[4][0]) and torch.equal(results[3][0], results[5][0])


@pytest.mark.gpu
@pytest.mark.skipif(not IS_GPU, reason="needs an NVIDIA GPU")
def test_W17_dropout_and_its_gradient_are_eagers() -> None:
    def function(x: Any) -> list[Any]:
        return [torch.where(torch.rand_like(x) > 0.5, x * 2, 0.0).sin()]

    def make() -> list[Any]:
        return [torch.ones(64, device="cuda", requires_grad=True)]

    call = wrapped(function, make, functional_random=True)
    results = []
    for run in (lambda args: function(*args), call):
        torch.manual_seed(6)
        (x,) = make()
        first, second = run([x])[0], run([x])[0]
        (first.sum() + second.sum() * 3).backward()
        results.append([first, second, x.grad])
    for mine, wanted in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(mine, wanted)
