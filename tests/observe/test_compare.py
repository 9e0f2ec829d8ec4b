import copy
import logging
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treeplay.errors import ArgumentError
from treeplay.observe import same

Point = namedtuple("Point", "x y")
Other = namedtuple("Other", "x y")
T = torch.tensor([1.0, 2.0])
BAD = torch.tensor([1.0, 3.0])


@dataclass
class Output:
    loss: torch.Tensor
    logits: object


@dataclass
class Renamed:
    loss: torch.Tensor
    logits: object


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, logger="treeplay.compare")


def paths(verdict):
    return [failure.path for failure in verdict.failures]


def rules(verdict):
    return [failure.rule for failure in verdict.failures]


SEQUENCES = [list, tuple, deque, torch.nn.ParameterList]


@pytest.mark.parametrize("left", SEQUENCES)
@pytest.mark.parametrize("right", SEQUENCES)
def test_O13_any_sequence_matches_any_other_by_position(left, right):
    assert same(left([T]), right([T.clone()]))
    assert paths(same(left([T, T]), right([T, BAD]))) == ["[1]"]


def test_O13_a_size_is_a_sequence_of_numbers():
    assert same(torch.Size([2, 3]), [2, 3])
    assert paths(same((2, 3), torch.Size([2, 4]))) == ["[1]"]


@pytest.mark.parametrize(
    ("ref", "res", "rule"),
    [
        ([T], {"a": T}, "kind"),
        ({"a": T}, [T], "kind"),
        ([T], T, "kind"),
        (T, None, "kind"),
        ({1}, [1], "kind"),
        ([T], [T, T], "length"),
        ({"a": T}, {"b": T}, "keys"),
        ({"a": T}, {"a": T, "b": T}, "keys"),
        ({1, 2}, {1, 3}, "set"),
        (Point(1, 2), Other(1, 2), "kind"),
        (Output(T, 1), Renamed(T, 1), "kind"),
    ],
)
def test_O13_different_structure_is_unequal_with_a_reason(ref, res, rule):
    verdict = same(ref, res)
    assert not verdict
    assert rules(verdict) == [rule]
    assert verdict.failures[0].reason


def test_O13_the_reason_names_the_keys():
    reason = same({"a": T, "b": T}, {"b": T, "c": T}).failures[0].reason
    assert reason == "missing ['a'], unexpected ['c']"


def test_O13_dicts_of_mixed_keys_are_compared_in_one_order():
    ref = {1: T, "a": T, 10: T, 9: T, (1, "b"): T, (1, 2): T}
    assert same(ref, dict(reversed(ref.items())))
    bad = dict.fromkeys(ref, BAD)
    forward, backward = same(ref, bad), same(dict(reversed(ref.items())), bad)
    assert paths(forward) == paths(backward)
    assert paths(forward)[:4] == ["[1]", "[9]", "[10]", '["a"]']


def test_O13_a_nested_leaf_is_named_by_its_path():
    assert paths(same({"a": {"b": T}}, {"a": {"b": BAD}})) == ['["a"]["b"]']
    ref = Output(T, [Point(T, {3: T})])
    res = Output(T, (Point(T, OrderedDict({3: BAD})),))
    assert paths(same(ref, res)) == [".logits[0].y[3]"]


def test_O13_named_tuples_match_by_field_and_plain_tuples_by_position():
    assert paths(same(Point(T, T), Point(T, BAD))) == [".y"]
    assert paths(same(Point(T, T), (T, BAD))) == ["[1]"]
    values, indices = torch.max(torch.eye(2), 0)
    assert same(torch.max(torch.eye(2), 0), [values, indices])


def test_O13_a_short_float64_reference_cuts_nothing_off():
    ref, res = [torch.ones(1), torch.full((1,), 2.0)], [torch.ones(1), torch.full((1,), 3.0)]
    with pytest.raises(ValueError, match="expected 2 items"):
        same(ref, res, [torch.ones(1, dtype=torch.float64)])
    assert paths(same(ref, res, [None, None])) == ["[1]"]


@pytest.mark.parametrize("ref64", [{"b": T.double()}, [T.double()], {"a": [T.double()]}])
def test_O13_a_float64_reference_of_another_structure_is_refused(ref64):
    with pytest.raises(ArgumentError, match="float64 reference"):
        same({"a": T}, {"a": BAD}, ref64)


def test_O13_nested_tensors_are_sequences_of_tensors():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    other = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=torch.jagged)
    assert same(nested, nested)
    assert paths(same([nested], [other])) == ["[0][1]"]


def test_O13_containers_that_contain_themselves_have_an_end():
    ref, res = [T], [BAD]
    ref.append(ref)
    res.append(res)
    assert paths(same(ref, res)) == ["[0]"]


