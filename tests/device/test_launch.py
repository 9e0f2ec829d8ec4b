"""The generated launch function, over tensors of the CPU: the graph is stood in for, the rest is as it is on a GPU."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from treeplay.codegen import load_source
from treeplay.device.cuda.launching.launch import disable, emit_launch, launches_of
from treeplay.device.cuda.launching.parts import Copied, LaunchBlock, LaunchOutput, LaunchParts, Otherwise, Patched
from treeplay.device.protocol import InBlock
from treeplay.torch_seam import allocator, streams
from treeplay.torch_seam.tensors import view_in_block
from treeplay.values.block import OutputBlock
from treeplay.values.spec import TensorSpec


class Lane:
    """A lane that notes which streams were put in order."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", 0)
        self.stream: int | None = None
        self.ordered: list[int] = []
        self.lock = threading.RLock()

    def order(self, stream: int) -> None:
        self.ordered.append(stream)
        self.stream = stream


class Machine:
    """What a launch calls: notes it all; `replay` writes a new number into the outputs that it was told the addresses of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream = 7
        self.moves: list[tuple[str, int]] = []
        self.replays = 0
        self.plain_calls = 0
        self.raised: list[Exception] = []
        natives: dict[str, Callable[..., Any]] = {
            "_cuda_getCurrentRawStream": lambda index: self.stream,
            "_tensors_data_ptrs_at_indices_equal": self.are_at,
            "_storage_Use_Count": torch._C._storage_Use_Count,
        }
        monkeypatch.setattr(allocator, "native", natives.__getitem__)
        monkeypatch.setattr(allocator, "empty_on_gpu", lambda: self.empty)

    @staticmethod
    def are_at(tensors: Sequence[torch.Tensor], addresses: Sequence[int], indices: Sequence[int]) -> bool:
        return all(tensors[at].data_ptr() == addresses[at] for at in indices)

    @staticmethod
    def empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, stride, dtype=dtype)

    def mover(self, name: str) -> Callable[[int], None]:
        return lambda address: self.moves.append((name, address))

    def replay(self) -> None:
        self.replays += 1

    def plain(self, tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        self.plain_calls += 1
        return ()

    def not_launched(
        self, error: Exception, tensors: list[torch.Tensor], numbers: Sequence[float]
    ) -> Sequence[torch.Tensor]:
        self.raised.append(error)
        return ()

    def launch(self, lane: Lane | None = None, **parts: Any) -> Callable[..., Any]:
        everything: dict[str, Any] = {
            "lane": lane or Lane(),
            "replay": self.replay,
            "otherwise": Otherwise(self.plain, self.not_launched),
            "vector": None,
            "steady": (),
            "addresses": [],
            "moved": lambda tensors: None,
            "patched": (),
            "copied": (),
            "results": (),
            "align": lambda tensor, residue, modulus: tensor.clone(),
        }
        return load_source(emit_launch(LaunchParts(**{**everything, **parts}), "test"))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def patched(machine: Machine, tensor: torch.Tensor, *, modulus: int = 1, is_mutated: bool = False) -> Patched:
    address = tensor.data_ptr()
    return Patched(0, address, machine.mover("in"), modulus, address % modulus, is_mutated)


def result(machine: Machine, *shape: int, leaf: int | None = None) -> LaunchOutput:
    return LaunchOutput(TensorSpec.of(torch.empty(shape)), 0, machine.mover("out"), leaf=leaf)


def test_an_argument_is_patched_only_when_it_has_moved(machine: Machine) -> None:
    x, y = torch.ones(4), torch.ones(4)
    launch = machine.launch(patched=(patched(machine, x),))
    for tensor in (x, x, y, y, x):
        launch([tensor], ())
    assert machine.moves == [("in", y.data_ptr()), ("in", x.data_ptr())]
    assert machine.replays == launches_of(launch) == 5


def test_an_address_that_could_not_be_patched_is_tried_again(machine: Machine) -> None:
    x, y = torch.ones(4), torch.ones(4)
    failing = [True]

    def move(address: int) -> None:
        if failing[0]:
            raise MemoryError
        machine.moves.append(("in", address))

    launch = machine.launch(patched=(Patched(0, x.data_ptr(), move, 1, 0, False),))
    launch([y], ())
    assert isinstance(machine.raised[0], MemoryError) and not machine.replays
    failing[0] = False
    launch([y], ())
    assert machine.moves == [("in", y.data_ptr())] and machine.replays == 1


MANY = 7


def test_of_many_arguments_those_are_patched_that_have_moved(machine: Machine) -> None:
    """One of them is tensor 1 of 8: the first is not to be followed."""
    first = [torch.full((4,), float(k)) for k in range(MANY + 1)]
    items = [Patched(k, first[k].data_ptr(), machine.mover(f"in{k}"), 1, 0, False) for k in range(1, MANY + 1)]
    launch = machine.launch(patched=tuple(items), addresses=[tensor.data_ptr() for tensor in first])
    launch([torch.ones(4), *first[1:]], ())
    assert machine.moves == []
    others = [*first[:3], torch.ones(4), *first[4:]]
    for _ in range(2):
        launch(others, ())
    launch(first, ())
    assert machine.moves == [("in3", others[3].data_ptr()), ("in3", first[3].data_ptr())]


def test_what_was_captured_elsewhere_is_patched_in_the_first_launch(machine: Machine) -> None:
    """A tensor that shares its memory is captured with another in its place."""
    given, stand_in = [torch.ones(4) for _ in range(MANY)], torch.ones(4)
    captured = [*given[:2], stand_in, *given[3:]]
    items = tuple(
        Patched(k, tensor.data_ptr(), machine.mover(f"in{k}"), 1, 0, False) for k, tensor in enumerate(captured)
    )
    launch = machine.launch(patched=items, addresses=[tensor.data_ptr() for tensor in given])
    launch(given, ())
    assert machine.moves == [("in2", given[2].data_ptr())]


def test_one_of_many_that_could_not_be_patched_is_tried_again(machine: Machine) -> None:
    first, failing = [torch.ones(4) for _ in range(MANY)], [True]

    def move(address: int) -> None:
        if failing[0]:
            raise MemoryError
        machine.moves.append(("in", address))

    items = tuple(Patched(k, tensor.data_ptr(), move, 1, 0, False) for k, tensor in enumerate(first))
    launch = machine.launch(patched=items, addresses=[tensor.data_ptr() for tensor in first])
    launch([torch.ones(4), *first[1:]], ())
    assert isinstance(machine.raised[0], MemoryError) and not machine.replays
    failing[0] = False
    launch(first, ())  # back at the address of the capture, which is not what the graph may hold by now
    assert machine.moves == [("in", first[0].data_ptr())]


def test_of_many_results_each_is_new_and_followed(machine: Machine) -> None:
    items = [LaunchOutput(TensorSpec.of(torch.empty(k + 1)), 0, machine.mover(f"out{k}")) for k in range(MANY)]
    held, empty = torch.arange(2.0), LaunchOutput(TensorSpec.of(torch.empty(0)), 0, None)
    launch = machine.launch(results=(*items[:3], LaunchOutput(TensorSpec.of(held), 0, None, held), empty, *items[3:]))
    kept = []
    for _ in range(3):
        machine.moves.clear()
        kept.append(launch([], ()))
        assert [tuple(out.shape) for out in kept[-1]] == [(1,), (2,), (3,), (2,), (0,), (4,), (5,), (6,), (7,)]
        followed = [out for at, out in enumerate(kept[-1]) if at not in (3, 4)]
        assert machine.moves == [(f"out{k}", out.data_ptr()) for k, out in enumerate(followed)]
    assert len({out.data_ptr() for outs in kept for out in outs if out.numel()}) == 3 * (MANY + 1)


def test_a_misaligned_argument_is_copied_or_runs_as_it_is(machine: Machine) -> None:
    memory = torch.arange(64.0)
    x, odd = memory[:4], memory[1:5]
    read = machine.launch(patched=(patched(machine, x, modulus=16),))
    read([odd], ())
    assert machine.replays == 1 and machine.moves[0][1] != odd.data_ptr()
    written = machine.launch(patched=(patched(machine, x, modulus=16, is_mutated=True),))
    written([odd], ())
    assert (machine.replays, machine.plain_calls) == (1, 1)


def test_each_result_is_a_new_tensor(machine: Machine) -> None:
    launch = machine.launch(results=(result(machine, 2, 3),))
    first, second = launch([], ())[0], launch([], ())[0]
    assert first is not second and first.data_ptr() != second.data_ptr() and first.shape == (2, 3)
    assert [address for _, address in machine.moves] == [first.data_ptr(), second.data_ptr()]


def test_a_held_result_is_copied(machine: Machine) -> None:
    held = torch.arange(3.0)
    launch = machine.launch(results=(LaunchOutput(TensorSpec.of(held), 0, None, held),))
    (out,) = launch([], ())
    held.zero_()
    assert out.tolist() == [0, 1, 2]


def test_a_buffer_is_filled_before_and_read_after(machine: Machine) -> None:
    buffer, given = torch.zeros(2), torch.tensor([3.0, 4.0])
    launch = machine.launch(
        copied=(Copied(0, buffer, True),),
        replay=lambda: buffer.mul_(2).sub_(1),
    )
    launch([given], ())
    assert given.tolist() == [5, 7]


def test_state_that_has_moved_is_told_of(machine: Machine) -> None:
    state, told = torch.ones(2), []
    launch = machine.launch(steady=(0,), addresses=[state.data_ptr()], moved=lambda tensors: told.append(tensors))
    launch([state], ())
    assert not told
    elsewhere = torch.ones(2)
    launch([elsewhere], ())
    assert told[0][0] is elsewhere


def test_a_replay_on_another_stream_is_ordered(machine: Machine) -> None:
    lane = Lane()
    launch = machine.launch(lane)
    for stream in (7, 7, 8, 8, 7):
        machine.stream = stream
        launch([], ())
    assert lane.ordered == [7, 8, 7]


def test_a_disabled_launch_runs_as_it_is(machine: Machine) -> None:
    launch = machine.launch()
    launch([], ())
    disable(launch)
    launch([], ())
    assert (machine.replays, machine.plain_calls) == (1, 1)


def test_numbers_are_filled_in_before_the_replay(machine: Machine) -> None:
    order: list[Any] = []

    class Vector:
        tensor = torch.zeros(1)

        def fill(self, values: Sequence[float]) -> None:
            order.append(values)

    launch = machine.launch(vector=Vector(), replay=lambda: order.append("replay"))
    launch([], (1.0,))
    assert order == [(1.0,), "replay"]


# --- gradients that only a slot has -------------------------------------------------------------------------


def slotted(machine: Machine) -> tuple[Callable[[], torch.Tensor], torch.nn.Parameter]:
    """A step that leaves its one output in the parameter's `.grad`, as a call function does."""
    parameter = torch.nn.Parameter(torch.ones(3))
    launch = machine.launch(results=(result(machine, 3, leaf=0),))

    def step() -> None:
        out = launch([parameter], ())
        parameter.grad = out[0]

    return step, parameter  # type: ignore[return-value]


