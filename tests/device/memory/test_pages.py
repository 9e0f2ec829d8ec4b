"""Which pages have memory, which the same, and the pieces that it is put together of."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from treeplay.device.cuda.memory.pages import PIECE_PAGES, PagePlan, Span, pieces_of, plan_pages

START, PAGE = 50, 7
SPANS = st.lists(
    st.builds(
        lambda start, length, begins, steps, stream: Span(start, start + length, begins, begins + steps, stream),
        st.integers(0, 400),
        st.integers(1, 90),
        st.integers(0, 20),
        st.integers(1, 8),
        st.integers(1, 2),
    ),
    max_size=12,
)


def planned(spans: list[Span], pages: int) -> tuple[PagePlan, list[tuple[int, int] | None]]:
    """The plan, and for each page its unit and which page of that it has."""
    plan = plan_pages(START, pages * PAGE, spans, PAGE)
    memory: list[tuple[int, int] | None] = []
    for run in plan.runs:
        assert run.start == START + len(memory) * PAGE and run.pages > 0
        if run.unit is None:
            memory += [None] * run.pages
        else:
            assert run.pages == plan.units[run.unit]  # a unit is mapped as a whole
            memory += [(run.unit, page) for page in range(run.pages)]
    assert len(memory) == pages
    return plan, memory


def of_page(spans: list[Span], page: int) -> list[Span]:
    first, end = START + page * PAGE, START + (page + 1) * PAGE
    return [span for span in spans if span.start < end and span.end > first]


@given(spans=SPANS, pages=st.integers(0, 40))
def test_a_page_has_memory_if_a_span_reaches_it(spans: list[Span], pages: int) -> None:
    _, memory = planned(spans, pages)
    assert [one is not None for one in memory] == [bool(of_page(spans, page)) for page in range(pages)]


@given(spans=SPANS, pages=st.integers(0, 40))
def test_T35_pages_share_memory_only_if_they_are_never_used_at_once_and_by_one_stream(
    spans: list[Span], pages: int
) -> None:
    plan, memory = planned(spans, pages)
    assert {one[0] for one in memory if one} == set(range(len(plan.units)))  # no memory for nothing
    for one, other in combinations(range(pages), 2):
        if memory[one] is None or memory[one] != memory[other]:
            continue
        users, others = of_page(spans, one), of_page(spans, other)
        assert len({span.stream for span in (*users, *others)}) == 1
        assert all(a.ends <= b.begins or b.ends <= a.begins for a in users for b in others)


@given(spans=SPANS, pages=st.integers(0, 40))
def test_T35_what_is_used_all_the_time_shares_nothing(spans: list[Span], pages: int) -> None:
    always = [Span(span.start, span.end) for span in spans]
    plan, memory = planned(always, pages)
    assert sum(plan.units) == sum(one is not None for one in memory)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_T35_what_is_used_one_after_another_takes_the_memory_of_the_largest(lengths: list[int]) -> None:
    spans, at = [], START
    for number, pages in enumerate(lengths):
        spans.append(Span(at, at + pages * PAGE, number, number + 1))
        at += pages * PAGE
    plan, _ = planned(spans, sum(lengths))
    assert sum(plan.units) == max(lengths)


def test_T35_a_gap_between_blocks_has_the_memory_of_something_else() -> None:
    """As in the drawing: a of three pages and b of one are freed before c of two and d of one are made."""
    a, b = Span(START, START + 3 * PAGE, 0, 4), Span(START + 3 * PAGE, START + 4 * PAGE, 1, 5)
    c, d = Span(START + 5 * PAGE, START + 7 * PAGE, 6, 9), Span(START + 7 * PAGE, START + 8 * PAGE, 7, 9)
    plan, memory = planned([a, b, c, d], 8)
    assert sum(plan.units) == 4 and memory[4] is None and memory[5:7] == memory[0:2]


@given(pages=st.integers(0, 1000))
def test_pieces_make_up_a_run_and_are_few(pages: int) -> None:
    found = pieces_of(pages)
    assert sum(found) == pages and set(found) <= set(PIECE_PAGES)
    assert all(found.count(small) < large // small for large, small in pairwise(PIECE_PAGES))