def test_O19_all_failures_are_collected_in_order_and_told():
    told = []
    ref = {"b": {"y": T, "x": T}, "a": [T, T]}
    res = {"a": [T, BAD], "b": {"x": BAD, "y": T}}
    verdict = same(ref, res, on_message=told.append)
    assert paths(verdict) == ['["a"][1]', '["b"]["x"]']
    assert verdict.leaves == 4
    assert told == [str(failure) for failure in verdict.failures]


def test_O19_the_first_failure_may_be_the_last():
    told = []
    verdict = same([T, BAD, T], [BAD, T, BAD], stop_at_first=True, on_message=told.append)
    assert paths(verdict) == ["[0]"]
    assert len(told) == 1


def test_O19_messages_go_to_the_error_log_by_default(caplog):
    with caplog.at_level(logging.ERROR, logger="treeplay.compare"):
        same({"a": T}, {"a": BAD})
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert 'result["a"]' in caplog.text


def test_O19_a_failure_tells_how_far_off_and_where():
    ref = torch.tensor([[1.0, 100.0, 3.0], [0.5, 5.0, 6.0]])
    res = ref + torch.tensor([[0.0, 7.0, 0.0], [1.0, 0.0, 0.5]])
    failure = same(ref, res).failures[0]
    assert (failure.path, failure.rule, failure.shape, failure.dtype) == ("", "tolerance", (2, 3), "float32")
    elements = failure.elements
    assert (elements.bad, elements.total) == (3, 6)
    assert (elements.absolute.error, elements.absolute.index) == (7.0, (0, 1))
    assert (elements.relative.error, elements.relative.index) == (2.0, (1, 0))


def test_O19_the_worst_element_is_one_that_differs():
    """The largest error is within tolerance of a large number: it is not what made the comparison fail."""
    failure = same(torch.tensor([1e6, 1.0]), torch.tensor([1e6 + 50, 1.5])).failures[0]
    assert (failure.elements.bad, failure.elements.absolute.index) == (1, (1,))


def test_O19_nan_and_neighbouring_integers_have_an_error_too():
    nan = same(torch.tensor([1.0, 2.0]), torch.tensor([1.5, float("nan")])).failures[0].elements
    assert (nan.bad, nan.absolute.error, nan.absolute.index) == (2, float("inf"), (1,))
    large = torch.tensor([0, 2**62])
    assert same(large, large + torch.tensor([0, 1])).failures[0].elements.absolute.index == (1,)


def test_O19_verdicts_are_values_and_print_on_one_line():
    verdict = same([T, [1]], [BAD, [2]], [T.double(), None])
    assert verdict == same([T, [1]], [BAD, [2]], [T.double(), None])
    assert "\n" not in str(verdict)
    assert str(verdict).startswith("different in 2 places: result[0] [float32 (2,)]: float64:")
    assert str(same(T, T)) == "equal (1 leaves)"


@pytest.mark.parametrize("tol", [-1, float("nan"), float("inf"), "tight", None])
def test_O19_an_unusable_tolerance_is_refused(tol):
    with pytest.raises(ValueError, match="tol"):
        same(T, T, tol=tol)


LEAVES = st.one_of(
    st.integers(-5, 5),
    st.text(max_size=2),
    st.none(),
    st.floats(-4, 4, width=32),
    st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=4).map(torch.tensor),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.integers(0, 9), st.text(max_size=2)), inner, max_size=3),
        st.tuples(inner, inner).map(lambda pair: Point(*pair)),
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(TREES)
def test_O13_a_tree_equals_its_copy(tree):
    assert same(tree, copy.deepcopy(tree))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(TREES, TREES)
def test_O13_no_two_trees_raise_and_both_orders_agree(left, right):
    """Tolerances go by the reference, so only exact leaves and large differences are alike both ways."""
    options = {"on_message": lambda _: None, "tol": 0.0}
    one, other = same(left, right, **options), same(right, left, **options)
    assert len(one.failures) == len(other.failures)
    assert sorted(paths(one)) == sorted(paths(other))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(TREES, st.lists(st.sampled_from([0, 3, "", "ab", "c"]), max_size=3), st.integers(0, 2))
def test_O13_a_changed_leaf_is_the_one_named(tree, keys, position):
    """The tree is wrapped as deep as the keys say, beside a leaf that is then changed."""
    ref, res, path = T, BAD, ""
    for key in keys:
        ref, res = {key: ref, "beside": tree}, {key: res, "beside": copy.deepcopy(tree)}
        path = (f'["{key}"]' if isinstance(key, str) else f"[{key}]") + path
    ref, res = [tree] * position + [ref], [tree] * position + [res]
    verdict = same(ref, res, on_message=lambda _: None)
    assert [eval("result" + failure.path, {"result": res}) is BAD for failure in verdict.failures] == [True]
    assert paths(verdict) == [f"[{position}]{path}"]
