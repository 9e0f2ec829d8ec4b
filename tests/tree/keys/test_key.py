"""Keys: equal for calls that may share a recording, different for all others."""

from __future__ import annotations

import enum
from decimal import Decimal
from fractions import Fraction

import numpy
import pytest
import torch

from support import call_of as call
from treeplay.errors import Refusal
from treeplay.trace.call import Call
from treeplay.tree.keys.key import arguments_text, label_of, make_key, varying
from treeplay.values.structure import as_written


class Choice(enum.IntEnum):
    ONE = 1


class Agreeable:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


class Whole(int):
    pass


def test_values_of_tensors_do_not_matter() -> None:
    assert make_key(call(torch.ones(2), a=[3])) == make_key(call(torch.zeros(2), a=[3]))


DIFFERENT = [
    (call(torch.ones(2)), call(torch.ones(3))),
    (call(torch.ones(2, 3)), call(torch.ones(3, 2).t())),
    (call(torch.ones(2)), call(torch.ones(2).double())),
    (call(torch.ones(2)), call(torch.ones(2, requires_grad=True))),
    (call(1), call(1.0)),
    (call(1), call(True)),
    (call(0.0), call(-0.0)),
    (call("a"), call(b"a")),
    (call([1]), call((1,))),
    (call(a=1), call(1)),
    (call({"a": 1, "b": 2}), call({"b": 2, "a": 1})),
    (call(1j), call(-1j)),
    (call(Fraction(1)), call(1)),
    (call(Decimal("1.0")), call(Decimal("1.00"))),
    (call(numpy.float64(0.0)), call(numpy.float64(-0.0))),
    (call(numpy.float32(1)), call(numpy.float64(1))),
    (call(numpy.float64(1)), call(1.0)),
    (call(Choice.ONE), call(1)),
    (call(frozenset([1])), call(frozenset([True]))),
    (call({1: 2}), call({True: 2})),
    (call({0.0: 2}), call({-0.0: 2})),
    (call({(1, 0): 2}), call({(1, False): 2})),
    (call(Agreeable()), call(Agreeable())),
    (call(Whole(3)), call(3)),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_everything_else_does(one: Call, other: Call) -> None:
    assert make_key(one) != make_key(other)


def test_equal_values_made_anew_share_a_key() -> None:
    for make in (lambda: numpy.float64(0.5), lambda: Fraction(1, 3), lambda: slice(0, 2), lambda: Decimal("1.0")):
        assert make_key(call(make())) == make_key(call(make()))


def test_a_nan_is_a_nan() -> None:
    assert make_key(call(float("nan"))) == make_key(call(float("nan")))


def test_modes_of_the_thread_are_part_of_the_key() -> None:
    keys = [make_key(call(1))]
    with torch.no_grad():
        keys.append(make_key(call(1)))
    with torch.inference_mode():
        keys.append(make_key(call(1)))
    with torch.autocast("cpu", torch.bfloat16):
        keys.append(make_key(call(1)))
    with torch.autocast("cpu", torch.float16):
        keys.append(make_key(call(1)))
    assert len(set(keys)) == 5


def test_what_cannot_be_hashed_is_named() -> None:
    with pytest.raises(Refusal, match=r"argument args\[1\]\['deep'\]: a static argument of type set"):
        make_key(call(1, {"deep": {1}}))


def test_sparse_tensors_and_large_objects_have_short_names() -> None:
    text = label_of(call(torch.eye(2).to_sparse(), x=torch.ones(2, 3), y="a" * 100, z=None))
    assert text == "args[0]=sparse_coo, x=float32[2, 3], y=<str>, z=None"
    assert label_of(call()) == "no arguments"


def test_what_varies_is_named_even_in_a_later_dimension() -> None:
    calls = [arguments_text(call(torch.ones(2, n), mode="a", rest=[n % 2])) for n in range(3)]
    assert varying(calls) == "args[0], rest[0]"


@pytest.mark.parametrize(("path", "text"), [("$[0][1]", "args[1]"), ("$[1]['x'].y", "kwargs['x'].y"), ("$", "$")])
def test_paths_are_shown_as_a_user_would_write_them(path: str, text: str) -> None:
    assert as_written(path) == text
