"""The CPU recorder: whatever operators a body uses, its replays do what the body does eagerly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from support import assert_same
from support.random_programs import PROGRAMS, is_valid, run
from treeplay import CaptureFailed, UsageError
from treeplay.device.host.dot import edges_of
from treeplay.device.host.recorder import Recorder, is_recording
from treeplay.device.host.tape import HostTape, Operation


def record(body: Callable[[], Any], *generators: torch.Generator) -> tuple[HostTape, Any]:
    """The tape of `body`, and what it returned."""
    recorder = Recorder(generators)
    recorder.begin()
    try:
        result = body()
    except BaseException:
        recorder.abandon()
        raise
    return recorder.end(), result


def check(make: Callable[..., Any], *state: torch.Tensor, replays: int = 3) -> HostTape:
    """Replays of `make(*state)` agree with eager runs on a copy: results, state, and random numbers. Returns the tape."""
    twins = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in state]
    before = [tensor.detach().clone() for tensor in state], torch.get_rng_state()
    tape, found = record(lambda: make(*state))
    assert_same([tensor.detach() for tensor in state], before[0], "state after recording")
    assert torch.equal(torch.get_rng_state(), before[1])
    for number in range(replays):
        torch.manual_seed(number)
        tape.replay()
        after = torch.get_rng_state()
        torch.manual_seed(number)
        expected = make(*twins)
        assert_same(found, expected, f"result of replay {number}")
        assert_same([t.detach() for t in state], [t.detach() for t in twins], f"state after replay {number}")
        assert torch.equal(torch.get_rng_state(), after)
    return tape


@pytest.mark.programs
@settings(max_examples=150, deadline=None)
@given(PROGRAMS)
def test_G3_random_programs_replay_as_they_run(program: list[tuple[int, int, int]]) -> None:
    torch.manual_seed(1)
    state = torch.randn(3, 4), torch.randn(4), torch.randn(())
    assume(is_valid(lambda: run(program, *(tensor.clone() for tensor in state))))
    check(lambda *state: run(program, *state), *state)


@pytest.mark.programs
@settings(max_examples=60, deadline=None)
@given(PROGRAMS)
def test_G3_random_programs_replay_with_their_gradients(program: list[tuple[int, int, int]]) -> None:
    torch.manual_seed(1)

    def make(w: torch.Tensor, v: torch.Tensor, s: torch.Tensor) -> Any:
        results = run(program, w * 1.5, v + 1, s * s)
        loss = sum((r.square().mean() for r in results if r.numel()), w.sum() - v.square().sum() + s)
        return torch.autograd.grad(loss, (w, v, s))

    state = [torch.randn(shape, requires_grad=True) for shape in ((3, 4), (4,), ())]
    assume(is_valid(lambda: make(*state)))
    check(make, *state)


@settings(max_examples=60, deadline=None)
@given(PROGRAMS)
def test_a_dump_has_an_edge_wherever_order_matters(program: list[tuple[int, int, int]]) -> None:
    tape, _ = record(lambda: run(program, torch.randn(3, 4), torch.randn(4), torch.randn(())))
    reaches: list[set[int]] = [set() for _ in tape.operations]
    for before, after in edges_of(tape.operations):
        reaches[after] |= {before} | reaches[before]
    for after, later in enumerate(tape.operations):
        for before, earlier in enumerate(tape.operations[:after]):
            if earlier.writes & (later.reads | later.writes) or earlier.reads & later.writes:
                assert before in reaches[after]


def test_a_dump_has_no_edge_between_branches() -> None:
    operations = [
        Operation("mul", frozenset({0}), frozenset({1})),
        Operation("sub", frozenset({0}), frozenset({2})),
        Operation("add", frozenset({1}), frozenset({3})),
        Operation("sub", frozenset({2, 3}), frozenset({4})),
    ]
    assert list(edges_of(operations)) == [(0, 2), (1, 3), (2, 3)]


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 2))


def lstm() -> nn.Module:
    torch.manual_seed(0)

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(4, 5, num_layers=2, dropout=0.3, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.cells(x.unsqueeze(0))[0][:, -1, :2]

    return Last()


def attention() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)


def convolution() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.GELU(), nn.Flatten())


def checkpointed() -> nn.Module:
    inner = mlp()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False, preserve_rng_state=False)

    return Outer()


@pytest.mark.parametrize("make", [mlp, lstm, attention, convolution, checkpointed])
def test_training_steps_replay_bit_for_bit(make: Callable[[], nn.Module]) -> None:
    model = make()
    twin, x = copy.deepcopy(model), torch.randn(5, 4)

    def step(model: nn.Module) -> torch.Tensor:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
        return loss.detach()

    state = torch.get_rng_state()
    step(model)
    torch.set_rng_state(state)
    step(twin)
    tape, loss = record(lambda: step(model))
    assert_same(list(model.state_dict().values()), list(twin.state_dict().values()))
    for _ in range(4):
        x.normal_()
        state = torch.get_rng_state()
        tape.replay()
        torch.set_rng_state(state)
        assert_same(loss, step(twin))
        assert_same([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])
        assert_same(list(model.state_dict().values()), list(twin.state_dict().values()))


def test_gradients_made_by_the_body_stay_and_are_refilled() -> None:
    w, x = torch.ones(3, requires_grad=True), torch.ones(3)
    tape, _ = record(lambda: (w * x).sum().backward())
    grad = w.grad
    x.fill_(5)
    tape.replay()
    assert w.grad is grad and grad.tolist() == [5.0] * 3


def test_gradients_that_were_there_accumulate_over_replays_only() -> None:
    w, x = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    w.grad = torch.ones(3)
    tape, _ = record(lambda: (w * x).sum().backward())
    assert w.grad.tolist() == [1.0] * 3
    tape.replay()
    tape.replay()
    assert w.grad.tolist() == [5.0] * 3


def test_a_shape_changed_in_place_keeps_its_meaning_for_earlier_operators() -> None:
    x = torch.arange(6.0).reshape(2, 3)

    def body() -> torch.Tensor:
        y = x * 2
        y.add_(torch.tensor([1.0, 2.0, 3.0]))
        y.t_()
        y.mul_(torch.tensor([10.0, 1.0]))
        return y.unsqueeze_(0)

    tape, y = record(body)
    for _ in range(3):
        x.add_(1)
        tape.replay()
        expected = (x * 2 + torch.tensor([1.0, 2.0, 3.0])).t() * torch.tensor([10.0, 1.0])
        assert torch.equal(y, expected.unsqueeze(0))


def test_reassigned_data_is_what_later_operators_mean() -> None:
    x, y = torch.ones(3), torch.full((3,), 5.0)

    def body(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * 2
        z.data = y * 3
        return z - 1

    check(body, x, y)


def test_the_data_of_a_parameter_is_written_in_each_replay() -> None:
    def body(weight: torch.Tensor) -> torch.Tensor:
        weight.data.mul_(2).sub_(1)
        return weight.data * 3

    check(body, nn.Parameter(torch.arange(3.0)))


def test_constants_from_python_numbers_start_anew_in_each_replay() -> None:
    x = torch.ones(2)

    def body(x: torch.Tensor) -> torch.Tensor:
        count = torch.tensor([1.0, 2.0])
        count.mul_(3).sub_(x)
        return count

    check(body, x)


def test_a_batch_norm_in_training_puts_its_statistics_back() -> None:
    mean, var, x = torch.zeros(3), torch.ones(3), torch.randn(5, 3)
    check(lambda x, mean, var: F.batch_norm(x, mean, var, training=True), x, mean, var)


def test_what_runs_under_inference_mode_replays_outside_of_it() -> None:
    @torch.inference_mode()
    def body(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y.add_(1)

    check(body, torch.ones(3))


def test_a_replay_does_not_mind_the_autocast_around_it() -> None:
    a = torch.randn(3, 3)
    tape, y = record(lambda: a @ a)
    with torch.autocast("cpu"):
        tape.replay()
    assert y.dtype == torch.float32 and torch.equal(y, a @ a)
    with torch.autocast("cpu"):
        tape, y = record(lambda: a @ a)
    tape.replay()
    with torch.autocast("cpu"):
        assert torch.equal(y, a @ a)


def test_a_replay_does_not_mind_another_default_dtype() -> None:
    tape, y = record(lambda: torch.rand(5))
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(3)
        tape.replay()
    finally:
        torch.set_default_dtype(torch.float32)
    torch.manual_seed(3)
    assert torch.equal(y, torch.rand(5))


def test_a_compiled_function_is_recorded_by_its_operators() -> None:
    compiled = torch.compile(lambda x: x.sin() * 2 + 1, backend="eager")
    compiled(torch.ones(3))
    tape = check(compiled, torch.randn(3))
    assert [operation.name for operation in tape.operations] == ["sin", "mul", "add"]


def test_a_recording_can_replay_inside_of_another() -> None:
    x = torch.ones(3)
    inner, y = record(lambda: x * 2)

    def body() -> torch.Tensor:
        inner.replay()
        return y + 1

    outer, z = record(body)
    x.fill_(5)
    outer.replay()
    assert z.tolist() == [11.0] * 3


def test_a_tensor_subclass_is_recorded_by_what_it_does() -> None:
    class Scaled(torch.Tensor):
        value: torch.Tensor

        @staticmethod
        def __new__(cls, value: torch.Tensor) -> Scaled:
            made = torch.Tensor._make_wrapper_subclass(cls, value.shape, dtype=value.dtype)
            made.value = value
            return made

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            plain = [arg.value if isinstance(arg, Scaled) else arg for arg in args]
            return Scaled(func(*plain, **(kwargs or {})) * 2)

    x = torch.ones(3)
    tape, y = record(lambda: Scaled(x) + 1)
    x.fill_(4)
    tape.replay()
    assert y.value.tolist() == [10.0] * 3


@pytest.mark.parametrize(
    "change", [lambda: torch.manual_seed(3), lambda: torch.set_rng_state(torch.Generator().get_state())]
)
def test_a_random_state_that_the_body_sets_is_refused(change: Callable[[], Any]) -> None:
    def body() -> torch.Tensor:
        y = torch.rand(3)
        change()
        return y + torch.rand(3)

    with pytest.raises(CaptureFailed, match="rand: draws from a generator whose state was set"):
        record(body)


def forks() -> torch.Tensor:
    with torch.random.fork_rng():
        return torch.rand(3) * 2


@pytest.mark.parametrize(
    ("body", "message"),
    [(forks, "rand: draws from a generator whose state was set"), (lambda: torch.manual_seed(5), "seeds a generator")],
)
def test_a_generator_that_is_set_after_the_last_draw_or_without_one_is_refused(body: Any, message: str) -> None:
    state = torch.get_rng_state()
    with pytest.raises(CaptureFailed, match=message):
        record(body)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_checkpoint_that_restores_the_random_state_is_refused() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(CaptureFailed, match="preserve_rng_state=False"):
        record(lambda: checkpoint(lambda t: F.dropout(t, 0.5), x, use_reentrant=False).sum().backward())


@pytest.mark.parametrize("layer", [attention, lambda: nn.MultiheadAttention(4, 2, batch_first=True)])
def test_layers_take_the_one_large_operator_that_they_take_eagerly(layer: Callable[[], nn.Module]) -> None:
    module, x = layer().eval(), torch.randn(2, 3, 4)
    with torch.no_grad():
        call = (lambda x: module(x, x, x)[0]) if isinstance(module, nn.MultiheadAttention) else module
        tape = check(call, x)
    assert len(tape.operations) == 1


def test_profiling_marks_are_not_operators() -> None:
    x = torch.ones(3)

    def body() -> torch.Tensor:
        with torch.profiler.record_function("mine"):
            return x + 1

    tape, _ = record(body)
    assert [operation.name for operation in tape.operations] == ["add"]


def test_other_layouts_are_refused() -> None:
    with pytest.raises(CaptureFailed, match="layout torch"):
        record(lambda: torch.ones(3).to_sparse())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_where_they_are_made_and_where_they_are_used() -> None:
    x = torch.ones(3)
    for body in (lambda: torch.nested.nested_tensor([x, x]), lambda: nested * 2):
        nested = torch.nested.nested_tensor([x, x])
        with pytest.raises(CaptureFailed, match="works on a nested tensor"):
            record(body)


def test_a_mask_may_write_one_number_but_not_many() -> None:
    x = torch.arange(5.0)

    def body(x: torch.Tensor) -> torch.Tensor:
        x[x > 2] = 0.5
        return x - 1

    check(body, x)
    with pytest.raises(CaptureFailed, match="as many elements as a mask has"):
        record(lambda: x.index_put_((x > 2,), x[:2]))


def test_repeats_of_a_known_sum_have_a_shape() -> None:
    x, repeats = torch.arange(3.0), torch.tensor([1, 2, 0])
    check(lambda x: x.repeat_interleave(repeats, output_size=3), x)
    with pytest.raises(CaptureFailed, match="shape depends on values"):
        record(lambda: x.repeat_interleave(repeats))


@pytest.mark.parametrize("read", [print, str, torch.Tensor.numpy, torch.Tensor.tolist, lambda t: f"{t}"])
def test_reads_without_an_operator_are_refused(read: Callable[[torch.Tensor], Any]) -> None:
    x = torch.ones(3)
    with pytest.raises(CaptureFailed):
        record(lambda: read(x * 2))


def test_the_first_refusal_is_told_at_the_end() -> None:
    recorder, x = Recorder(), torch.ones(3)
    recorder.begin()
    for attempt in (lambda: x.nonzero(), lambda: x.sum().item()):
        with pytest.raises(CaptureFailed):
            attempt()
    with pytest.raises(CaptureFailed, match="nonzero"):
        recorder.end()
    assert not is_recording()


def test_a_recording_ends_where_it_began() -> None:
    recorder, x = Recorder(), torch.ones(3)
    recorder.begin()
    with TorchDispatchMode(), pytest.raises(UsageError, match="inside of another torch mode"):
        recorder.end()
    x + 1
    assert len(recorder.end().operations) == 1


def test_only_what_the_body_allocates_is_counted() -> None:
    x = torch.ones(1000)
    tape, _ = record(lambda: (x + 1)[5:] * 2)
    assert tape.size_bytes == 4000 + 3980


def test_a_tape_knows_whether_others_hold_its_inputs() -> None:
    x = torch.ones(3)
    tape, _ = record(lambda x=x: x + 1)
    (storage,) = tape.outside
    assert tape.is_held_elsewhere(storage)
    view = x[1:]
    del x
    assert tape.is_held_elsewhere(storage)
    del view
    assert not tape.is_held_elsewhere(storage)


def test_operators_on_functions_are_refused() -> None:
    x = torch.ones(3)
    with pytest.raises(CaptureFailed, match="cond: takes functions"):
        record(lambda: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,)))
