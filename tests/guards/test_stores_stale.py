"""What a program stores is stored by replays too, also where the second call found it stored already; and where it is read."""

from __future__ import annotations

import contextlib
import gc
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay
from support import jit
from support.follows import Story, follows

Tensor = torch.Tensor


class Holder:
    """A place for everything; its state is compared by identity where an object is meant, by value elsewhere."""

    last: Any = None

    def __init__(self) -> None:
        self.best = torch.full((3,), 2.0)
        self.rate = 3.0
        self.name = "best"
        self.log: Any = {}
        self.slots: Any = [None, None]
        self.seen: set[Any] = set()

    def state(self) -> list[Any]:
        found = [self.last, *self.slots, *(self.log.values() if isinstance(self.log, dict) else [])]
        shown = [sorted(self.log), sorted(map(str, self.seen)), sorted(vars(self)), self.rate]
        return [*(value is self.best for value in found), *found, *map(str, shown)]


def _setattr(h: Any, value: Any) -> None:
    setattr(h, "la" + "st", value)


def _attribute(h: Any, value: Any) -> None:
    h.last = value


def _item(h: Any, value: Any) -> None:
    h.log["best"] = value


def _update(h: Any, value: Any) -> None:
    h.log.update(best=value)


def _vars(h: Any, value: Any) -> None:
    vars(h)["last"] = value


def _index(h: Any, value: Any) -> None:
    h.slots[1] = value


def _slice(h: Any, value: Any) -> None:
    h.slots[:] = [value, value]


def _class_attribute(h: Any, value: Any) -> None:
    type(h).last = value


STORES: dict[str, Callable[[Any, Any], Any]] = {
    "attribute": _attribute,
    "setattr": _setattr,
    "vars": _vars,
    "object.__setattr__": lambda h, value: object.__setattr__(h, "last", value),
    "item": _item,
    "update": _update,
    "setdefault": lambda h, value: h.log.setdefault("best", value),
    "dunder": lambda h, value: h.log.__setitem__("best", value),
    "union": lambda h, value: h.log.__ior__({"best": value}),
    "index": _index,
    "slice": _slice,
    "class": _class_attribute,
}


def _forget(h: Any) -> None:
    h.log.clear()
    h.slots[:] = [None, None]
    h.last = None
    type(h).last = None


def _rebind(h: Any) -> None:
    h.log, h.slots, h.last = {}, [None, None], 5.0


def _replace(h: Any) -> None:
    h.best, h.rate = torch.full((3,), 7.0), 9.0


FORGET = {"forgotten": _forget, "rebound": _rebind, "another value": _replace}


@pytest.mark.parametrize("forget", FORGET.values(), ids=FORGET)
@pytest.mark.parametrize("what", ["best", "rate", "name"])
@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
@follows()
def test_a_store_that_changes_nothing_in_the_second_call(
    store: Callable[[Any, Any], Any], what: str, forget: Callable[[Any], None]
) -> Story:
    holder: Any = type("Own", (Holder,), {})()

    def program(x: Tensor) -> Tensor:
        store(holder, getattr(holder, what))
        return x * 2 - holder.best

    yield program, holder.state
    for _ in range(2):
        forget(holder)
        yield


@pytest.mark.parametrize("between", [None, 5.0, "another tensor", "deleted"])
@follows()
def test_the_last_result_kept_in_an_attribute(between: Any) -> Story:
    holder = Holder()

    def program(x: Tensor) -> Tensor:
        y = x * 2 - holder.best
        holder.last = y.sum(0)
        return y

    yield program, holder.state
    if between == "deleted":
        del holder.last
    else:
        holder.last = torch.ones(3) if between == "another tensor" else between
    yield


@follows(may_refuse=True)
def test_an_argument_kept_in_an_attribute() -> Story:
    holder = Holder()
    given: list[Any] = []

    def program(x: Tensor) -> Tensor:
        holder.last = x
        return x * 2 - 1

    def state() -> list[Any]:
        given.append(holder.last)
        return [holder.last, len({id(value) for value in given})]

    yield program, state
    holder.last = None
    yield


