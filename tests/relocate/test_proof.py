"""The proof predicts bytes on its own, so that a site that is missing, wrong or too many shows."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relocate_worlds import World
from treeplay.relocate.movers import find_movers
from treeplay.relocate.proof import first_failure
from treeplay.relocate.sites import SiteSearch, find_sites


def found_in(world: World) -> tuple[list, SiteSearch]:
    captures = world.captures()
    return captures, find_sites(captures, find_movers(captures))


@pytest.fixture
def world() -> World:
    made = World(1, nodes=0)
    made.add_kernel([made.pointer(made.tensors[0]), made.pointer(made.tensors[1], 8), made.constant(8)])
    made.add_kernel([made.pointer(made.tensors[2])])
    return made


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_what_was_found_is_proven(seed):
    assert first_failure(*found_in(World(seed, nodes=8))) is None


def test_a_missing_site_fails(world):
    captures, found = found_in(world)
    del found.sites["tensor", 0]
    assert "of buffer 0 of node 0 (kernel k0) in capture 2" in (first_failure(captures, found) or "")


@pytest.mark.parametrize("change", [{"addend": 16}, {"buffer": 2}, {"node": 1, "buffer": 0}])
def test_a_wrong_site_fails(world, change):
    captures, found = found_in(world)
    (site,) = found.sites["tensor", 0]
    found.sites["tensor", 0] = [dataclasses.replace(site, **change)]
    assert first_failure(captures, found) is not None
