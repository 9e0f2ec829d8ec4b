"""Programs that give a number which varies to what takes numbers alone: it gets the number, also where the program would handle
the error that a symbol causes there."""

from __future__ import annotations

import contextlib
import copy
import datetime
import decimal
import functools
import inspect
import json
import pickle
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import treeplay
from support import assert_same, jit


class Counts:
    """State that a program steps."""

    def __init__(self) -> None:
        self.n, self.w = 0, 1.0
        self.made: Any = None


Give = Callable[[Any, Any], Any]
GIVEN: dict[str, Give] = {
    "to json": lambda n, w: json.dumps({"n": n, "w": [w]}),
    "to json, with what takes the rest": lambda n, w: json.dumps({"n": n}, default=str),
    "to json, indented": lambda n, w: json.dumps({"w": w}, indent=1),
    "to a decimal": lambda n, w: str(decimal.Decimal(w)),
    "to a span of time": lambda n, w: datetime.timedelta(days=w).total_seconds(),
    "to pickle": lambda n, w: pickle.dumps((n, w)),
    "to struct": lambda n, w: struct.pack("if", n, w),
    "to a format": lambda n, w: f"{n:03d} {w:.3f}",
    "for a method": lambda n, w: (n.to_bytes(2, "big"), n.bit_length(), w.is_integer()),
    "for an attribute": lambda n, w: n.real - w.imag,
    "for bits": lambda n, w: (n & 3, 4 | n, n ^ 5, ~n, n << 2, 64 >> n),
    "to an operator that raises in eager too": lambda n, w: len(n),
}


def handled(give: Give, s: Counts) -> Any:
    try:
        return give(s.n, s.w)
    except (TypeError, AttributeError):
        return "handled"


def suppressed(give: Give, s: Counts) -> Any:
    with contextlib.suppress(TypeError):
        return give(s.n, s.w)
    return "suppressed"


@pytest.mark.parametrize("calls", [handled, suppressed], ids=["handled", "suppressed"])
@pytest.mark.parametrize("what", GIVEN)
def test_what_takes_numbers_alone_gets_the_number(what: str, calls: Callable[[Give, Counts], Any]) -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.n, s.w = s.n + 1, s.w * 0.5
        s.made = calls(GIVEN[what], s)
        return x * s.n - 1

    mine, twin = Counts(), Counts()
    step = jit(lambda x: program(mine, x), on_refusal="eager")
    for call in range(6):
        x = torch.arange(3.0) + call
        assert_same(step(x), program(twin, x))
        assert vars(mine) == vars(twin)


def test_the_line_is_told_that_gives_it_away() -> None:
    counts = Counts()

    def program(x: Tensor) -> Tensor:
        counts.n += 1
        try:
            counts.made = str(decimal.Decimal(counts.w * counts.n))  # gives it away
        except TypeError:
            counts.made = "handled"
        return x * counts.n - 1

    step = treeplay.jit(program, lower="aten")
    with pytest.warns(UserWarning, match="it needs the number itself at") as told:
        for _ in range(5):
            step(torch.ones(2))
    line = (
        inspect.getsource(program)
        .splitlines()
        .index("            counts.made = str(decimal.Decimal(counts.w * counts.n))  # gives it away")
    )
    assert f"itself at {__file__}:{inspect.getsourcelines(program)[1] + line}" in str(told[0].message)


def test_a_number_among_the_arguments_too() -> None:
    def program(x: Tensor, w: float) -> Tensor:
        try:
            made = float(decimal.Decimal(w))
        except TypeError:
            made = -1.0
        return x * made - 1

    step = jit(program, on_refusal="eager")
    for w in (0.5, 0.25, 0.125, 0.75):
        x = torch.arange(3.0)
        assert_same(step(x, w), program(x, w))


