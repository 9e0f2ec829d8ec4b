"""Options of one compile are checked by name and type, and put back."""

from __future__ import annotations

import pytest
import torch

from treeplay.backend.options import Options, options_from
from treeplay.errors import ArgumentError, ArgumentTypeError


def test_D2_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ArgumentError, match=r"options\['iner'\]: no such option; did you mean 'inner'"):
        options_from({"iner": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eager_random", 1),
        ("inner", 3),
        ("joint", print),
        ("joint", [3]),
        ("partition", "min"),
        ("decompositions", [1]),
    ],
)
def test_D2_a_value_of_another_type_is_refused(name, value):
    with pytest.raises(ArgumentTypeError, match=rf"options\['{name}'\]: expected .*, found {type(value).__name__}"):
        options_from({name: value})


def test_D2_an_inner_compiler_that_does_not_exist_is_refused():
    with pytest.raises(ArgumentError, match="found 'inductr'"):
        options_from({"inner": "inductr"})


def test_D2_the_options_are_a_value_of_their_own():
    given = {"inner": "aten", "joint": [print]}
    found = options_from(given)
    given["joint"].clear()
    assert (found.inner, found.joint, found.eager_random) == ("aten", (print,), False)
    assert options_from({}) == options_from(None) == Options()


def test_W47_the_alias_check_is_one_of_three():
    assert options_from({"alias_check": "raise"}).alias_check == "raise"
    with pytest.raises(ArgumentError, match=r"alias_check.*found 'loud'"):
        options_from({"alias_check": "loud"})
    with pytest.raises(ArgumentTypeError, match="alias_check"):
        options_from({"alias_check": True})


@pytest.mark.compile
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_modes_that_are_what_the_backend_does_are_taken(mode):
    compiled = torch.compile(lambda x: x * 3 - 1, backend="treeplay", mode=mode)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    torch.compiler.reset()


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_a_mode_that_would_not_be_followed_is_an_error(mode):
    compiled = torch.compile(lambda x: x * 3 - 1, backend="treeplay", mode=mode)
    with pytest.raises(Exception, match=f"mode: backend 'treeplay' has.* found '{mode}'") as raised:
        compiled(torch.ones(2))
    assert isinstance(raised.value.__cause__ or raised.value, ArgumentError) or "ArgumentError" in str(raised.value)
    torch.compiler.reset()
