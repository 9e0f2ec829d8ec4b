"""What a user keeps on objects that are not the user's own: jitted functions, torch's optimizers, parameters, containers."""

from __future__ import annotations

import collections.abc
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same, jit
from support.installed import FILE, package


@pytest.mark.parametrize("name", ["scale", "_scale"])
def test_an_attribute_of_a_jitted_function_is_guarded(name: str) -> None:
    """It was read when the function was recorded, and never again."""

    @treeplay.jit(lower="aten")
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * getattr(scaled, name) - 1  # type: ignore[no-any-return]

    for scale in (2.0, 2.0, 2.0, 5.0, 5.0, 7.0):
        setattr(scaled, name, scale)
        assert_same(scaled(torch.ones(2)), torch.ones(2) * scale - 1)
    assert scaled.statistics().replays >= 2


def _by_getattr(x: torch.Tensor, program: Any) -> torch.Tensor:
    return x * getattr(program, "scale", 3.0) - 1  # type: ignore[no-any-return]


def _by_a_computed_name(x: torch.Tensor, program: Any) -> torch.Tensor:
    return x * getattr(program, "sca" + str(x.dim()) + "e", 3.0) - 1  # type: ignore[no-any-return]


def _by_hasattr(x: torch.Tensor, program: Any) -> torch.Tensor:
    return x * (program.scale if hasattr(program, "scale") else 3.0) - 1


def _by_the_error(x: torch.Tensor, program: Any) -> torch.Tensor:
    try:
        scale = program.scale
    except AttributeError:
        scale = 3.0
    return x * scale - 1


@pytest.mark.parametrize("reading", [_by_getattr, _by_a_computed_name, _by_hasattr, _by_the_error])
@pytest.mark.parametrize("has_another", [False, True])
def test_an_attribute_that_a_jitted_function_gets_later_is_noticed(
    reading: Callable[[torch.Tensor, Any], torch.Tensor], *, has_another: bool
) -> None:
    @treeplay.jit(lower="aten")
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return reading(x, scaled)

    if has_another:
        scaled.other = 1  # type: ignore[attr-defined]
    for scale in (3.0, 3.0, 3.0, 5.0, 5.0, 7.0):
        if scale > 3:
            setattr(scaled, "sca1e" if reading is _by_a_computed_name else "scale", scale)
        assert_same(scaled(torch.ones(2)), torch.ones(2) * scale - 1)
    assert scaled.statistics().replays >= 2


def test_an_attribute_that_a_jitted_function_gets_and_nobody_reads_changes_nothing() -> None:
    @treeplay.jit(lower="aten")
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * getattr(scaled, "scale", 3.0) - 1  # type: ignore[no-any-return]

    for call in range(6):
        if call > 2:
            scaled.note = call  # type: ignore[attr-defined]
        assert_same(scaled(torch.ones(2)), torch.full((2,), 2.0))
    assert (scaled.statistics().recordings, scaled.statistics().replays) == (1, 5)


def test_a_jitted_function_has_the_attributes_that_the_function_had() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * program.scale - 1  # type: ignore[attr-defined, no-any-return]

    scaled.scale = 2.0  # type: ignore[attr-defined]
    for name in ("_lower", "_cache", "reset"):  # which ours has too
        setattr(scaled, name, "something of its own")
    program = treeplay.jit(scaled, lower="aten")
    assert [program(torch.ones(1)).item() for _ in range(3)] == [1.0] * 3
    program.scale = 5.0  # type: ignore[attr-defined]
    assert [program(torch.ones(1)).item() for _ in range(3)] == [4.0] * 3
    program.reset()
    assert [program(torch.ones(1)).item() for _ in range(3)] == [4.0] * 3


def test_what_a_jitted_function_counts_on_itself_each_replay_counts() -> None:
    @treeplay.jit(lower="aten")
    def step(x: torch.Tensor) -> torch.Tensor:
        step.calls = getattr(step, "calls", 0) + 1  # type: ignore[attr-defined]
        return x * step.calls  # type: ignore[attr-defined, no-any-return]

    for call in range(1, 9):
        assert_same(step(torch.ones(2)), torch.full((2,), float(call)))
        assert step.calls == call  # type: ignore[attr-defined]
    assert step.statistics().replays >= 6