@follows()
def test_a_state_that_starts_anew_from_none() -> Story:
    holder = Holder()

    def program(x: Tensor) -> Tensor:
        before = torch.zeros(3) if holder.last is None else holder.last
        holder.last = torch.tanh(before * 2 - x.sum(0))
        return x * 2 - holder.last

    yield program, holder.state
    holder.last = None
    yield
    holder.last = torch.ones(3)
    yield


@follows()
def test_a_flag_that_the_program_sets() -> Story:
    holder = types.SimpleNamespace(is_ready=True)

    def program(x: Tensor) -> Tensor:
        before = 2.0 if holder.is_ready else 3.0
        holder.is_ready = True
        return x * before - 1

    yield program, lambda: holder.is_ready
    holder.is_ready = False
    yield
    holder.is_ready = False
    yield


@pytest.mark.parametrize("how", ["pop", "del", "clear", "all"])
@follows()
def test_a_key_that_the_program_takes_out_and_puts_in_again(how: str) -> Story:
    log: dict[str, Any] = {}

    def program(x: Tensor) -> Tensor:
        if how == "clear":
            log.clear()
        elif how == "del" and "k" in log:
            del log["k"]
        else:
            log.pop("k", None)
        if how == "all":
            log.pop("name", None)
        log.update(k=1.0, name=x.sum())
        return x * 2 - 1

    yield program, lambda: list(log)
    log["other"] = 1.0
    yield
    log.clear()
    yield


@follows()
def test_a_set_that_the_program_adds_to() -> Story:
    seen: set[str] = set()

    def program(x: Tensor) -> Tensor:
        seen.add("x")
        return x * len(seen) - 1

    yield program, lambda: sorted(seen)
    seen.clear()
    yield
    seen.add("y")
    yield
    seen.remove("x")
    yield


@pytest.mark.parametrize("how", ["pop", "del", "clear", "delattr"])
@follows()
def test_what_the_program_takes_away(how: str) -> Story:
    holder = Holder()
    holder.log["key"] = holder.best

    def program(x: Tensor) -> Tensor:
        if how == "pop":
            holder.log.pop("key", None)
        elif how == "del" and "key" in holder.log:
            del holder.log["key"]
        elif how == "clear":
            holder.log.clear()
        elif how == "delattr" and "last" in vars(holder):
            del holder.last
        return x * 2 - 1

    yield program, holder.state
    holder.log["key"] = holder.best
    holder.last = 3.0
    yield
    holder.log["key"] = 5.0
    yield


class Slotted:
    __slots__ = ("last",)


CONFIG = types.ModuleType("config")
CONFIG.__file__ = __file__  # a module of the user's


@pytest.mark.parametrize("where", ["slot", "tuple", "module"])
def test_an_argument_that_is_stored_is_stored_by_the_recording_that_found_it_there(where: str) -> None:
    """Recorded while the place held that very object already, and replayed while it holds another."""
    slotted = Slotted()

    def program(x: Tensor, given: Any) -> Tensor:
        if where == "module":
            CONFIG.last = given  # type: ignore[attr-defined]
        else:
            slotted.last = given if where == "slot" else (given, 1)
        return x * 2 - 1

    owner: Any = CONFIG if where == "module" else slotted
    owner.last = None
    jitted, first, second = jit(program), object(), object()
    for given in (first, first, first, second, second, second, first, second, first):
        jitted(torch.ones(3), given)
        assert (owner.last[0] if where == "tuple" else owner.last) is given
    assert jitted.statistics().replays >= 3


def test_a_store_to_a_module_of_a_library_is_refused() -> None:
    def program(x: Tensor, given: Any) -> Tensor:
        types.treeplay_last = given  # type: ignore[attr-defined]
        return x * 2 - 1

    jitted, given = jit(program), object()
    try:
        jitted(torch.ones(3), given)
        types.treeplay_last = None  # type: ignore[attr-defined]
        with pytest.raises(treeplay.Refusal, match="treeplay_last"):
            jitted(torch.ones(3), given)
        assert types.treeplay_last is None  # type: ignore[attr-defined]
    finally:
        del types.treeplay_last  # type: ignore[attr-defined]


