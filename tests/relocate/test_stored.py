"""Captures that a GPU made (an H200, torch 2.11): every movable word is found, none too many. Needs no GPU.

The oracle is slow and simple: of all words at all offsets, those that stay equally far from a tensor in every capture.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from support.captures import read_captures
from treeplay.relocate import Site, relocate
from treeplay.values.nodes import CaptureNotes, Kernel

FILES = sorted((Path(__file__).parent / "data").glob("*.json"))

STAY = {  # an output whose memory something larger had before; stale addresses in padding that look too much like real ones
    "fft": {("output", 1)},
    "sort_backward": {("output", 1)},
    "top_k_backward": {("output", 1)},
}

pytestmark = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def words(captures: list[CaptureNotes]):
    """Each 8 bytes of each buffer, at steps of 4: where they are, and their value in each capture."""
    for node, versions in enumerate(zip(*(capture.nodes for capture in captures), strict=True)):
        for buffer, data in enumerate(zip(*(version.buffers for version in versions), strict=True)):
            for offset in range(0, len(data[0]) - 7, 4):
                yield node, buffer, offset, [int.from_bytes(each[offset : offset + 8], "little") for each in data]


def oracle(captures: list[CaptureNotes]) -> dict[int, set[Site]]:
    places = {
        place.index: [capture.tensors[place.index].address for capture in captures] for place in captures[0].tensors
    }
    found: dict[int, set[Site]] = {index: set() for index in places}
    for node, buffer, offset, values in words(captures):
        for index, addresses in places.items():
            distances = {value - address for value, address in zip(values, addresses, strict=True)}
            if len(distances) == 1:
                found[index].add(Site(node, buffer, offset, distances.pop()))
    return found


def test_every_site_of_a_tensor_is_found(path):
    captures = read_captures(path)
    table = relocate(captures)
    assert {row.index: set(row.sites) for row in table.tensors if row.is_patchable} == oracle(captures)


def test_everything_can_be_moved(path):
    table = relocate(read_captures(path))
    assert {row.who for row in table.demoted()} == STAY.get(path.stem, set())
    assert all(row.sites for row in table.outputs if row.is_patchable)


def test_sites_of_outputs_point_into_them_in_every_capture(path):
    captures = read_captures(path)
    for row in relocate(captures).outputs:
        for capture in captures:
            place = next(place for place in capture.outputs if place.index == row.index)
            for site in row.sites:
                data = capture.nodes[site.node].buffers[site.buffer]
                value = int.from_bytes(data[site.offset : site.offset + 8], "little")
                assert value == place.address + site.addend
                assert -4096 <= site.addend < place.nbytes


def test_a_site_that_does_not_follow_in_one_capture_stays(path):
    captures = read_captures(path)
    row = next(row for row in relocate(captures).tensors if row.sites)
    site = row.sites[0]
    captures[2] = with_word(captures[2], site, captures[1])
    assert relocate(captures).tensors[row.index].reason is not None


def with_word(capture: CaptureNotes, site: Site, other: CaptureNotes) -> CaptureNotes:
    nodes = list(capture.nodes)
    node, donor = nodes[site.node], other.nodes[site.node]
    if isinstance(node, Kernel):
        params = list(node.params)
        data = bytearray(params[site.buffer])
        data[site.offset : site.offset + 8] = donor.buffers[site.buffer][site.offset : site.offset + 8]
        params[site.buffer] = bytes(data)
        nodes[site.node] = dataclasses.replace(node, params=tuple(params))
    else:
        nodes[site.node] = donor
    return dataclasses.replace(capture, nodes=tuple(nodes))