class Named(dict[str, Any]):
    """A dictionary with attributes."""


class Owner:
    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.5)
        self.optimizer.counts = {"n": 1}  # type: ignore[attr-defined]
        self.weight.meta = {"n": 1}  # type: ignore[attr-defined]
        self.named = Named()
        self.named.counts = {"n": 1}  # type: ignore[attr-defined]
        self.named.n = 1  # type: ignore[attr-defined]

    def kept(self) -> list[Any]:
        own: Any = self
        return [self.optimizer.defaults["lr"], own.optimizer.counts, own.weight.meta, own.named.counts, own.named.n]


def _halves_the_default(owner: Any, x: torch.Tensor) -> torch.Tensor:
    owner.optimizer.defaults["lr"] *= 0.5
    return x * owner.optimizer.defaults["lr"] - 1


def _counts_on_an_optimizer(owner: Any, x: torch.Tensor) -> torch.Tensor:
    owner.optimizer.counts["n"] += 1
    return x * owner.optimizer.counts["n"] - 1


def _counts_on_a_parameter(owner: Any, x: torch.Tensor) -> torch.Tensor:
    owner.weight.meta["n"] += 1
    return x * owner.weight.meta["n"] - 1


def _counts_on_a_container(owner: Any, x: torch.Tensor) -> torch.Tensor:
    owner.named.counts["n"] += 1
    owner.named.n += 2
    return x * owner.named.counts["n"] - owner.named.n