def test_an_attribute_of_a_librarys_module_that_is_given_what_it_has_is_guarded() -> None:
    def program(x: Tensor) -> Tensor:
        types.treeplay_flag = False  # type: ignore[attr-defined]
        return x * 2 - 1

    jitted = jit(program, on_refusal="eager")
    try:
        for _ in range(4):
            jitted(torch.ones(3))
        assert jitted.statistics().replays == 3
        types.treeplay_flag = True  # type: ignore[attr-defined]
        jitted(torch.ones(3))
        assert types.treeplay_flag is False  # type: ignore[attr-defined]
    finally:
        del types.treeplay_flag  # type: ignore[attr-defined]


def test_an_attribute_of_a_librarys_module_that_the_program_sets_and_puts_back() -> None:
    """The value that it finds and puts back is one that a later call finds, too, if it is another one by then."""

    def program(x: Tensor) -> Tensor:
        found, types.treeplay_rate = types.treeplay_rate, 5.0  # type: ignore[attr-defined]
        try:
            return x * types.treeplay_rate - (1.0 if found == "a" else 3.0)  # type: ignore[attr-defined]
        finally:
            types.treeplay_rate = found  # type: ignore[attr-defined]

    jitted = jit(program)
    try:
        for rate in "aaabbba":
            types.treeplay_rate = rate  # type: ignore[attr-defined]
            x = torch.randn(3)
            assert torch.equal(jitted(x), x * 5.0 - (1.0 if rate == "a" else 3.0))
            assert types.treeplay_rate == rate  # type: ignore[attr-defined]
        assert jitted.statistics().replays == 5
    finally:
        del types.treeplay_rate  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["simplefilter", "filterwarnings", "record", "raise"])
def test_filters_of_warnings_that_are_put_back_within_the_call(how: str) -> None:
    total = torch.zeros(3)

    def program(x: Tensor) -> Tensor:
        with contextlib.suppress(KeyError), warnings.catch_warnings(record=how == "record"):
            if how == "filterwarnings":
                warnings.filterwarnings("ignore", category=UserWarning)
            else:
                warnings.simplefilter("ignore")
            total.mul_(0.5).add_(x)
            if how == "raise":
                raise KeyError
        return total * (2.0 if warnings.filters[0][0] == "error" else 3.0) - 1.0

    jitted, expected = jit(program), torch.zeros(3)
    with warnings.catch_warnings():
        for action in ("default", "default", "default", "error", "error", "error", "default"):
            warnings.simplefilter(action)  # type: ignore[arg-type]
            found, filters = [*warnings.filters], warnings.filters
            x = torch.randn(3)
            expected.mul_(0.5).add_(x)
            assert torch.equal(jitted(x), expected * (2.0 if action == "error" else 3.0) - 1.0)
            assert warnings.filters is filters and [*filters] == found
    assert jitted.statistics().replays >= 3


def test_filters_of_warnings_that_stay_are_set_by_each_call() -> None:
    def program(x: Tensor) -> Tensor:
        warnings.simplefilter("ignore", category=ResourceWarning, append=True)
        return x * 2.0 - 1.0

    with warnings.catch_warnings():
        warnings.resetwarnings()
        jitted = jit(program, on_refusal="eager")
        for _ in range(4):
            jitted(torch.ones(3))
            assert len(warnings.filters) == 1
            warnings.resetwarnings()


