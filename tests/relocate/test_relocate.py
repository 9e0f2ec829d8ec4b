"""Of captures whose words are known: exactly the planted sites are found, and nothing that would be wrong to patch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relocate_worlds import CAPTURES, DEVICE, LivingWorld, World
from treeplay.errors import InternalError
from treeplay.relocate import Relocation, relocate
from treeplay.values.nodes import CaptureNotes, Memcpy, Other, word_bytes

seeds = st.integers(0, 1 << 30)


def solve(world: World) -> Relocation:
    return relocate(world.captures(), ranges=[DEVICE])


def reason(table: Relocation, role: str, index: int) -> str | None:
    rows = table.tensors if role == "tensor" else table.outputs
    return rows[index].reason


@settings(max_examples=300, deadline=None)
@given(
    seed=seeds,
    tensors=st.integers(1, 6),
    scratch=st.integers(0, 6),
    outputs=st.integers(0, 3),
    nodes=st.integers(0, 12),
)
def test_exactly_the_planted_sites_are_found(seed, tensors, scratch, outputs, nodes):
    world = World(seed, tensors=tensors, scratch=scratch, outputs=outputs, nodes=nodes)
    table = solve(world)
    assert not table.demoted()
    for row in table.rows:
        assert set(row.sites) == world.planted[row.who], row


@settings(max_examples=300, deadline=None)
@given(seed=seeds, steps=st.integers(1, 40), is_alike=st.booleans())
def test_outputs_in_reused_memory_are_known_by_their_birth(seed, steps, is_alike):
    world = LivingWorld(seed, steps=steps, is_alike=is_alike)
    table = relocate(world.captures(), ranges=[DEVICE])
    assert not table.demoted()
    for row in table.rows:
        assert set(row.sites) == world.planted[row.who], row


@settings(max_examples=300, deadline=None)
@given(seed=seeds, steps=st.integers(1, 40), is_alike=st.booleans())
def test_without_births_an_output_moves_only_with_what_fits_into_it(seed, steps, is_alike):
    """What was dead by then may move along; every word of the output's own does."""
    world = LivingWorld(seed, steps=steps, is_alike=is_alike)
    for row in relocate(world.captures(knows_births=False), ranges=[DEVICE]).outputs:
        if row.is_patchable:
            assert set(row.sites) >= world.planted[row.who]
            for site in set(row.sites) - world.planted[row.who]:
                thing, _ = world.uses[site.node][site.buffer]
                end = thing.at(0) + -(-thing.nbytes // 512) * 512
                output = world.outputs[row.index]
                assert output.at(0) <= thing.at(0) and end <= output.at(0) + -(-output.nbytes // 512) * 512


@settings(max_examples=100, deadline=None)
@given(seed=seeds, shift=st.integers(1, 12), which=st.integers(0, 3), is_packed=st.booleans())
def test_a_shifted_address_keeps_its_tensor_where_it_is(seed, shift, which, is_packed):
    world = World(seed)
    tensor = world.tensors[which]
    world.add_words(lambda k: tensor.at(k) >> shift, is_packed=is_packed)
    table = solve(world)
    assert reason(table, "tensor", which) is not None


DERIVED = {
    "difference": lambda a, b, k: (a.at(k) - b.at(k)) % (1 << 64),
    "difference in elements": lambda a, b, k: (a.at(k) - b.at(k)) // 4 % (1 << 64),
    "sum": lambda a, b, k: (a.at(k) + b.at(k)) % (1 << 64),
    "pointer plus a distance": lambda a, b, k: (a.at(k) + (b.at(k) - b.at(0))) % (1 << 64),
}


@settings(max_examples=60, deadline=None)
@given(seed=seeds, pair=st.permutations(range(4)), kind=st.sampled_from(sorted(DERIVED)))
def test_a_word_made_of_two_addresses_keeps_both_where_they_are(seed, pair, kind):
    world = World(seed)
    a, b = world.tensors[pair[0]], world.tensors[pair[1]]
    derived = DERIVED[kind]
    world.add_kernel([world.pointer(a), (lambda k: word_bytes(derived(a, b, k)) + bytes(8), None)])
    table = solve(world)
    assert reason(table, "tensor", a.index) and reason(table, "tensor", b.index)


@settings(max_examples=60, deadline=None)
@given(seed=seeds, which=st.integers(0, 3))
def test_half_an_address_keeps_its_tensor_where_it_is(seed, which):
    world = World(seed)
    tensor = world.tensors[which]
    world.add_words(lambda k: tensor.at(k) % (1 << 32), is_packed=False, nbytes=4)
    assert reason(solve(world), "tensor", which) is not None


@settings(max_examples=60, deadline=None)
@given(seed=seeds, which=st.integers(0, 3))
def test_an_address_that_does_not_follow_in_the_third_capture_is_not_trusted(seed, which):
    world = World(seed)
    tensor = world.tensors[which]
    world.add_words(lambda k: tensor.at(min(k, 1)) + 2)
    assert "moves with it only in some captures" in (reason(solve(world), "tensor", which) or "")


def test_an_address_of_another_thing_in_each_capture_is_not_trusted():
    world = World(22, nodes=0)
    a, b, _, _ = world.tensors
    world.add_words(lambda k: (a.at(0), a.at(1), b.at(2))[k])
    assert [row.index for row in solve(world).demoted()] == [0, 1]


def test_an_address_that_was_good_in_the_capture_before_is_stale():
    """Nothing of the third capture lies where the word points to: it was left there by the second."""
    world = World(22, nodes=0)
    a = world.tensors[0]
    world.add_words(lambda k: a.at(max(k - 1, 0)))
    table = solve(world)
    assert (table.demoted(), table.padding_words) == ((), 1)


def test_half_a_stale_address_in_padding_does_not_matter():
    world = World(23, nodes=0)
    a = world.tensors[0]
    world.add_words(lambda k: a.at(k) % (1 << 32) if k == 0 else a.at(k))
    assert not solve(world).demoted()


@pytest.mark.parametrize(("of", "is_kept"), [("scratch", False), ("output", True)])
def test_half_an_address_of_scratch_does_not_keep_an_output_that_moved_alike(of: str, is_kept: bool) -> None:
    world = World(24, tensors=1, scratch=1, outputs=1, nodes=0)
    (temporary,), (output,) = world.scratch, world.outputs
    temporary.addresses[:] = [address + (1 << 20) for address in output.addresses]
    temporary.nbytes = output.nbytes = 4096
    world.add_kernel([world.pointer(output, 8), world.pointer(temporary)])
    meant = temporary if of == "scratch" else output
    world.add_words(lambda k: (meant.at(k) + 16) % (1 << 32) | 0x3F80_0000 << 32)
    assert (reason(solve(world), "output", 0) is not None) is is_kept


def half_in_a_structure(other: Callable[[World, int], int], gaps: tuple[int, int] = (3, 8)) -> str | None:
    """Why a tensor stays of whose address a structure holds the lower half, beside 1.0 and another word. How many times
    4 GiB it moves is in `gaps`."""
    world = World(25, tensors=2, nodes=0)
    for at, tensor in enumerate(world.tensors):
        first = DEVICE[0] + (at << 36) + 0x1234_5600
        tensor.addresses[:] = [
            first,
            first + (gaps[0] << 32) + 0x51_3000,
            first + (gaps[1] + at << 32) + 0xA7_2000 * (1 + at),
        ]
    x = world.tensors[0]

    def structure(k: int) -> bytes:
        return word_bytes((x.at(k) + 16) % (1 << 32) | 0x3F80_0000 << 32) + word_bytes(other(world, k))

    world.add_kernel([world.pointer(x), (structure, None)])
    return reason(solve(world), "tensor", 0)


def test_half_an_address_that_a_member_of_a_structure_was_left_with_does_not_matter() -> None:
    """A node of cuDNN has one: nothing was ever written there but by who used the stack before."""
    assert half_in_a_structure(lambda world, k: 7) is None


@pytest.mark.parametrize(
    "other",
    [
        lambda world, k: world.tensors[0].at(k) >> 32,
        lambda world, k: (world.tensors[0].at(k) >> 32) + (k > 0),
        lambda world, k: (world.tensors[0].at(k) >> 32) | 0xA000_0000,
        lambda world, k: world.tensors[1].at(k) % (1 << 32) | 0x3F80_0000 << 32,
        lambda world, k: (world.tensors[0].at(k) >> 4) % (1 << 32),
    ],
    ids=["upper half", "carried", "beside flags", "half of another", "shifted"],
)
def test_half_an_address_that_something_may_complete_keeps_its_tensor(other: Callable[[World, int], int]) -> None:
    assert "computed from its address" in (half_in_a_structure(other) or "")


def test_half_an_address_may_be_all_that_differs_where_captures_lie_close() -> None:
    assert "computed from its address" in (half_in_a_structure(lambda world, k: 7, gaps=(0, 8)) or "")


def test_a_pointer_from_outside_is_patched_like_any_other():
    world = World(3, nodes=0)
    tensor = world.tensors[1]
    node = world.add_kernel([world.pointer(tensor, -4096), world.pointer(tensor, tensor.nbytes)])
    sites = solve(world).tensors[1].sites
    assert [(site.node, site.addend) for site in sites] == [(node, -4096), (node, tensor.nbytes)]


def test_a_pointer_that_is_not_aligned_in_its_buffer_is_found():
    world = World(4, nodes=0)
    tensor = world.tensors[0]
    world.add_kernel([world.constant(4), world.pointer(tensor), world.constant(12)], is_packed=True)
    (site,) = solve(world).tensors[0].sites
    assert (site.offset, site.addend) == (4, 0)


def test_of_two_that_shared_memory_the_one_that_was_born_by_then_is_meant():
    world = World(21, tensors=1, scratch=1, outputs=1, nodes=0)
    (temporary,), (output,) = world.scratch, world.outputs
    temporary.addresses[:] = output.addresses
    temporary.nbytes = 4 * output.nbytes + 4096
    world.add_kernel([world.pointer(temporary, 8)])
    world.add_kernel([world.pointer(output, 8)])
    captures = world.captures()
    assert "partly overlaps" in (relocate(captures, ranges=[DEVICE]).outputs[0].reason or "")
    born = [
        dataclasses.replace(capture, outputs=(dataclasses.replace(capture.outputs[0], birth=1),))
        for capture in captures
    ]
    (row,) = relocate(born, ranges=[DEVICE]).outputs
    assert [(site.node, site.addend) for site in row.sites] == [(1, 8)]


def test_a_device_address_that_nobody_explains_stops_everything():
    world = World(5)
    world.add_words(lambda k: DEVICE[0] + 4096 * k * k + 8)
    table = solve(world)
    assert len(table.demoted()) == len(table.rows)
    assert "device address" in (table.rows[0].reason or "")


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_number_that_changes_and_is_no_address_does_not_matter(is_packed):
    world = World(6)
    world.add_words(lambda k: 1000 + 17 * k * k, is_packed=is_packed)
    table = solve(world)
    assert (table.demoted(), table.padding_words) == ((), 1 + solve(World(6)).padding_words)


def test_a_stale_address_in_padding_does_not_matter():
    """It is an address in one capture only, and something else in the others."""
    world = World(7)
    tensor = world.tensors[0]
    world.add_words(lambda k: tensor.at(0) + 8 if k == 0 else 0x3FFD)
    world.add_words(lambda k: world.scratch[0].at(1) if k == 1 else 0)
    assert not solve(world).demoted()


def test_a_parameter_that_is_an_address_in_one_capture_and_null_in_another_counts():
    world = World(7)
    tensor = world.tensors[0]
    world.add_words(lambda k: tensor.at(0) if k == 0 else 0, is_packed=False)
    assert [row.index for row in solve(world).demoted()] == [0]


def test_tensors_of_one_storage_move_as_one():
    world = World(20, tensors=3, nodes=0)
    a, b, _ = world.tensors
    b.addresses[:] = [address + 256 for address in a.addresses]
    world.add_kernel([world.pointer(a), world.pointer(b), world.pointer(b, 8)])
    captures = [
        dataclasses.replace(
            capture, tensors=tuple(dataclasses.replace(p, start=a.at(k)) if p.index < 2 else p for p in capture.tensors)
        )
        for k, capture in enumerate(world.captures())
    ]
    first, second, third = relocate(captures, ranges=[DEVICE]).tensors
    assert [site.addend for site in first.sites] == [0, 256, 264]
    assert (second.sites, second.leader, second.reason) == ((), 0, None)
    assert (first.leader, third.leader) == (None, None)
    assert str(second) == "tensor 1: moves with tensor 0"


def test_an_address_in_host_memory_that_is_copied_keeps_its_tensor_where_it_is():
    world = World(7, nodes=0)
    tensor = world.tensors[2]
    content = lambda k: bytes(16) + word_bytes(tensor.at(k))  # noqa: E731
    world.nodes.append(lambda k: Memcpy(0x1000, world.weights[0].at(k), "host", "device", (24,), content(k)))
    table = solve(world)
    assert "host memory" in (table.tensors[2].reason or "")
    assert [row.index for row in table.demoted()] == [2]


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (Other("child graph"), "child graph, which cannot be read"),
        (Other("host function"), "host function, which cannot be read"),
        (Memcpy(0x1000, DEVICE[0], "host", "device", (8,)), "host memory that cannot be read"),
    ],
)
def test_what_cannot_be_read_stops_everything(node, text):
    world = World(8)
    world.nodes.append(lambda k: node)
    assert all(text in (row.reason or "") for row in solve(world).rows)