def address(parameter: torch.nn.Parameter) -> int:
    assert parameter.grad is not None
    return parameter.grad.data_ptr()


def test_a_gradient_that_nobody_else_has_is_written_again(machine: Machine) -> None:
    step, parameter = slotted(machine)
    step()
    first = address(parameter)
    for _ in range(3):
        step()
        assert address(parameter) == first
    assert len(machine.moves) == 1


def test_an_old_gradient_of_another_origin_goes_before_the_new_one_is_made(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor | None] = []

    def noting(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        seen.append(old())
        return Machine.empty(shape, stride, dtype)

    monkeypatch.setattr(allocator, "empty_on_gpu", lambda: noting)
    step, parameter = slotted(machine)
    parameter.grad = torch.ones(3)
    old = weakref.ref(parameter.grad)
    step()
    assert seen == [None]


def test_an_old_gradient_stays_for_code_that_may_ask_for_it(machine: Machine) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    kept = parameter.grad = torch.ones(3)
    one = replace(result(machine, 3, leaf=0), clears=False)
    machine.launch(results=(one,))([parameter], ())
    assert parameter.grad is kept


def test_a_gradient_that_was_cleared_is_written_again(machine: Machine) -> None:
    step, parameter = slotted(machine)
    step()
    first = address(parameter)
    parameter.grad = None
    step()
    assert address(parameter) == first


def test_a_gradient_that_another_stream_may_still_read_is_left_alone(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory goes back to torch, which waits for that stream before it gives it out."""
    monkeypatch.setattr(streams, "_record_stream", lambda tensor, stream: None)
    step, parameter = slotted(machine)
    step()
    assert parameter.grad is not None
    gone = weakref.ref(parameter.grad)
    parameter.grad.record_stream(object())  # type: ignore[arg-type]
    step()
    assert gone() is None and not streams.recorded
    first = address(parameter)
    step()
    assert address(parameter) == first  # and is written again from then on


@pytest.mark.parametrize(
    "keep",
    [
        lambda grad: grad,
        lambda grad: grad.detach(),
        lambda grad: grad.view(-1)[1:],
        lambda grad: [grad],
        lambda grad: grad.untyped_storage(),
        lambda grad: grad.numpy(),
        lambda grad: torch.utils.dlpack.to_dlpack(grad),
    ],
    ids=["itself", "detached", "view", "in a list", "storage", "array", "dlpack"],
)
def test_a_gradient_that_somebody_keeps_is_left_alone(machine: Machine, keep: Callable[[torch.Tensor], Any]) -> None:
    step, parameter = slotted(machine)
    step()
    assert parameter.grad is not None
    first = address(parameter)
    kept = keep(parameter.grad)
    step()
    assert address(parameter) != first
    del kept


def test_a_gradient_is_new_on_another_stream(machine: Machine) -> None:
    step, parameter = slotted(machine)
    step()
    first = address(parameter)
    machine.stream = 8
    step()
    second = address(parameter)
    step()
    assert first != second == address(parameter)


def test_a_gradient_that_another_parameter_has_is_left_alone(machine: Machine) -> None:
    step, parameter = slotted(machine)
    step()
    other = torch.nn.Parameter(torch.ones(3))
    other.grad, first = parameter.grad, address(parameter)
    parameter.grad = None
    step()
    assert address(parameter) != first and address(other) == first


def test_an_interrupted_move_is_done_anew_even_for_the_tensor_of_before(machine: Machine) -> None:
    x, y = torch.ones(4), torch.ones(4)

    def interrupted(address: int) -> None:
        machine.moves.append(("in", address))
        if address == y.data_ptr():
            raise KeyboardInterrupt

    launch = machine.launch(patched=(Patched(0, x.data_ptr(), interrupted, 1, 0, False),))
    with pytest.raises(KeyboardInterrupt):
        launch([y], ())
    launch([x], ())
    assert machine.moves == [("in", y.data_ptr()), ("in", x.data_ptr())]


def test_results_are_made_on_the_device_of_the_recording_where_there_are_several(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(machine, "empty", None)
    (out,) = machine.launch(results=(result(machine, 4),))([], ())
    assert out.shape == (4,)


def test_a_copied_result_with_holes_keeps_its_strides(machine: Machine) -> None:
    held = torch.arange(12.0).reshape(3, 4)[:, :2]
    (out,) = machine.launch(results=(LaunchOutput(TensorSpec.of(held), 0, None, held),))([], ())
    assert out.stride() == held.stride() and torch.equal(out, held)


@pytest.mark.parametrize("is_new", [False, True])
def test_an_error_before_the_launch_is_given_to_who_runs_the_call_otherwise(machine: Machine, is_new: bool) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("ours")

    out = LaunchOutput(TensorSpec.of(torch.empty(2)), 0, fail)
    launch = machine.launch(results=(out,), replay=machine.replay) if is_new else machine.launch(replay=fail)
    lane = launch.__globals__["lock"]
    assert launch([], ()) == () and machine.replays == 0 and str(machine.raised[0]) == "'ours'"
    assert launches_of(launch) == 0 and not lane._is_owned()


def test_an_error_after_the_launch_is_raised_since_effects_have_happened(machine: Machine) -> None:
    x, held = torch.ones(2), torch.ones(2)
    launch = machine.launch(
        copied=(Copied(0, held, is_mutated=True),), results=(LaunchOutput(TensorSpec.of(x), 0, None, held),)
    )

    def fail() -> None:
        raise torch.OutOfMemoryError("no room for the copy")

    launch.__globals__["held0"] = type("Held", (), {"clone": staticmethod(fail)})
    with pytest.raises(torch.OutOfMemoryError):
        launch([x], ())
    assert machine.replays == 1 == launches_of(launch) and not machine.raised


# --- outputs in one block -------------------------------------------------------------------------------------


PLACES = ((0, 0), (2, 512), (3, 1536))


def blocked(machine: Machine, **parts: Any) -> Callable[..., Any]:
    """Four outputs, of which all but one lie in a block; the third of them is held by the graph."""
    held = torch.arange(3.0)
    outputs = (
        LaunchOutput(TensorSpec.of(torch.empty(4)), 0, None),
        result(machine, 2),
        LaunchOutput(TensorSpec.of(torch.empty(200)), 0, None),
        LaunchOutput(TensorSpec.of(held), 0, None, held),
    )
    block = LaunchBlock(OutputBlock(PLACES, 2048), torch.device("cpu"), machine.mover("block"))
    return machine.launch(**{"results": outputs, "block": block, **parts})


def test_what_lies_in_a_block_is_one_tensor_and_one_move(machine: Machine) -> None:
    launch = blocked(machine)
    made = launch([], ())
    assert type(made) is InBlock and [tuple(one.shape) for one in made] == [(2,), (2048,)]
    assert machine.moves == [("block", made[-1].data_ptr()), ("out", made[0].data_ptr())]
    assert view_in_block(made[-1], 1536, torch.empty(3)).tolist() == [0, 1, 2]


def test_a_block_at_the_same_address_moves_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = [torch.empty(2048, dtype=torch.uint8) for _ in range(2)]
    order = iter([0, 0, 1, 1, 0])

    def empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return memory[next(order)] if dtype is torch.uint8 else Machine.empty(shape, stride, dtype)

    monkeypatch.setattr(allocator, "empty_on_gpu", lambda: empty)
    launch = blocked(machine)
    for _ in range(5):
        launch([], ())
    moved = [address for name, address in machine.moves if name == "block"]
    assert moved == [memory[at].data_ptr() for at in (0, 1, 0)] and machine.replays == 5


def test_a_block_that_cannot_be_made_leaves_all_as_before(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [True]

    def empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if failing[0] and dtype is torch.uint8:
            raise torch.OutOfMemoryError("no room")
        return Machine.empty(shape, stride, dtype)

    monkeypatch.setattr(allocator, "empty_on_gpu", lambda: empty)
    launch = blocked(machine)
    launch([], ())
    assert isinstance(machine.raised[0], torch.OutOfMemoryError) and not machine.replays and not machine.moves
    failing[0] = False
    made = launch([], ())
    assert machine.replays == 1 and machine.moves[0] == ("block", made[-1].data_ptr())


def test_a_block_that_could_not_be_moved_is_moved_by_the_next_launch(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, failing = torch.empty(2048, dtype=torch.uint8), [True]

    def empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return memory if dtype is torch.uint8 else Machine.empty(shape, stride, dtype)

    monkeypatch.setattr(allocator, "empty_on_gpu", lambda: empty)

    def move(address: int) -> None:
        if failing[0]:
            raise MemoryError
        machine.moves.append(("block", address))

    block = LaunchBlock(OutputBlock(PLACES, 2048), torch.device("cpu"), move)
    launch = blocked(machine, block=block)
    launch([], ())
    failing[0] = False
    launch([], ())
    assert machine.moves[0] == ("block", memory.data_ptr()) and machine.replays == 1
