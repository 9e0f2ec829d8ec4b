"""Which pages are used, and the pieces that runs of them are put together of."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from treeplay.device.cuda.memory.pages import PIECE_PAGES, pieces_of, runs

SPANS = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 90)).map(lambda s: (s[0], s[0] + s[1])), max_size=12)


@given(spans=SPANS, pages=st.integers(0, 40))
def test_a_page_is_used_if_a_span_reaches_it(spans: list[tuple[int, int]], pages: int) -> None:
    start, size = 50, 7
    found = runs(start, pages * size, spans, size)
    used = [run.is_used for run in found for _ in range(run.pages)]
    assert used == [
        any(first < start + (page + 1) * size and end > start + page * size for first, end in spans)
        for page in range(pages)
    ]
    assert all(one.end == other.start for one, other in pairwise(found))
    assert all(one.is_used is not other.is_used for one, other in pairwise(found))


@given(pages=st.integers(0, 1000))
def test_pieces_make_up_a_run_and_are_few(pages: int) -> None:
    found = pieces_of(pages)
    assert sum(found) == pages and set(found) <= set(PIECE_PAGES)
    assert all(found.count(small) < large // small for large, small in pairwise(PIECE_PAGES))
