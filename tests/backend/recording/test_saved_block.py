"""Which results of a forward lie in its saved block, and what goes around a recording that gives one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from support.taped_gpu import TapedGpu, capture_on_the_cpu
from treeplay.backend.recording.compiled_graph import CompiledGraph
from treeplay.backend.recording.replayed import Replayed
from treeplay.backend.recording.returns import Returns, survey_returns
from treeplay.backend.recording.saved_block import SavedBlock, plan_block, returns_for_block
from treeplay.device.host import HostDevice
from treeplay.settings import settings
from treeplay.torch_seam.tensors import view_in_block
from treeplay.values.block import PLACE_BYTES, SavedLayout
from treeplay.values.layout import Layout
from treeplay.values.output import Fresh, SameAsInput, View
from treeplay.wrap.aot.calls.block import open_block

INNER = (2, 8)


def forward(args: list[Any]) -> list[Any]:
    """Two results and a weight; of what it saves some lies in new memory that no result shows."""
    x, w = args
    args.clear()
    shown, hidden, more = x @ w - 1, (x @ w).sin(), x.double() * 2
    return [shown, w.t(), hidden.t(), more, shown.t(), w, hidden[1:], x > 0, w]


def planned(run: Callable[[list[Any]], list[Any]] = forward, inner: tuple[int, int] = INNER) -> tuple[Any, Any, Any]:
    given = [torch.randn(4, 4), torch.randn(4, 4)]
    results = run(list(given))
    returns = survey_returns(given, results)
    assert isinstance(returns, Returns)
    return plan_block(returns, results, inner), returns, results


def test_what_no_result_shows_lies_in_the_block() -> None:
    block, returns, _ = planned()
    assert isinstance(block, SavedBlock)
    assert [part is not None for part in block.layout.parts] == [True, True, False, False, True, True]
    hidden, more, _, _, tail, mask = block.layout.parts
    assert tail.begin - hidden.begin == 4 * 4 and hidden.begin % PLACE_BYTES == more.begin % PLACE_BYTES == 0
    assert (hidden.spec.stride, more.spec.dtype, mask.spec.dtype) == ((1, 4), torch.float64, torch.bool)
    assert len(block.block.places) == 3 and len(returns.owners) == 4


@pytest.mark.parametrize(
    ("run", "inner"),
    [
        (forward, (2, 2)),
        (lambda args: [args[0] * 2, args[1] * 3, args[0] + 1], (1, 2)),
        (lambda args: [args[0] * 2, args[0], args[1].t()], (1, 3)),
        (lambda args: [args[0] * 2, torch.empty(0), torch.empty(0)], (1, 3)),
    ],
    ids=["nothing inner", "one value", "inputs", "no elements"],
)
def test_where_a_block_is_of_no_use_there_is_none(run: Any, inner: tuple[int, int]) -> None:
    assert planned(run, inner)[0] is None


def test_a_backward_is_known_by_what_it_returns_without_the_block() -> None:
    block, _, _ = planned()
    layout = block.layout  # from the 2nd input on: in, in, out, out, in, in
    view = Layout((2,), (1,), 3)
    known = returns_for_block(
        Returns((SameAsInput(1), SameAsInput(5), View(SameAsInput(8), view), Fresh(0)), (3,)), layout, 2
    )
    assert known == Returns((SameAsInput(1), SameAsInput(3), View(SameAsInput(5), view), Fresh(0)), (3,))
    for inside in (SameAsInput(2), View(SameAsInput(7), view)):
        assert returns_for_block(Returns((inside,), ()), layout, 2) is None


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> TapedGpu:
    return capture_on_the_cpu(monkeypatch)


@pytest.fixture(params=["host", "gpu"])
def on(request: pytest.FixtureRequest, gpu: TapedGpu) -> Any:
    return HostDevice() if request.param == "host" else gpu


class Caller:
    """Calls what it was told of last, as generated functions do."""

    def __init__(self, replayed: Replayed) -> None:
        self.run: Any = replayed
        replayed.subscribe(lambda now: setattr(self, "run", now))

    def call(self, args: Sequence[Any]) -> list[Any]:
        taken = list(args)
        found = list(self.run(taken))
        assert taken == []
        return found


def blocked(device: Any) -> tuple[Replayed, Caller]:
    graph = CompiledGraph(forward, "forward", ("x", "w"), inner=INNER)
    replayed = Replayed(graph, device, lambda: None, lambda reason: None)
    return replayed, Caller(replayed)


def given() -> list[torch.Tensor]:
    return [torch.randn(4, 4), torch.randn(4, 4)]


def check(found: list[Any], args: Sequence[Any]) -> bool:
    """Fails unless these are the results; whether they came with a block."""
    expected = forward(list(args))
    is_block = type(found[-1]) is SavedLayout
    if is_block:
        layout = found.pop()
        assert found[INNER[0] + layout.apart].dtype is torch.uint8 and len(found) == len(expected) - 4 + 1
        found = open_block(found, layout, INNER[0])
    assert len(found) == len(expected) and found[1].data_ptr() == args[1].data_ptr() and found[5] is args[1]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert one.stride() == other.stride() and not one.requires_grad
    return is_block


def test_a_recorded_forward_gives_one_block_in_each_call(on: Any) -> None:
    replayed, caller = blocked(on)
    kept = []
    for number in range(5):
        args = given()
        found = caller.call(args)
        kept.append((list(found), args))
        assert check(found, args) is (number > 0)
    for found, args in kept:  # each in memory of its own
        check(found, args)
    facts = replayed.facts()
    assert facts is not None and facts.stage == "recorded" and facts.launches == 4


def test_what_lies_beside_a_block_has_no_history(on: Any) -> None:
    _, caller = blocked(on)
    for _ in range(3):
        found = caller.call(given())
    assert not found[INNER[0]]._is_view() or found[INNER[0]]._base.dtype is not torch.uint8
    assert found[INNER[0]].data_ptr() == found[0].data_ptr() and found[INNER[0]].grad_fn is None


def test_a_call_that_is_not_launched_gives_each_value_by_itself(gpu: TapedGpu) -> None:
    replayed, caller = blocked(gpu)
    for _ in range(3):
        assert caller.call(given())
    make = caller.run.__globals__["empty"]

    def no_room(shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        if dtype is torch.uint8:
            raise torch.OutOfMemoryError("no room")
        return make(shape, stride, dtype)

    caller.run.__globals__["empty"] = no_room
    args = given()
    assert not check(caller.call(args), args) and replayed.plain_calls()["out of memory"] == 1
    caller.run.__globals__["empty"] = make
    assert check(caller.call(args), args)
    facts = replayed.facts()
    assert facts is not None and facts.launches == 3 and facts.captures == 1


def test_a_recording_that_was_let_go_is_made_again_and_gives_a_block(gpu: TapedGpu) -> None:
    replayed, caller = blocked(gpu)
    for _ in range(3):
        caller.call(given())
    launch = caller.run
    replayed.free()
    caller.run = launch  # a thread was about to call it
    args = given()
    assert check(caller.call(args), args)


def test_state_that_moves_where_the_graph_cannot_follow(gpu: TapedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "max_rerecordings", 1)
    graph = CompiledGraph(forward, "forward", ("x", "w"), static=frozenset({1}), inner=INNER)
    caller = Caller(replayed := Replayed(graph, gpu, lambda: None, lambda reason: None))
    weight = torch.randn(4, 4)
    for _ in range(3):
        caller.call([given()[0], weight])
    others = [torch.randn(4, 4) for _ in range(2)]
    assert check(caller.call(args := [given()[0], others[0]]), args), "captured anew"
    with pytest.warns(UserWarning, match="unrecorded"):
        assert not check(caller.call(args := [given()[0], others[1]]), args)
    assert replayed.plain_calls().total() == 2


# --- the backward that takes it --------------------------------------------------------------------------------


def backward(args: list[Any]) -> list[Any]:
    w, hidden, more, shown, gradient = args
    args.clear()
    return [gradient * hidden - shown, (more * 2).float() - w.t(), None, w]


def layout_and_values() -> tuple[SavedLayout, list[torch.Tensor]]:
    """Of three inner values the last lies elsewhere."""

    def run(args: list[Any]) -> list[Any]:
        shown = args[0] * 5
        return [shown, (args[0] * 2).sin(), args[0].double() + 1, shown]

    results = run(given())
    returns = survey_returns(given(), results)
    assert isinstance(returns, Returns)
    block = plan_block(returns, results, (1, 4))
    assert block is not None
    return block.layout, results[1:4]


def arguments(layout: SavedLayout, *, apart: bool) -> list[Any]:
    """Those of a backward, the same each time."""
    torch.manual_seed(2)
    w, gradient, shown = (torch.randn(4, 4) for _ in range(3))
    hidden, more = torch.randn(4, 4), torch.randn(4, 4).double()
    if apart:
        return [w, hidden, more, shown, gradient]
    memory = torch.full((layout.nbytes,), 255, dtype=torch.uint8)
    for part, value in zip(layout.parts, (hidden, more), strict=False):
        assert part is not None
        view_in_block(memory, part.begin, part.spec).copy_(value)
    return [w, shown, memory, gradient]


def made(device: Any, run: Any = backward, **facts: Any) -> tuple[Replayed, list[str]]:
    told: list[str] = []
    graph = CompiledGraph(run, "backward", ("w", "hidden", "more", "shown", "gradient"), **facts)
    return Replayed(graph, device, lambda: told.append("made"), lambda reason: None), told


@pytest.mark.parametrize("is_warm", [True, False])
def test_a_backward_takes_the_block_as_one_thing(on: Any, is_warm: bool) -> None:
    """One that has run is recorded in its first call with a block."""
    layout, _ = layout_and_values()
    replayed, told = made(on)
    expected = backward(arguments(layout, apart=True))
    if is_warm:
        replayed(arguments(layout, apart=True))
    caller = Caller(twin := replayed.in_block(layout, 1))
    for _ in range(4):
        found = caller.call(arguments(layout, apart=False))
        torch.testing.assert_close(found[:2], expected[:2], rtol=0, atol=0)
        assert found[2] is None and torch.equal(found[3], expected[3])
    facts = replayed.facts()
    assert facts is not None and facts == twin.facts() and facts.stage == "recorded"
    assert facts.launches == (4 if is_warm else 3) and told == ["made"]
    assert replayed.plain_calls() == {"warm-up": 1}


def test_roles_of_inputs_go_along(gpu: TapedGpu) -> None:
    layout, _ = layout_and_values()
    graph = made(gpu, static=frozenset({0, 4}), written=frozenset({3}))[0].graph.in_block(layout, 1)
    assert graph.names == ("w", "shown", "the saved block", "gradient")
    assert (graph.static, graph.written) == (frozenset({0, 3}), frozenset({1}))


def test_a_gradient_that_is_a_saved_value_is_copied_out_of_the_block(on: Any) -> None:
    layout, _ = layout_and_values()

    def gives(args: list[Any]) -> list[Any]:
        _, hidden, _, shown, _ = args
        args.clear()
        return [hidden, hidden.t(), shown]

    for is_warm in (True, False):
        replayed, _ = made(on, gives)
        if is_warm:
            replayed(arguments(layout, apart=True))
        caller = Caller(replayed.in_block(layout, 1))
        for _ in range(4):
            args = arguments(layout, apart=False)
            memory = args[2].untyped_storage().data_ptr()
            expected = [one.clone() for one in gives(arguments(layout, apart=True))]
            found = caller.call(args)
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
            assert all(one.untyped_storage().data_ptr() != memory for one in found)


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_backward_that_takes_a_block_goes_with_the_last_who_calls_it(gpu: TapedGpu, no_collection: None) -> None:
    import weakref

    layout, _ = layout_and_values()
    replayed, _ = made(gpu)
    replayed(arguments(layout, apart=True))
    caller = Caller(twin := replayed.in_block(layout, 1))
    caller.call(arguments(layout, apart=False))
    gone = [weakref.ref(one) for one in (replayed, twin, caller.run)]
    del replayed, twin, caller
    assert [one() for one in gone] == [None] * 3


def test_after_a_reset_both_begin_anew(gpu: TapedGpu) -> None:
    layout, _ = layout_and_values()
    replayed, told = made(gpu)
    replayed(arguments(layout, apart=True))
    caller = Caller(twin := replayed.in_block(layout, 1))
    for _ in range(2):
        caller.call(arguments(layout, apart=False))
    for one in (replayed, twin):
        one.reset()
    expected = backward(arguments(layout, apart=True))
    for _ in range(3):
        torch.testing.assert_close(caller.call(arguments(layout, apart=False))[:2], expected[:2], rtol=0, atol=0)
    facts = replayed.facts()
    assert facts is not None and facts.launches == 2 and told == ["made", "made"]
