"""Outputs are known from intermediates by how far they moved, and stay where they cannot be told apart."""

from __future__ import annotations

from treeplay.relocate.movers import NEVER_MOVED, NOT_ALLOCATED, SHARED, find_movers, merged
from treeplay.values.nodes import Allocation, CaptureNotes, Placed


def captured(
    blocks: list[tuple[int, int]], output: tuple[int, int] | None = None, birth: int | None = None
) -> CaptureNotes:
    outputs = () if output is None else (Placed(0, *output, birth=birth),)
    return CaptureNotes((), (), outputs, tuple(Allocation(*block) for block in blocks))


def test_spans_that_touch_are_joined():
    assert merged([(10, 20), (0, 5), (5, 7), (12, 15)]) == [(0, 7), (10, 20)]


def test_an_output_that_moved_apart_from_its_neighbours_is_known_by_that():
    """first   |temp....|out.|      later   |out.|temp....|"""
    captures = [captured([(0x1000, 1024), (0x1400, 512)], (0x1400, 512))]
    captures += [captured([(0x8200, 1024), (0x8000, 512)], (0x8000, 512)) for _ in range(2)]
    movers = find_movers(captures)
    assert not movers.fixed
    assert [mover.who for mover in movers.owners(0x1400, (0x6C00, 0x6C00), 0)] == [("output", 0)]
    assert movers.is_scratch(0x1000, (0x7200, 0x7200)) and not movers.owners(0x1000, (0x7200, 0x7200), 0)


def test_an_output_in_reused_memory_takes_what_lay_inside_it_along():
    """The intermediate was freed before the output was made in its place; both moved alike: their words are one."""
    captures = [captured([(base, 512), (base, 1024)], (base, 1024)) for base in (0x1000, 0x5000, 0x9000)]
    movers = find_movers(captures)
    assert not movers.fixed and not movers.scratch
    assert [mover.who for mover in movers.owners(0x1000, (0x4000, 0x8000), 0)] == [("output", 0)]


def test_an_output_stays_if_something_that_moved_alike_sticks_out_of_its_memory():
    captures = [captured([(base, 2048), (base, 1024)], (base, 1024)) for base in (0x1000, 0x5000, 0x9000)]
    assert find_movers(captures).fixed == {("output", 0): SHARED}


def test_reused_memory_does_not_matter_where_the_two_moved_apart():
    captures = [
        captured([(0x1000, 2048), (0x1000, 1024)], (0x1000, 1024)),
        captured([(0x5000, 2048), (0x9000, 1024)], (0x9000, 1024)),
        captured([(0x5000, 2048), (0xA000, 1024)], (0xA000, 1024)),
    ]
    movers = find_movers(captures)
    assert not movers.fixed
    assert movers.is_scratch(0x1000, (0x4000, 0x4000))
    assert [mover.who for mover in movers.owners(0x1000, (0x8000, 0x9000), 0)] == [("output", 0)]


def test_an_output_that_was_not_made_in_the_capture_stays():
    captures = [captured([(base, 512)], (0x100000, 64)) for base in (0x1000, 0x5000, 0x9000)]
    assert find_movers(captures).fixed == {("output", 0): NOT_ALLOCATED}


def test_an_output_that_lay_in_one_place_stays():
    captures = [captured([(0x1000, 512)], (0x1000, 64)) for _ in range(3)]
    assert find_movers(captures).fixed == {("output", 0): NEVER_MOVED}


def test_the_first_address_after_an_intermediate_is_a_weaker_claim_than_the_start_of_an_output():
    """first   |temp|out.|      later   |temp|out.|, both moved alike"""
    captures = [captured([(base, 512), (base + 512, 512)], (base + 512, 512)) for base in (0x1000, 0x5000, 0x9000)]
    movers = find_movers(captures)
    assert [mover.who for mover in movers.owners(0x1200, (0x4000, 0x8000), 0)] == [("output", 0)]
    assert not movers.is_scratch(0x1200, (0x4000, 0x8000)) and movers.ends_scratch(0x1200, (0x4000, 0x8000))


def test_what_alone_moved_so_far_is_known_from_outside_too():
    """The pointer lies before the block that it was made from."""
    captures = [
        captured([(0x10000, 512), (0x20000, 512)], (0x20000, 512)),
        captured([(0x11000, 512), (0x23000, 512)], (0x23000, 512)),
        captured([(0x12000, 512), (0x27000, 512)], (0x27000, 512)),
    ]
    movers = find_movers(captures)
    assert movers.is_scratch(0xFFF0, (0x1000, 0x2000))
    assert [mover.who for mover in movers.owners(0x1FFF0, (0x3000, 0x7000), 0)] == [("output", 0)]


def test_nodes_before_an_output_was_born_do_not_mean_it():
    """Something larger lay in its place before, and moved alike."""
    captures = [captured([(base, 2048), (base, 1024)], (base, 1024), birth=3) for base in (0x1000, 0x5000, 0x9000)]
    movers = find_movers(captures)
    assert not movers.fixed
    deltas = (0x4000, 0x8000)
    assert movers.owners(0x1000, deltas, 2) == [] and movers.is_scratch(0x1000, deltas)
    assert [mover.who for mover in movers.owners(0x1000, deltas, 3)] == [("output", 0)]