EMPTY: dict[str, Callable[[], Any]] = {
    "a list": list,
    "a dict": lambda: {"a": 1.5, "b": [2]},
    "a tuple with a list": lambda: ([1], "b"),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_a_container_that_is_read_and_replaced_by_one_like_it(kind: str) -> None:
    make = EMPTY[kind]

    @follows(recordings=1)
    def story() -> Story:
        h = Holder()
        h.log, h.last = make(), None

        def program(x: Tensor) -> Tensor:
            y = x * (2 + len(h.log)) - float(h.log is h.last)
            h.log = make()
            return y

        yield program, lambda: [repr(h.log), h.log is h.last]
        kept = h.log
        yield
        assert kept == h.log and kept is not h.log
        h.log = make()
        yield

    story()


@follows()
def test_a_container_that_the_program_replaces_and_the_user_keeps_elsewhere_too() -> Story:
    h = Holder()
    h.log, h.last = [], None

    def program(x: Tensor) -> Tensor:
        y = x * (2 if h.log is h.last else 3) - len(h.log)
        h.log = []
        return y

    yield program, lambda: [len(h.log), h.log is h.last]
    h.last = h.log
    yield
    h.log = h.last = [1.5]
    yield


def test_a_container_that_is_replaced_by_another_each_time_is_refused() -> None:
    h = Holder()
    h.log = [""]

    def program(x: Tensor) -> Tensor:
        h.log = [h.log[0] + "|", "calls"]
        return x * 2 - 1

    jitted = jit(program, on_refusal="eager")
    with pytest.warns(UserWarning, match="changes a Python value"):
        for _ in range(4):
            jitted(torch.ones(2))
    assert h.log == ["||||", "calls"]


@follows(calls=6, recordings=1)
def test_a_container_that_is_replaced_by_one_with_another_number_each_time() -> Story:
    h = Holder()
    h.log = [0, "calls"]

    def program(x: Tensor) -> Tensor:
        h.log = [h.log[0] + 1, "calls"]
        return x * h.log[0] - 1

    yield program, lambda: h.log
    h.log = [7, "calls"]
    yield


class Made:
    """An object that the program makes in each call."""

    twice: Tensor
    other: Any = None


def _dropped(holder: Any, made: Made, x: Tensor) -> Any:
    return made.twice * 3.0 - 1.0


def _in_a_tuple(holder: Any, made: Made, x: Tensor) -> Any:
    holder.last = ("made", holder.last, holder.name)
    return made.twice * 3.0 - 1.0


def _returned(holder: Any, made: Made, x: Tensor) -> Any:
    return made


def _kept_elsewhere(holder: Any, made: Made, x: Tensor) -> Any:
    holder.rate = made
    return made.twice * 3.0 - 1.0


def _in_a_cycle(holder: Any, made: Made, x: Tensor) -> Any:
    made.other = made
    return made.twice * 3.0 - 1.0


def _of_the_result(holder: Any, made: Made, x: Tensor) -> Any:
    holder.last = weakref.ref(made.twice)
    return made.twice


@pytest.mark.parametrize("keep", [_dropped, _in_a_tuple, _returned, _kept_elsewhere, _in_a_cycle, _of_the_result])
def test_a_weak_reference_to_what_the_program_makes_is_dead_where_eager_leaves_it_dead(keep: Any) -> None:
    def step(holder: Any, x: Tensor) -> Any:
        made = Made()
        made.twice = x * 2.0
        holder.last = weakref.ref(made)
        holder.best.mul_(0.5).add_(made.twice)
        return keep(holder, made, x)

    mine, eagers = Holder(), Holder()
    jitted = jit(lambda x: step(mine, x), on_refusal="eager")
    for _ in range(5):
        x = torch.randn(3)
        gc.disable()
        try:
            found, expected = jitted(x), step(eagers, x)
            dead = [(each.last[1] if type(each.last) is tuple else each.last)() is None for each in (mine, eagers)]
        finally:
            gc.enable()
        assert dead[0] == dead[1] and torch.equal(mine.best, eagers.best) and type(found) is type(expected)
        del found, expected
    assert jitted.statistics().replays == (4 if keep in (_dropped, _in_a_tuple) else 0)


@pytest.mark.parametrize("is_one", [False, True])
def test_two_weak_references_that_died_are_as_many_objects_as_in_eager(is_one: bool) -> None:
    def step(holder: Any, x: Tensor, flag: bool) -> Tensor:
        one, other = Made(), Made()
        holder.last, holder.name = weakref.ref(one), weakref.ref(one if is_one else other)
        return x * 2.0 - (1.0 if flag else 3.0)

    holder = Holder()
    jitted = jit(lambda x, flag: step(holder, x, flag))
    for at in range(8):  # two recordings, which take turns
        jitted(torch.ones(3), at % 2 == 0)
        assert holder.last() is None and (holder.last is holder.name) is (holder.last == holder.name) is is_one
    assert jitted.statistics().replays == 6 and jitted.statistics().recordings == 2


def test_an_object_that_the_program_makes_and_fills_past_its_attributes_is_its_own() -> None:
    class Parts:
        def __init__(self, rate: float) -> None:
            self.rate = rate
            self.__dict__["parents"] = [self]

    def program(x: Tensor) -> Tensor:
        parts = Parts(3.0)
        return x * parts.rate - first.rate * len(parts.parents)  # type: ignore[attr-defined]

    jitted, first = jit(program), Parts(1.0)
    for _ in range(3):
        assert torch.equal(jitted(torch.ones(3)), torch.full((3,), 2.0))
    assert jitted.statistics().replays == 2


def test_an_exported_program_is_replayed_though_it_patches_a_setting_of_torchs() -> None:
    net = torch.nn.Linear(3, 2).eval()
    exported = torch.export.export(net, (torch.ones(2, 3),)).module()
    jitted = jit(exported)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(2, 3)
            assert torch.equal(jitted(x), net(x))
        with pytest.raises(AssertionError, match="Guard failed"):
            jitted(torch.ones(3, 3))
    assert jitted.statistics().replays == 3


def test_a_patch_of_a_setting_of_torchs_that_does_not_end_in_the_call_is_refused() -> None:
    from torch._dynamo import config

    def run(x: Tensor) -> Tensor:
        patches.append(config.patch(verbose=not was))
        patches[-1].__enter__()
        return x * 2.0 - 1.0

    was, patches = config.verbose, []
    jitted = treeplay.jit(run, lower="aten", on_refusal="raise")
    try:
        jitted(torch.ones(3))
        with pytest.raises(treeplay.Refusal, match="verbose"):
            jitted(torch.ones(3))
    finally:
        config.verbose = was


def test_a_saved_state_of_torchs_settings_that_the_program_loads_is_refused() -> None:
    from torch._dynamo import config

    saved, was = config.save_config(), config.verbose
    jitted = treeplay.jit(lambda x: [config.load_config(saved), x * 2.0 - 1.0][1], lower="aten", on_refusal="eager")
    try:
        for k in range(3):
            config.verbose = not was
            with pytest.warns(UserWarning, match="torch._dynamo.config") if k == 1 else contextlib.nullcontext():
                jitted(torch.ones(3))
            assert config.verbose == was
    finally:
        config.verbose = was


def test_patches_of_torchs_settings_that_end_in_the_wrong_order_are_refused() -> None:
    from torch._dynamo import config

    def run(x: Tensor) -> Tensor:
        first = config.patch(verbose=not was)
        first.__enter__()
        second = config.patch({"verbose": was})
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
        return x * 2.0 - 1.0

    was = config.verbose
    jitted = treeplay.jit(run, lower="aten", on_refusal="raise")
    try:
        jitted(torch.ones(3))
        config.verbose = was
        with pytest.raises(treeplay.Refusal, match="verbose"):
            jitted(torch.ones(3))
        assert config.verbose == was
    finally:
        config.verbose = was


@pytest.mark.parametrize("ends", ["never", "in the wrong order"])
def test_what_a_patch_of_a_setting_of_torchs_leaves_is_guarded_where_it_is_what_was_there(ends: str) -> None:
    from torch._dynamo import config

    def run(x: Tensor) -> Tensor:
        first, second = config.patch(recompile_limit=was + 1), config.patch(recompile_limit=was + 2)
        first.__enter__()
        if ends != "never":
            second.__enter__()
            first.__exit__(None, None, None)
            second.__exit__(None, None, None)
        return x * 2.0 - 1.0

    was = config.recompile_limit
    jitted = treeplay.jit(run, lower="aten", on_refusal="eager")
    try:
        for k in range(6):
            config.recompile_limit = was + 1 if k < 3 else was
            with pytest.warns(UserWarning, match="recompile_limit") if k == 4 else contextlib.nullcontext():
                jitted(torch.ones(3))
            assert config.recompile_limit == was + 1
        assert jitted.statistics().replays == 2
    finally:
        config.recompile_limit = was


def test_a_patch_of_torchs_settings_that_ends_in_the_call_is_replayed_whatever_it_finds() -> None:
    from torch._dynamo import config

    def run(x: Tensor) -> Tensor:
        with config.patch(recompile_limit=was + 1), config.patch(recompile_limit=was + 2):
            return x * 2.0 - 1.0

    was = config.recompile_limit
    jitted = treeplay.jit(run, lower="aten", on_refusal="raise")
    try:
        for k in range(5):
            config.recompile_limit = was + k
            jitted(torch.ones(3))
            assert config.recompile_limit == was + k
        assert jitted.statistics().replays == 4
    finally:
        config.recompile_limit = was


def test_a_setting_of_torchs_that_is_read_after_a_patch_of_it_has_ended_is_guarded() -> None:
    from torch._dynamo import config

    def run(x: Tensor) -> Tensor:
        with config.patch(recompile_limit=was + 1):
            y = x * config.recompile_limit
        return y - config.recompile_limit

    was = config.recompile_limit
    jitted = treeplay.jit(run, lower="aten", on_refusal="raise")
    try:
        for k in (0, 0, 0, 3, 3):
            config.recompile_limit = was + k
            assert torch.equal(jitted(torch.ones(3)), run(torch.ones(3)))
        assert jitted.statistics().recordings == 2
    finally:
        config.recompile_limit = was


def test_a_setting_of_torchs_that_the_program_counts_up_counts_once_in_the_refused_call() -> None:
    from torch._dynamo import config

    def run(x: Tensor) -> Tensor:
        config.cache_size_limit += 1
        return x * 2.0 - 1.0

    was = config.cache_size_limit
    jitted = treeplay.jit(run, lower="aten", on_refusal="eager")
    try:
        with pytest.warns(UserWarning, match="cache_size_limit"):
            for _ in range(4):
                jitted(torch.ones(3))
        assert config.cache_size_limit == was + 4
    finally:
        config.cache_size_limit = was


@pytest.mark.parametrize("where", ["a closure", "an attribute"])
def test_an_attribute_of_a_module_that_no_global_leads_to_is_refused_as_one_of_a_module(where: str) -> None:
    module: Any = types.ModuleType("counts")
    module.total, holder = 0, Holder()
    holder.last = module

    def run(x: Tensor) -> Tensor:
        (module if where == "a closure" else holder.last).total += 1
        return x * 2.0 - module.total

    jitted = treeplay.jit(run, lower="aten", on_refusal="eager")
    with pytest.warns(UserWarning, match=r"counts\.total: the program assigns this attribute of a module"):
        for at in range(3):
            assert jitted(torch.ones(1)).item() == 1.0 - at
    assert module.total == 3


def test_a_setting_of_torchs_that_the_program_sets_to_what_it_is_is_guarded() -> None:
    from torch._dynamo import config

    def run(x: Tensor) -> Tensor:
        config.verbose = was
        return x * 2.0 - 1.0

    was = config.verbose
    jitted = treeplay.jit(run, lower="aten", on_refusal="raise")
    try:
        for _ in range(3):
            jitted(torch.ones(3))
        assert jitted.statistics().replays > 0
        config.verbose = not was
        jitted(torch.ones(3))
        assert config.verbose == was
    finally:
        config.verbose = was


def test_an_attribute_that_a_module_keeps_elsewhere_is_not_lost() -> None:
    def program(x: Tensor) -> Tensor:
        torch.backends.cudnn.deterministic = True  # which a property of the module's class takes
        return x * 2 - 1

    before = torch.backends.cudnn.deterministic
    jitted = treeplay.jit(program, on_refusal="eager")
    try:
        for _ in range(6):
            torch.backends.cudnn.deterministic = False
            assert torch.equal(jitted(torch.ones(3)), torch.ones(3))
            assert torch.backends.cudnn.deterministic
    finally:
        torch.backends.cudnn.deterministic = before


def test_an_argument_that_a_librarys_module_holds_already_is_stored_anew_in_each_call() -> None:
    def program(x: Tensor, given: Tensor) -> Tensor:
        types.treeplay_last = given  # type: ignore[attr-defined]
        return x * 2 - 1

    jitted, given = treeplay.jit(program, on_refusal="eager"), [torch.full((3,), float(k)) for k in range(3)]
    try:
        for k in (0, 0, 0, 1, 1, 2, 0):
            jitted(torch.ones(3), given[k])
            assert types.treeplay_last is given[k]  # type: ignore[attr-defined]
    finally:
        del types.treeplay_last  # type: ignore[attr-defined]
