"""Whose memory an address lies in, found without asking each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treeplay.relocate.memory import Stretches

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=30)


@given(spans)
def test_those_that_hold_an_address_are_found_wherever_they_lie_in_each_other(spans: list[tuple[int, int]]) -> None:
    stretches = [(start, start + length, name) for name, (start, length) in enumerate(spans)]
    found = Stretches(stretches)
    for address in range(-2, 90):
        expected = {name for start, end, name in stretches if start <= address < end}
        assert sorted(found.holding(address)) == sorted(expected)