@pytest.mark.parametrize(
    "program", [_halves_the_default, _counts_on_an_optimizer, _counts_on_a_parameter, _counts_on_a_container]
)
def test_what_is_counted_elsewhere_is_counted_once_in_each_call(
    program: Callable[[Any, torch.Tensor], torch.Tensor],
) -> None:
    """Counted in a container that nobody followed, it froze, or was counted twice by the call that recorded."""
    mine, twin = Owner(), Owner()
    jitted = jit(lambda x: program(mine, x), on_refusal="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for call in range(8):
            x = torch.tensor([call, 3.0])
            assert_same(jitted(x), program(twin, x))
            assert mine.kept() == twin.kept()


COUNTED = """
class Counted:
    def __init__(self, function):
        self.function, self.calls = function, 0

    def __get__(self, owner, kind):
        self.calls += 1
        return self.function

class Owner:
    apply = Counted(lambda x: x * 3 - 1)
"""
STEP = """
owner = Owner()

def step(x):
    return owner.apply(x)
"""


@pytest.mark.parametrize("module", [None, "of_a_test", "__main__"])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_what_a_descriptor_counts_is_counted_whatever_module_its_class_says_it_is_from(
    module: str | None, is_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = types.ModuleType(module or "")
    if module is None:
        del made.__name__
    elif is_loaded:
        monkeypatch.setitem(sys.modules, module, made)
    exec(COUNTED + STEP, vars(made))
    program = treeplay.jit(made.step, lower="aten", on_refusal="raise")
    for call in range(1, 7):
        assert_same(program(torch.ones(2)), torch.full((2,), 2.0))
        assert vars(made.Owner)["apply"].calls == call
    assert program.statistics().replays == 5


def test_what_a_descriptor_in_a_class_of_a_library_counts_is_refused_and_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = types.ModuleType("a_library.of_a_test")
    made.__file__ = FILE
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(COUNTED, vars(made))
    owner = made.Owner()
    program = treeplay.jit(lambda x: owner.apply(x), lower="aten")
    with pytest.warns(UserWarning, match=r"Counted\.calls: the program assigns this attribute"):
        for call in range(1, 7):
            assert_same(program(torch.ones(2)), torch.full((2,), 2.0))
            assert vars(made.Owner)["apply"].calls == call


class Counter(collections.abc.Sized):
    """Assigns its attributes itself."""

    def __init__(self) -> None:
        self.counts = {"calls": 0}

    def __len__(self) -> int:
        return len(self.counts)


def test_an_object_of_a_class_that_type_made_of_an_abstract_one_counts() -> None:
    """Such a class says that it is from `abc`."""
    counter = type("Derived", (Counter,), {})()

    def step(x: torch.Tensor) -> torch.Tensor:
        counter.counts["calls"] += 1
        return x * counter.counts["calls"] - 1

    program = jit(step)
    for call in range(1, 7):
        assert_same(program(torch.ones(2)), torch.full((2,), call - 1.0))
        assert counter.counts["calls"] == call


FLAGGED = """
import sys

flag, total, last = False, 0.0, None

class Backward:
    def put_back(self, x):
        module = sys.modules["a_library"]
        module.flag = True
        try:
            return (x * 2 if module.flag else x) - 1
        finally:
            module.flag = False

    def left(self, x):
        module = sys.modules["a_library"]
        module.total = module.total + 1
        return x * 2 - 1

    def keeps(self, x, last):
        sys.modules["a_library"].last = last
        return x * 2 - 1
"""


def test_a_flag_that_a_method_of_a_library_sets_in_its_module_and_puts_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made = package(FLAGGED, monkeypatch)
    owner = made.Backward()
    program = jit(lambda x: owner.put_back(x))
    for flag in (False, False, False, True, False, False, False):
        made.flag = flag  # after each call it is what the method leaves
        assert_same(program(torch.arange(3.0)), torch.arange(3.0) * 2 - 1)
        assert made.flag is False
    assert program.statistics().replays >= 4


def test_what_a_method_of_a_library_leaves_in_its_module_is_refused_by_the_modules_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = package(FLAGGED, monkeypatch)
    owner = made.Backward()
    program = treeplay.jit(lambda x: owner.left(x), lower="aten")
    with pytest.warns(UserWarning, match=r"a_library\.total: the program"):
        for call in range(1, 5):
            assert_same(program(torch.arange(3.0)), torch.arange(3.0) * 2 - 1)
            assert made.total == call


@pytest.mark.parametrize("make", [lambda: torch.ones(3), lambda: [torch.ones(3)], lambda: {"a": torch.ones(3)}])
def test_an_argument_that_a_method_of_a_library_leaves_in_its_module_is_refused(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = package(FLAGGED, monkeypatch)
    owner, first, second = made.Backward(), make(), make()
    program = treeplay.jit(lambda x, last: owner.keeps(x, last), lower="aten")
    with pytest.warns(UserWarning, match=r"a_library\.last: the program"):
        for last in (first, first, first, second, first):
            assert_same(program(torch.arange(3.0), last), torch.arange(3.0) * 2 - 1)
            assert made.last is last


def test_warnings_that_are_caught_inside() -> None:
    def program(x: torch.Tensor, scale: float) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                warnings.warn("here", stacklevel=1)
            except UserWarning:
                return x * scale - 1
        return x

    jitted, before = jit(program), warnings.filters
    for _ in range(5):
        assert_same(jitted(torch.arange(3.0), 2.0), torch.arange(3.0) * 2 - 1)
        assert warnings.filters is before
    assert jitted.statistics().replays == 4


def test_a_setting_of_torch_that_is_put_back_is_refused() -> None:
    """Operators ask for it, and a replay would run them without."""

    def program(x: torch.Tensor) -> torch.Tensor:
        before = torch.backends.cudnn.enabled
        torch.backends.cudnn.enabled = not before
        try:
            return x * 2 - 1
        finally:
            torch.backends.cudnn.enabled = before

    jitted = treeplay.jit(program, lower="aten")
    with pytest.warns(UserWarning, match=r"torch\.backends\.cudnn\.enabled: the program assigns"):
        for _ in range(3):
            assert_same(jitted(torch.arange(3.0)), torch.arange(3.0) * 2 - 1)
    assert jitted.statistics().replays == 0
