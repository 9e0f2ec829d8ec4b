"""Which code ran: noted by the interpreter, of one thread, beside a profiler of the user's."""

from __future__ import annotations

import cProfile
import functools
import pstats
import random
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from torch.profiler import ProfilerActivity, profile

from treeplay.guards.reads.ran import RanCode, noting


def inner(values: list[int]) -> int:
    return len(values)


def outer() -> int:
    return inner([2, 1]) + sum(each for each in [1])


def other() -> None:
    pass


def names(ran: RanCode) -> set[str]:
    return {code.co_name for code in ran.code().values()}


def of(program: Callable[[], Any]) -> RanCode:
    ran = noting()
    ran.start()
    program()
    ran.stop()
    return ran


def test_code_that_ran_is_noted_and_no_other() -> None:
    ran = of(outer)
    assert {"outer", "inner", "<genexpr>"} <= names(ran) and "other" not in names(ran)
    assert all(id(code) == key for key, code in ran.code().items())
    assert ran.is_complete


def test_what_ran_before_and_afterwards_is_not_noted() -> None:
    ran = noting()
    inner([])
    ran.start()
    other()
    ran.stop()
    outer()
    assert "other" in names(ran) and not {"inner", "outer"} & names(ran)


def test_a_pause_leaves_out_what_is_in_it() -> None:
    ran = noting()
    ran.start()
    ran.pause()
    ran.pause()
    outer()
    ran.resume()
    ran.resume()
    other()
    ran.stop()
    assert "other" in names(ran) and not {"inner", "outer"} & names(ran)


def test_code_that_raised_is_noted() -> None:
    def failing() -> None:
        raise ValueError("as told")

    def program() -> None:
        with pytest.raises(ValueError, match="as told"):
            failing()

    assert "failing" in names(of(program))


def test_builtins_are_named_with_their_callers() -> None:
    def asking() -> list[Any]:
        return [time.time(), sorted([2, 1])]

    found = of(lambda: (asking(), outer())).builtins()
    assert found["time.time"] == [asking.__code__]
    assert inner.__code__ in found["builtins.len"] and asking.__code__ in found["builtins.sorted"]


def test_other_threads_are_not_noted() -> None:
    def program() -> None:
        thread = threading.Thread(target=outer)
        thread.start()
        thread.join()
        other()

    assert "other" in names(of(program)) and not {"inner", "outer"} & names(of(program))


def test_a_function_that_profiles_is_set_aside_and_goes_on() -> None:
    seen: list[str] = []

    def profiler(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)

    sys.setprofile(profiler)
    try:
        ran = of(outer)
        is_back = sys.getprofile() is profiler
        other()
    finally:
        sys.setprofile(None)
    assert is_back and "other" in seen and {"outer", "inner"} <= names(ran)


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="the profiler notes nothing here")
def test_a_profiler_that_fails_leaves_the_users_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(cProfile.Profile):
        def getstats(self) -> Any:
            raise MemoryError("memory was exhausted while profiling")

    def profiler(frame: FrameType, event: str, _: Any) -> None:
        pass

    monkeypatch.setattr(cProfile, "Profile", Failing)
    sys.setprofile(profiler)
    try:
        ran = of(outer)
        is_back = sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert is_back and not ran.is_complete and names(ran) == set() == ran.messages()


def test_a_profile_of_the_users_is_set_aside_and_goes_on() -> None:
    profile = cProfile.Profile()
    profile.enable()
    try:
        ran = of(outer)
        is_back = sys.getprofile() is profile or hasattr(sys, "monitoring")
        other()
    finally:
        profile.disable()
    timed = {name for _, _, name in pstats.Stats(profile).stats}  # type: ignore[attr-defined]
    assert is_back and "other" in timed and {"outer", "inner"} <= names(ran)


def test_a_profiler_in_c_that_is_none_of_pythons_stays_on() -> None:
    """As torch's, which notes stacks: nobody could put it back."""
    with profile(activities=[ProfilerActivity.CPU], with_stack=True):
        theirs = sys.getprofile()
        ran = noting()
        ran.start()
        ran.pause()
        ran.resume()
        outer()
        ran.stop()
        assert sys.getprofile() is theirs is not None
    assert ran.is_complete is ("outer" in names(ran))


def test_nothing_is_left_on() -> None:
    before = sys.getprofile()
    of(outer)
    assert sys.getprofile() is before


def test_one_may_follow_another() -> None:
    assert "inner" in names(of(outer)) and "inner" in names(of(outer)) and "inner" not in names(of(other))


def test_the_same_code_is_noted_again_in_another_block() -> None:
    """Also where the interpreter was told to tell of it no more."""
    first, second = of(outer), of(outer)
    assert names(first) == names(second) >= {"outer", "inner"}
    assert first.builtins().keys() == second.builtins().keys() and first.builtins()


def test_a_call_of_another_builtin_at_the_same_place_is_noted() -> None:
    def each_of(functions: list[Callable[[list[int]], Any]]) -> None:
        for function in functions:
            function([1])

    found = of(functools.partial(each_of, [other_than_a_builtin, len, sum, other_than_a_builtin, max])).builtins()
    assert {name.rpartition(".")[2] for name in found} >= {"len", "sum", "max"}


class Dice(random.Random):
    """A generator of the user's."""


@pytest.mark.parametrize("kind", [random.Random, Dice])
def test_a_method_is_of_the_class_that_has_it(kind: type[random.Random]) -> None:
    """Whether it is called bound or on the object, of that class or of one derived from it."""
    dice = kind(1)
    bound = dice.random
    assert "Random.random" in of(lambda: bound()).methods() and "Random.random" in of(lambda: dice.random()).methods()


def other_than_a_builtin(_: list[int]) -> None:
    pass
