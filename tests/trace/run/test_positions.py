"""Writes at a position that a tensor tells are recorded; reads there are refused, with the form that is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import treeplay
from support import assert_same, jit


class Ring:
    """What a program writes to, and where."""

    def __init__(self, dtype: torch.dtype = torch.float32, kind: torch.dtype = torch.int64) -> None:
        self.rows = (torch.arange(12.0).view(4, 3) / 7).to(dtype)
        self.at = torch.zeros((), dtype=kind)
        self.scale = 1.0


Write = Callable[[Ring, Tensor], None]


def both(write: Write, ring: Callable[[], Ring] = Ring, *, positions: tuple[int, ...] = (0, 1, 2, -1, 1, 0)) -> Any:
    """Statistics of a program that writes, called beside eager for each position; an error is a result too."""

    def program(s: Ring, x: Tensor) -> Tensor:
        s.scale += 0.5
        write(s, x)
        return s.rows * 3 - s.at

    mine, twin = ring(), ring()
    step = jit(lambda x: program(mine, x))
    for call, position in enumerate(positions):
        found: list[Any] = []
        for s, run in ((mine, step), (twin, lambda x: program(twin, x))):
            s.at.fill_(position)
            try:
                found.append(run(torch.arange(3.0) * call - 1))
            except IndexError as error:
                found.append(str(error))
        if isinstance(found[1], str):
            assert found[0] == found[1]
        else:
            assert_same(*found)
        assert_same(mine.rows, twin.rows)
        assert mine.scale == twin.scale
    return step.statistics()


def at_row(s: Ring, x: Tensor) -> None:
    s.rows[s.at] = x


def at_row_of_all(s: Ring, x: Tensor) -> None:
    s.rows[s.at, :] = x - 1


def at_element(s: Ring, x: Tensor) -> None:
    s.rows[s.at, 0] = x[1]


def before_a_part(s: Ring, x: Tensor) -> None:
    s.rows[s.at, 1:] = x[1:]


def at_column(s: Ring, x: Tensor) -> None:
    s.rows[:, s.at] = x[2]


def at_column_of_a_part(s: Ring, x: Tensor) -> None:
    s.rows[1:, s.at] = x


def behind_dots(s: Ring, x: Tensor) -> None:
    s.rows[..., s.at] = x[0]


def between_dots_and_one(s: Ring, x: Tensor) -> None:
    s.rows.view(4, 1, 3)[..., s.at % 1, 1] = x[0]


def with_a_new_dimension(s: Ring, x: Tensor) -> None:
    s.rows[None, s.at] = x[None]


def at_two(s: Ring, x: Tensor) -> None:
    s.rows[s.at, s.at - 1] = x[1]


def a_number(s: Ring, x: Tensor) -> None:
    s.rows[s.at] = 2


def a_number_that_varies(s: Ring, x: Tensor) -> None:
    s.rows[s.at] = s.scale


def of_another_type(s: Ring, x: Tensor) -> None:
    s.rows[s.at] = x.double() / 3


def with_leading_ones(s: Ring, x: Tensor) -> None:
    s.rows[s.at] = x.view(1, 1, 3)


def many_in_one_line(s: Ring, x: Tensor) -> None:
    for column in range(3):
        s.rows[s.at, column] = x[column] - column


WRITES = [
    at_row,
    at_row_of_all,
    at_element,
    before_a_part,
    at_column,
    at_column_of_a_part,
    behind_dots,
    between_dots_and_one,
    with_a_new_dimension,
    at_two,
    a_number,
    a_number_that_varies,
    of_another_type,
    with_leading_ones,
    many_in_one_line,
]


@pytest.mark.parametrize("write", WRITES)
def test_a_write_at_a_position_is_recorded(write: Write) -> None:
    assert both(write).replays >= 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.bool, torch.complex64])
def test_what_is_written_is_cast(dtype: torch.dtype) -> None:
    assert both(at_row, lambda: Ring(dtype) if dtype is not torch.bool else _of_bools()).replays >= 3


def _of_bools() -> Ring:
    ring = Ring(torch.bool)
    ring.at = ring.at.to(torch.int32)
    return ring


@pytest.mark.parametrize("kind", [torch.int8, torch.int16, torch.int32])
def test_a_position_of_fewer_bits(kind: torch.dtype) -> None:
    assert both(at_row, lambda: Ring(kind=kind)).replays >= 3


@pytest.mark.parametrize("write", [at_row, at_element, at_column_of_a_part])
def test_a_position_out_of_range_raises_as_in_eager(write: Write) -> None:
    found = both(write, positions=(0, 1, 2, 4, 0, -5, 1, 0, 2, 1))
    assert found.recordings == 1 and found.replays >= 6


def test_a_write_of_nothing_still_asks_where() -> None:
    def write(s: Ring, x: Tensor) -> None:
        s.rows[s.at, 3:] = x[:0]

    with pytest.raises(treeplay.Refusal):
        both(write)


@pytest.mark.parametrize(
    "write",
    [
        lambda s, x: s.rows.__setitem__(s.at, s.rows.view(-1)[1:4]),
        lambda s, x: s.rows.__setitem__(s.rows[0, 0].long(), x),
    ],
    ids=["what overlaps", "where it tells"],
)
def test_what_eager_may_raise_for(write: Write) -> None:
    """Memory that overlaps what is written, for some positions."""
    mine, twin = Ring(), Ring()
    step = jit(lambda x: write(mine, x), on_refusal="eager")
    for position in (0, 2, 1, 3, 0):
        told = []
        for s, run in ((mine, step), (twin, lambda x: write(twin, x))):
            s.at.fill_(position)
            try:
                run(torch.arange(3.0))
                told.append("")
            except RuntimeError as error:
                told.append(str(error))
        assert told[0] == told[1]
        assert_same(mine.rows, twin.rows)


def test_a_write_into_rows_that_share_memory_is_refused() -> None:
    def ring() -> Ring:
        made = Ring()
        made.rows = torch.zeros(3).expand(4, 3)
        return made

    with pytest.raises(treeplay.Refusal):
        both(at_row, ring)


def test_a_write_in_a_program_that_the_caller_differentiates() -> None:
    class Model(nn.Module):
        rows: Tensor
        at: Tensor

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(3, 3)
            self.register_buffer("rows", torch.zeros(4, 3))
            self.register_buffer("at", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> Tensor:
            made = self.rows.clone()
            made[self.at, 1:] = self.layer(x)[1:]
            with torch.no_grad():
                self.rows[self.at] = x
                self.at.add_(1).remainder_(4)
            return (made * x - self.layer(x)).sum()

    mine, twin = Model(), Model()
    step = jit(mine)
    for call in range(7):
        x = torch.arange(3.0) - call
        found, expected = step(x), twin(x)
        found.backward()
        expected.backward()
        assert_same(
            [found.detach(), mine.rows, mine.layer.weight.grad], [expected.detach(), twin.rows, twin.layer.weight.grad]
        )
    assert step.statistics().replays >= 5


@pytest.mark.compile
@pytest.mark.parametrize("write", [at_row, at_column_of_a_part, between_dots_and_one])
def test_compiled_too(write: Write) -> None:
    mine, twin = Ring(), Ring()
    step = jit(lambda x: write(mine, x), lower="inductor")
    for position in (0, 1, 2, -1, 0):
        x = torch.arange(3.0) - position
        for s, run in ((mine, step), (twin, lambda x: write(twin, x))):
            s.at.fill_(position)
            run(x)
        assert_same(mine.rows, twin.rows)
    assert step.statistics().replays >= 3


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (lambda s, x: s.rows[s.at] - x, r"x\[p\[None\]\]"),
        (lambda s, x: s.rows.select(0, s.at) - x, "index_select"),
        (lambda s, x: x * s.at.item(), "torch.where"),
    ],
    ids=["indexing", "select", "something else"],
)
def test_a_read_at_a_position_is_refused_with_what_to_do(read: Callable[[Ring, Tensor], Tensor], told: str) -> None:
    ring = Ring()
    step = jit(lambda x: read(ring, x))
    step(torch.ones(3))
    with pytest.raises(treeplay.Refusal, match=told):
        step(torch.ones(3))
