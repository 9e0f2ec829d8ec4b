"""Where outputs come from is told by memory alone: found once, they are made again in other memory, as the program would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treeplay.torch_seam.fakes import FakeTensorMode
from treeplay.torch_seam.tensors import extent_of
from treeplay.trace.signature.returned import whole
from treeplay.values.layout import Layout
from treeplay.values.memory import OutputMemory
from treeplay.values.output import Fresh, SameAsInput, View

LENGTH = 48  # bytes of a storage
DTYPES = (torch.float32, torch.int32, torch.float64, torch.int16, torch.complex64)


@dataclass(frozen=True)
class Piece:
    """A tensor of a world: which storage it lies in, and how."""

    storage: int
    dtype: torch.dtype
    layout: Layout

    def in_(self, memory: torch.Tensor, begin: int = 0) -> torch.Tensor:
        """The tensor itself; storages begin `begin` bytes later than they were drawn."""
        shape, stride, offset = self.layout.shape, self.layout.stride, self.layout.offset
        return memory.view(self.dtype).as_strided(shape, stride, offset + begin // self.dtype.itemsize)


@st.composite
def pieces(draw: st.DrawFn, storages: Sequence[int]) -> Piece:
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    stride = tuple(draw(st.integers(0, 2)) for _ in shape)
    room = LENGTH // dtype.itemsize
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if 0 not in shape else 0
    offset = draw(st.integers(0, room - 1 - reach)) if reach < room else 0
    fits = reach < room
    return Piece(
        draw(st.sampled_from(storages)), dtype, Layout(shape if fits else (1,), stride if fits else (1,), offset)
    )


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Piece], list[Piece]]:
    """Inputs, and outputs in their storages (0 and 1) and in others."""
    inputs = draw(st.lists(pieces((0, 1)), max_size=3))
    held = {piece.storage for piece in inputs}
    outputs = draw(st.lists(pieces([at for at in range(4) if at in held or at > 1]), min_size=1, max_size=4))
    return inputs, outputs


def found(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> list[Fresh | View | None]:
    memory = OutputMemory(map(extent_of, inputs))
    return [memory.ref(extent, extent.whole) for extent in map(extent_of, outputs)]


def made_again(ref: Fresh | View, inputs: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> torch.Tensor:
    """What generated code does of a reference."""
    if isinstance(ref, Fresh):
        return made[ref.index]
    base = made[ref.of.index] if isinstance(ref.of, Fresh) else inputs[ref.of.index]
    if ref.cast is not None:
        base = base.as_strided((ref.cast.length,), (1,), base.storage_offset() + ref.cast.start).view(ref.cast.dtype)
    layout = ref.layout
    return base.as_strided(layout.shape, layout.stride, base.storage_offset() + layout.offset)


@settings(max_examples=100, deadline=None)
@given(worlds(), st.sampled_from((0, 16)))
def test_outputs_are_made_again_where_inputs_lie_elsewhere(world: tuple[list[Piece], list[Piece]], begin: int) -> None:
    inputs, outputs = world
    one = [torch.arange(LENGTH, dtype=torch.uint8) for _ in range(4)]
    refs = found(
        [piece.in_(one[piece.storage]) for piece in inputs], [piece.in_(one[piece.storage]) for piece in outputs]
    )

    # New memory begins where it does.
    other = [torch.zeros(LENGTH + begin * (at < 2), dtype=torch.uint8) for at in range(4)]
    given_now = [piece.in_(other[piece.storage], begin) for piece in inputs]
    expected = [piece.in_(other[piece.storage], begin * (piece.storage < 2)) for piece in outputs]
    made: list[torch.Tensor] = []
    for ref, piece, output in zip(refs, outputs, expected, strict=True):
        of = ref if isinstance(ref, Fresh) else ref and ref.of
        if isinstance(of, Fresh) and of.index == len(made):
            made.append(whole(output))
        if ref is None:
            assert any(piece.dtype != item.dtype for item in (*inputs, *outputs) if item.storage == piece.storage)
            continue
        again = made_again(ref, given_now, made)
        assert (again.shape, again.stride(), again.dtype) == (output.shape, output.stride(), output.dtype)
        assert again.data_ptr() == output.data_ptr()
        assert isinstance(of, SameAsInput) == (piece.storage < 2)


@settings(max_examples=25, deadline=None)
@given(worlds())
def test_tensors_without_data_tell_the_same(world: tuple[list[Piece], list[Piece]]) -> None:
    def told(memory: Sequence[torch.Tensor]) -> list[Fresh | View | None]:
        tensors = [[piece.in_(memory[piece.storage]) for piece in part] for part in world]
        return found(*tensors)

    with FakeTensorMode():
        of_fakes = told([torch.zeros(LENGTH, dtype=torch.uint8) for _ in range(4)])
    assert of_fakes == told([torch.zeros(LENGTH, dtype=torch.uint8) for _ in range(4)])


def test_two_storages_of_one_array_are_one_memory() -> None:
    array = numpy.arange(8.0)
    x, tail = torch.from_numpy(array), torch.from_numpy(array[3:])
    assert found([x], [tail]) == [View(SameAsInput(0), Layout((5,), (1,), 3))]
    assert found([x, tail], [tail[1:]]) == [View(SameAsInput(1), Layout((4,), (1,), 1))]


def test_new_memory_is_fresh_once_and_a_view_from_then_on() -> None:
    made = torch.ones(4)
    assert found([], [made, made[:], made[2:]]) == [
        Fresh(0),
        View(Fresh(0), Layout((4,), (1,), 0)),
        View(Fresh(0), Layout((2,), (1,), 2)),
    ]


def test_of_several_inputs_in_one_storage_a_view_is_of_the_one_it_lies_in() -> None:
    x = torch.arange(8.0)
    assert found([x[:4], x[4:]], [x[5:7]]) == [View(SameAsInput(1), Layout((2,), (1,), 1))]
    assert found([x[2:4], x[4:]], [x]) == [View(SameAsInput(0), Layout((8,), (1,), -2))]


def test_the_whole_of_an_extent_is_all_of_its_storage() -> None:
    for tensor in (torch.ones(6), torch.ones(6)[1:], torch.ones(2, 3).t(), torch.ones(6).view(torch.float64)[:2]):
        assert extent_of(tensor).whole.is_like(extent_of(whole(tensor)))