@pytest.mark.parametrize("what", GIVEN)
@pytest.mark.parametrize(
    "calls", [handled, suppressed, lambda give, s: give(s.n, s.w)], ids=["handled", "suppressed", "raised"]
)
def test_a_rate_too(what: str, calls: Callable[[Give, Counts], Any]) -> None:
    if what == "to an operator that raises in eager too" and calls not in (handled, suppressed):
        pytest.skip("it raises")

    def made() -> tuple[Any, Any, Counts]:
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([parameter], lr=0.5)
        s = Counts()
        s.n = 3

        def program(x: Tensor) -> Tensor:
            (parameter * x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            s.w = optimizer.param_groups[0]["lr"]
            s.made = repr(calls(GIVEN[what], s))
            return parameter.detach().clone()

        return program, optimizer, s

    (mine, my_optimizer, my_state), (twin, its_optimizer, its_state) = made(), made()
    step = jit(mine, on_refusal="eager")
    for call in range(6):
        for optimizer in (my_optimizer, its_optimizer):
            optimizer.param_groups[0]["lr"] = 0.5 / (1 + call // 2)
        x = torch.arange(3.0) + call
        assert_same(step(x), twin(x))
        assert vars(my_state) == vars(its_state)


def test_a_program_that_handles_other_errors_keeps_its_numbers() -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.n += 1
        try:
            made = len(x.shape) * {}["there is none"]
        except Exception:
            made = s.n * 2
        return x * made - 1

    mine, twin = Counts(), copy.deepcopy(Counts())
    step = jit(lambda x: program(mine, x))
    for call in range(6):
        x = torch.arange(3.0) + call
        assert_same(step(x), program(twin, x))
    assert step.statistics().recordings == 1


@functools.lru_cache
def kernel_of(size: int) -> Tensor:
    return torch.ones(size) * 2


def kept_by_hand(s: Counts) -> Tensor:
    kernels = s.__dict__.setdefault("kernels", {})
    if s.n not in kernels:
        kernels[s.n] = torch.ones(s.n) * 2
    kernel: Tensor = kernels[s.n]
    return kernel


@pytest.mark.parametrize(
    "kernel", [kept_by_hand, lambda s: kernel_of(s.n)], ids=["in a dict", "by a function that keeps its results"]
)
def test_a_size_that_selects_what_is_kept_leaves_other_numbers_inputs(kernel: Callable[[Counts], Tensor]) -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        made = x[: s.n] * 3 - kernel(s) * s.w
        s.w += 0.25
        return made

    mine, twin = Counts(), Counts()
    mine.n = twin.n = 4
    step = jit(lambda x: program(mine, x))
    for call in range(12):
        if call == 4:
            mine.n = twin.n = 3
        x = torch.arange(4.0) + call
        assert_same(step(x), program(twin, x))
    assert step.statistics().replays >= 8


@pytest.mark.parametrize(
    "give", [lambda s: json.dumps({"w": s.w}), lambda s: float(decimal.Decimal(s.w))], ids=["held", "of its class"]
)
def test_a_refusal_names_the_number_that_is_needed(give: Callable[[Counts], Any]) -> None:
    def program(s: Counts, x: Tensor) -> Tensor:
        s.n += 1
        s.w *= 0.5
        s.made = give(s)
        return x * s.n - s.w

    mine = Counts()
    step = treeplay.jit(lambda x: program(mine, x), lower="aten")
    with pytest.warns(UserWarning, match=r"\.w: the program changes a Python value.*it needs the number itself at"):
        for _ in range(6):
            step(torch.ones(2))


def test_a_number_among_the_arguments_stays_an_input_beside_one_of_the_state_that_is_needed() -> None:
    def program(s: Counts, x: Tensor, w: float) -> Tensor:
        return x * float(decimal.Decimal(s.n)) - w

    mine, twin = Counts(), Counts()
    step = jit(lambda x, w: program(mine, x, w))
    for call in range(12):
        mine.n = twin.n = call // 4
        x = torch.arange(3.0) + call
        assert_same(step(x, call / 7), program(twin, x, call / 7))
    assert step.statistics().replays >= 5
