"""Rows say what may be moved, where to, and why not."""

from __future__ import annotations

import pytest

from treeplay.relocate.table import Relocation, Row, Site, common_alignment


@pytest.mark.parametrize(
    ("addresses", "alignment"),
    [
        ([4096], 256),
        ([4096, 8192 + 512], 256),
        ([4096 + 16, 8192 + 16], 256),
        ([4096, 8192 + 16], 16),
        ([4096 + 4, 8192 + 12], 8),
        ([4096, 8193], 1),
    ],
)
def test_the_alignment_is_the_largest_that_all_addresses_share(addresses, alignment):
    assert common_alignment(addresses) == alignment


def test_an_address_is_accepted_if_it_is_aligned_as_recorded():
    row = Row("tensor", 0, address=4096 + 16, alignment=64)
    assert row.accepts(16) and row.accepts(64 + 16)
    assert not row.accepts(64) and not row.accepts(32)


def test_rows_and_tables_tell_themselves_in_a_line():
    row = Row("tensor", 2, 4096, 16, (Site(1, 0, 8, 0), Site(1, 0, 24, 64), Site(5, 0, 0, 0)))
    fixed = Row("output", 0, 512, 256, reason="it was not allocated during the capture")
    table = Relocation((row,), (fixed,), 7)
    assert str(row) == "tensor 2: 3 sites in 2 nodes, modulo 16"
    assert str(fixed) == "output 0: it was not allocated during the capture"
    assert (str(table), table.demoted()) == ("1 of 2 can be moved in 7 nodes", (fixed,))
    assert str(row.sites[1]) == "node 1, buffer 0, byte 24: address+64"


def test_what_lies_in_nodes_that_cannot_be_changed_stays_and_so_does_what_moves_with_it():
    leader = Row("tensor", 0, 4096, 256, (Site(1, 0, 8, 0), Site(2, 0, 8, 64)))
    follower = Row("tensor", 1, 4160, 64, leader=0)
    other = Row("tensor", 2, 8192, 256, (Site(3, 0, 8, 0),))
    output = Row("output", 0, 512, 256, (Site(2, 0, 0, 0),))
    table = Relocation((leader, follower, other), (output,), 4).without({2: "it is stubborn"})
    assert table.tensors[2] == other
    for row in (*table.tensors[:2], *table.outputs):
        assert (row.reason, row.sites) == ("it is stubborn", ())
    assert table.without({7: "not there"}) == table