def test_nodes_without_parameters_do_not_matter():
    world = World(9)
    world.nodes.append(lambda k: Other("empty"))
    assert not solve(world).demoted()


def test_another_kernel_in_one_capture_stops_everything():
    world = World(10)
    captures = world.captures()
    captures[2] = dataclasses.replace(captures[2], nodes=(*captures[2].nodes[:-1], Other("empty")))
    assert all("is another" in (row.reason or "") for row in relocate(captures).rows)


def test_a_capture_with_more_nodes_stops_everything():
    captures = World(11).captures()
    captures[1] = dataclasses.replace(captures[1], nodes=captures[1].nodes[:-1])
    assert all("nodes" in (row.reason or "") for row in relocate(captures).rows)


def test_a_tensor_that_never_moved_is_not_patched():
    world = World(12)
    world.tensors[1].addresses[:] = [world.tensors[1].addresses[0]] * CAPTURES
    table = solve(world)
    assert [row.index for row in table.demoted()] == [1]


def test_without_history_outputs_stay_and_tensors_move():
    world = World(13, scratch=0, outputs=1, nodes=0)
    world.add_kernel([world.pointer(world.tensors[0])])
    captures = [dataclasses.replace(capture, blocks=None) for capture in world.captures()]
    table = relocate(captures, ranges=[DEVICE])
    assert [row.who for row in table.demoted()] == [("output", 0)]


def test_other_allocations_in_one_capture_leave_outputs_where_they_are():
    world = World(14, scratch=1, outputs=1, nodes=0)
    captures = world.captures()
    captures[1] = dataclasses.replace(captures[1], blocks=(captures[1].blocks or ())[:-1])
    assert relocate(captures).outputs[0].reason == "its captures allocated differently"


def test_nothing_is_moved_if_the_proof_fails(monkeypatch):
    monkeypatch.setattr("treeplay.relocate.first_failure", lambda captures, found: "a byte is wrong")
    assert all(row.reason == "a byte is wrong" for row in solve(World(15)).rows)


def test_two_captures_prove_nothing():
    with pytest.raises(InternalError, match="3 captures or more, found 2"):
        relocate([CaptureNotes(())] * 2)
