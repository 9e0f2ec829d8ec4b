"""Options of one compile are checked by name and type, and put back."""

from __future__ import annotations

import pytest
import torch

from treeplay.backend.options import Options, current, effective, overridden, overriding
from treeplay.errors import ArgumentError, ArgumentTypeError


def test_D2_the_innermost_override_wins_and_all_are_put_back():
    with overriding({"eager_random": True, "inner": "aten"}):
        with overriding({"inner": "inductor"}) as chosen:
            assert current() is chosen
            assert (chosen.inner, chosen.eager_random) == ("inductor", True)
        assert current().inner == "aten"
    assert current() == Options()


def test_D2_an_error_puts_them_back_too():
    with pytest.raises(ZeroDivisionError), overriding({"inner": "aten"}):
        raise ZeroDivisionError
    assert current() == Options()


def test_D2_an_unknown_name_is_refused_with_the_nearest():
    with (
        pytest.raises(ArgumentError, match=r"options\['iner'\]: no such option; did you mean 'inner'"),
        overriding({"iner": 1}),
    ):
        pass


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
        effective({name: value})


def test_D2_an_inner_compiler_that_does_not_exist_is_refused():
    with pytest.raises(ArgumentError, match="found 'inductr'"):
        effective({"inner": "inductr"})


def test_D2_the_query_gives_all_options_as_a_copy():
    found = effective({"inner": "aten"})
    assert found["inner"] == "aten" and found["joint"] == () and found["eager_random"] is False
    found["eager_random"] = True
    assert current() == Options() and effective()["eager_random"] is False


def test_W47_the_alias_check_is_one_of_three():
    assert overridden(Options(), {"alias_check": "raise"}).alias_check == "raise"
    with pytest.raises(ArgumentError, match=r"alias_check.*found 'loud'"):
        overridden(Options(), {"alias_check": "loud"})
    with pytest.raises(ArgumentTypeError, match="alias_check"):
        overridden(Options(), {"alias_check": True})


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
