"""Arguments taken apart in the recorded order, with a path for everything that differs."""

from __future__ import annotations

from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treeplay.errors import UsageError
from treeplay.graphs.contract import NO_KEYWORDS, Contract
from treeplay.values.flatten import flatten

Point = namedtuple("Point", "x y")


@dataclass
class Batch:
    """A container of the user's."""

    first: Any
    second: Any


def tensor() -> torch.Tensor:
    return torch.zeros(2, 3)


TREES = st.recursive(
    st.builds(tensor),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), parts, max_size=3),
        st.builds(Point, parts, parts),
        st.builds(Batch, parts, parts),
    ),
    max_leaves=8,
)


@given(args=st.lists(TREES, max_size=3).map(tuple))
def test_gathering_is_flattening(args: tuple[Any, ...]) -> None:
    contract = Contract.of(args, NO_KEYWORDS)
    leaves = flatten(args)[0]
    gathered = contract.gather(args, ())
    assert len(gathered) == len(leaves)
    assert all(a is b for a, b in zip(gathered, leaves, strict=True))
    contract.check(gathered, with_gradients=True)


@given(args=st.lists(TREES, min_size=1, max_size=3).map(tuple), other=st.lists(TREES, max_size=3).map(tuple))
def test_another_structure_is_refused_and_an_equal_one_is_not(args: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    contract = Contract.of(args, NO_KEYWORDS)
    try:
        leaves = contract.gather(other, ())
        contract.check(leaves, with_gradients=True)
    except UsageError as error:
        assert str(error).startswith("$")
    else:
        assert len(leaves) == len(flatten(other)[0]) == len(flatten(args)[0])


def test_keys_of_a_dict_may_come_in_any_order() -> None:
    a, b = torch.ones(1), torch.ones(2)
    contract = Contract.of(({"a": a, "b": b},), NO_KEYWORDS)
    assert contract.gather(({"b": b, "a": a},), ()) == [a, b]


def test_a_deque_is_taken_apart_and_may_hold_as_many_items_as_it_did() -> None:
    one = tensor()
    contract = Contract.of((deque([one, one], 3),), NO_KEYWORDS)
    assert contract.gather((deque([one, one], 3),), ()) == [one, one]
    with pytest.raises(UsageError, match="a deque of at most None items, recorded with 3"):
        contract.gather((deque([one, one]),), ())


@pytest.mark.parametrize(
    ("recorded", "found", "text"),
    [
        (Point(tensor(), tensor()), (tensor(), tensor()), r"\$\[0\]: a value of type tuple, recorded with a Point"),
        (Batch(tensor(), [tensor()]), Batch(tensor(), []), r"\$\[0\].second: 0 items, recorded with 1"),
        (OrderedDict(a=tensor()), {"a": tensor()}, r"recorded with a OrderedDict"),
        (tensor(), torch.zeros(2, 3).to_sparse(), r"\$\[0\]: layout torch.sparse_coo, recorded with torch.strided"),
    ],
)
def test_what_differs_has_a_path(recorded: Any, found: Any, text: str) -> None:
    contract = Contract.of((recorded,), NO_KEYWORDS)
    with pytest.raises(UsageError, match=text):
        contract.check(contract.gather((found,), ()), with_gradients=True)
