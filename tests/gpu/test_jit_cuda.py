"""`treeplay.jit` on a GPU: the same promises as on the CPU, on addresses that move, with results that are kept."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from support import training
from support.recordings import reserved
from treeplay.observe.internal import internal_errors

pytestmark = pytest.mark.gpu

LOWERINGS = ("aten", "inductor")


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    with treeplay.settings.changed(verify=True):
        yield
    torch.set_float32_matmul_precision(before)


def network(layers: int = 3, width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*parts).cuda()


def launch_of(program: Any) -> Any:
    return program.statistics().keys[0].recordings[-1].launch


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("lower", LOWERINGS)
def test_results_of_moving_inputs_are_eagers_and_stay_valid(lower: str) -> None:
    model = network().eval()
    program: Any = treeplay.jit(model, lower=lower, on_refusal="raise")  # type: ignore[call-overload]
    kept = []
    with torch.no_grad():
        for number in range(40):
            x = torch.randn(4, 32, device="cuda") * (number + 1)
            kept.append((program(x), model(x)))
    for found, expected in kept:
        close(found, expected)
    assert launch_of(program).stage == "recorded"


@pytest.mark.parametrize("lower", ["aten", "inductor"])
def test_Gplus10_three_inputs_at_new_addresses_in_each_call_copy_no_byte(lower: str) -> None:
    def model(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ y) * 2 - z

    program: Any = treeplay.jit(model, lower=lower, on_refusal="raise")
    kept = []
    for number in range(100):
        given = [torch.randint(-3, 4, (16, 16), device="cuda").float() + number for _ in range(3)]
        kept.append((given, program(*given)))
    assert len({tensor.data_ptr() for given, _ in kept for tensor in given}) == 300
    for given, found in kept:
        assert torch.equal(found, model(*given))
    launch = launch_of(program)
    assert (launch.stage, launch.copied_bytes, launch.launches) == ("recorded", 0, 98)
    inputs = [how for name, how in launch.policy.items() if not name.startswith("out[")]
    assert len(inputs) == 3 and all(how.startswith("patched") for how in inputs)


def test_nothing_is_copied() -> None:
    model = network().eval()
    program: Any = treeplay.jit(model, lower="inductor", on_refusal="raise")
    with torch.no_grad():
        for _ in range(5):
            program(torch.randn(4, 32, device="cuda"))
    launch = launch_of(program)
    assert (launch.stage, launch.copied_bytes_per_call) == ("recorded", 0)
    assert not [why for why in launch.policy.values() if why.startswith("copied")], launch.policy


@pytest.mark.parametrize("lower", LOWERINGS)
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "NAdam", "Adagrad", "Adadelta", "Adamax"])
def test_whole_steps_with_stock_optimizers(lower: str, name: str) -> None:
    options = {"momentum": 0.9} if name == "SGD" else {}
    make = getattr(torch.optim, name)
    model = network()
    twin = copy.deepcopy(model)
    ours, theirs = make(model.parameters(), lr=1e-3, **options), make(twin.parameters(), lr=1e-3, **options)
    program: Any = treeplay.jit(training(model, ours), lower=lower, on_refusal="raise")  # type: ignore[call-overload]
    eager = training(twin, theirs)
    for number in range(8):
        x, y = torch.randn(8, 32, device="cuda"), torch.randn(8, 32, device="cuda")
        if number == 5:
            ours.param_groups[0]["lr"] = theirs.param_groups[0]["lr"] = 3e-4
        close(program(x, y), eager(x, y))
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        close(a, b, 2e-4)
        assert a.grad is not None and b.grad is not None
        close(a.grad, b.grad, 1e-4)
    assert launch_of(program).stage == "recorded"


@pytest.mark.parametrize("name", ["Adam", "RAdam", "ASGD"])
def test_capturable_optimizers(name: str) -> None:
    model = network()
    twin = copy.deepcopy(model)
    ours, theirs = (getattr(torch.optim, name)(net.parameters(), lr=1e-3, capturable=True) for net in (model, twin))
    program: Any = treeplay.jit(training(model, ours), on_refusal="raise")
    eager = training(twin, theirs)
    for _ in range(8):
        x, y = torch.randn(8, 32, device="cuda"), torch.randn(8, 32, device="cuda")
        close(program(x, y), eager(x, y))
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        close(a, b, 2e-4)


def test_state_dicts_go_back_and_forth_without_a_new_recording() -> None:
    model = network()
    twin = copy.deepcopy(model)
    ours, theirs = torch.optim.AdamW(model.parameters()), torch.optim.AdamW(twin.parameters())
    program: Any = treeplay.jit(training(model, ours), on_refusal="raise")
    eager = training(twin, theirs)
    x, y = torch.randn(8, 32, device="cuda"), torch.randn(8, 32, device="cuda")
    for _ in range(5):
        program(x, y), eager(x, y)
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    for _ in range(2):
        close(program(x, y), eager(x, y))
    plain = torch.optim.AdamW(twin.parameters())
    plain.load_state_dict(copy.deepcopy(theirs.state_dict()))
    ours.load_state_dict(copy.deepcopy(plain.state_dict()))
    for _ in range(3):
        close(program(x, y), eager(x, y))
    steps = {float(state["step"]) for state in ours.state.values()}
    assert steps == {10.0}
    assert program.statistics().recordings == 1


def test_parameters_may_be_reassigned() -> None:
    model = network().eval().double()
    program: Any = treeplay.jit(model, on_refusal="raise")
    x = torch.randn(4, 32, device="cuda", dtype=torch.float64)
    with torch.no_grad():
        for _ in range(12):
            for parameter in model.parameters():
                parameter.data = torch.randn_like(parameter)
            close(program(x), model(x), 1e-10)
    assert program.statistics().recordings == 1


@pytest.mark.parametrize("lower", LOWERINGS)
def test_arguments_are_written_where_they_lie(lower: str) -> None:
    def update(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.mul_(0.5).add_(x)
        return cache.sum()

    program: Any = treeplay.jit(update, lower=lower, on_refusal="raise")  # type: ignore[call-overload]
    caches = [torch.randn(100, device="cuda") for _ in range(3)]
    twins = [cache.clone() for cache in caches]
    for number in range(15):
        x = torch.randn(100, device="cuda")
        close(program(caches[number % 3], x), update(twins[number % 3], x))
    for cache, twin in zip(caches, twins, strict=True):
        close(cache, twin)
    assert launch_of(program).copied_bytes_per_call == 0, program.explain()


@pytest.mark.parametrize("lower", LOWERINGS)
def test_slices_of_any_alignment(lower: str) -> None:
    model = network().eval()
    program: Any = treeplay.jit(model, lower=lower, on_refusal="raise")  # type: ignore[call-overload]
    memory = torch.randn(1000, device="cuda")
    with torch.no_grad():
        for start in (0, 0, 0, 64, 1, 2, 3, 4, 7, 64, 128, 33):
            x = memory[start : start + 32].view(1, 32)
            close(program(x), model(x))


def test_random_numbers_go_on_as_eagers() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)).cuda()
    program: Any = treeplay.jit(model, lower="aten", on_refusal="raise")
    x = torch.randn(4, 16, device="cuda")
    with torch.no_grad():
        torch.manual_seed(3)
        found = [program(x) for _ in range(6)]
        torch.manual_seed(3)
        expected = [model(x) for _ in range(6)]
    for a, b in zip(found, expected, strict=True):
        close(a, b)


def test_a_tensor_of_the_cpu_is_refused_with_its_name() -> None:
    model = network().eval()

    def program(x: torch.Tensor) -> torch.Tensor:
        return model((x - 1).cuda())

    jitted: Any = treeplay.jit(program, on_refusal="raise")
    with torch.no_grad():
        jitted(torch.randn(2, 32))
        with pytest.raises(treeplay.Refusal, match="on the CPU in a program that computes on a GPU"):
            jitted(torch.randn(2, 32))


def test_a_result_on_the_cpu_is_refused() -> None:
    model = network().eval()

    def program(x: torch.Tensor) -> torch.Tensor:
        return model(x).cpu()

    jitted: Any = treeplay.jit(program, on_refusal="raise")
    with torch.no_grad():
        jitted(torch.randn(2, 32, device="cuda"))
        with pytest.raises(treeplay.Refusal, match="move it after the call"):
            jitted(torch.randn(2, 32, device="cuda"))


def test_autocast_is_part_of_the_key() -> None:
    model = network().eval()
    program: Any = treeplay.jit(model, on_refusal="raise")
    x = torch.randn(4, 32, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            with torch.autocast("cuda", torch.float16):
                half, expected = program(x), model(x)
            assert half.dtype is expected.dtype is torch.float16
            close(half, expected, 5e-3)
            with torch.autocast("cuda", torch.bfloat16):
                assert program(x).dtype is torch.bfloat16
            close(program(x), model(x))
    assert len(program.statistics().keys) == 3


def test_recordings_on_two_streams_share_memory_in_turn() -> None:
    programs: list[Any] = []
    models = [network(width=256, layers=6).eval() for _ in range(2)]
    for model in models:
        programs.append(treeplay.jit(model, on_refusal="raise"))
    streams = [torch.cuda.Stream() for _ in range(2)]
    xs = [torch.randn(512, 256, device="cuda") for _ in range(2)]
    torch.cuda.synchronize()
    with torch.no_grad():
        expected = [model(x) for model, x in zip(models, xs, strict=True)]
        for number in range(60):
            which = number % 2
            with torch.cuda.stream(streams[which]):
                out = programs[which](xs[which])
            streams[which].synchronize() if number > 50 else None
            if number > 50:
                close(out, expected[which], 1e-4)


def grown(width: int) -> Any:
    model = network(width=width).eval()
    program: Any = treeplay.jit(model, lower="aten", on_refusal="raise")
    with torch.no_grad():
        for _ in range(4):
            program(torch.randn(4096, width, device="cuda"))
    return program


def test_reset_gives_the_memory_back() -> None:
    grown(512).reset()
    before = reserved()
    for _ in range(3):
        grown(512).reset()
    assert reserved() <= before


def test_recordings_above_the_budget_are_dropped_and_recorded_again() -> None:
    with treeplay.settings.changed(memory_budget_bytes=1):
        first, second = grown(64), grown(128)
        assert launch_of(second).stage == "recorded"
        x = torch.randn(4096, 64, device="cuda")
        with torch.no_grad():
            close(first(x), first.__wrapped__(x))
        assert launch_of(first).stage == "recorded"
    assert treeplay.observe.counters["recordings dropped"]["memory"] >= 2


def test_a_compiled_model_is_recorded_as_it_runs() -> None:
    model = network(width=64).eval()
    program: Any = treeplay.jit(torch.compile(model), lower="capture", on_refusal="raise")  # type: ignore[call-overload]
    kept = []
    with torch.no_grad():
        for number in range(10):
            x = torch.randn(4, 64, device="cuda") * (number + 1)
            kept.append((program(x), model(x)))
    for found, expected in kept:
        close(found, expected, 1e-4)
    launch = launch_of(program)
    assert (launch.stage, launch.copied_bytes_per_call) == ("recorded", 0), launch


def test_a_whole_step_is_recorded_as_it_runs() -> None:
    model = network()
    twin = copy.deepcopy(model)
    ours = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    theirs = torch.optim.AdamW(twin.parameters(), fused=True, capturable=True)
    program: Any = treeplay.jit(training(model, ours), lower="capture", on_refusal="raise")
    eager = training(twin, theirs)
    for _ in range(10):
        x, y = torch.randn(8, 32, device="cuda"), torch.randn(8, 32, device="cuda")
        close(program(x, y), eager(x, y))
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        close(a, b, 1e-4)
        assert a.grad is not None and b.grad is not None
        close(a.grad, b.grad, 1e-4)
    assert launch_of(program).stage == "recorded", launch_of(program)


def test_gradients_kept_by_the_user_are_not_written_again() -> None:
    model = network()
    program: Any = treeplay.jit(training(model, torch.optim.SGD(model.parameters(), lr=0.1)), on_refusal="raise")
    first = next(model.parameters())
    kept, copies, views = [], [], []
    for _ in range(10):
        program(torch.randn(8, 32, device="cuda"), torch.randn(8, 32, device="cuda"))
        assert first.grad is not None
        kept.append(first.grad)
        copies.append(first.grad.clone())
        views.append(first.grad.detach()[1:])
        del kept[:-2]
    for found, expected in zip([*kept, *views], [*copies[-2:], *(one[1:] for one in copies)], strict=True):
        assert torch.equal(found, expected)


def test_scratch_that_an_operator_has_where_its_result_will_lie_stays_where_it_is() -> None:
    """Nodes that use the scratch must not be taken for the result's, which is smaller and lies elsewhere in each call."""

    @torch.library.custom_op("treeplay_tests::small_of_large", mutates_args=())
    def small_of_large(x: torch.Tensor) -> torch.Tensor:
        large = x.repeat(4096) * 2
        total = large.sum()
        del large
        return x + total

    small_of_large.register_fake(torch.empty_like)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(small_of_large(x * scale) for scale in (1.0, 2.0, 3.0))

    jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
    kept = []
    for call in range(6):
        x = torch.arange(24.0, device="cuda") + call
        kept.append((jitted(x), program(x)))
    for found, expected in kept:
        for mine, eagers in zip(found, expected, strict=True):
            close(mine, eagers, 1e-5)
    assert launch_of(jitted).stage == "recorded"
    assert any(how.startswith("copied") for how in launch_of(jitted).policy.values())


def test_lengths_on_the_cpu_are_read_as_in_eager() -> None:
    def program(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        lengths, target_lengths = torch.full((2,), 9), torch.full((2,), 3)
        return F.ctc_loss(x.log_softmax(-1), targets, lengths, target_lengths) * 2

    jitted: Any = treeplay.jit(program, lower="aten")
    for _ in range(4):
        x, targets = torch.randn(9, 2, 6, device="cuda", requires_grad=True), torch.randint(1, 6, (2, 3), device="cuda")
        found, expected = jitted(x, targets), program(x, targets)
        close(found, expected)
        close(*(torch.autograd.grad(loss, x)[0] for loss in (found, expected)))


@pytest.mark.parametrize("lower", ["aten", "inductor"])
def test_a_program_without_work_is_recorded(lower: str) -> None:
    before = internal_errors()
    jitted: Any = treeplay.jit(lambda x, y: (x.view(-1), x), lower=lower, on_refusal="raise")
    for _ in range(5):
        x = torch.randn(3, 4, device="cuda")
        view, same = jitted(x, x * 2)
        assert same is x and view.data_ptr() == x.data_ptr() and view.shape == (12,)
    assert internal_errors() == before


@pytest.mark.parametrize("lower", LOWERINGS)
@pytest.mark.parametrize("value", ["a number", "one of the GPU", "a few of one"])
def test_one_number_is_stored_under_a_mask(lower: str, value: str) -> None:
    """For one of the GPU, eager asks on the host where the mask holds; a recording does not."""
    values = {
        "a number": -0.5,
        "one of the GPU": torch.tensor(-0.5, device="cuda"),
        "a few of one": torch.tensor([-0.5], device="cuda"),
    }

    def program(x: torch.Tensor) -> torch.Tensor:
        x = x * 3
        x[x > 1] = values[value]
        x[:, x[0] < -1] = values[value]
        x[x[:, 0] > 0] = values[value]
        return x.masked_fill(x > 0.5, torch.tensor(2.0, device="cuda")) - x * 2

    jitted = treeplay.jit(program, lower=lower, on_refusal="raise")
    for _ in range(5):
        x = torch.randn(8, 16, device="cuda")
        torch.testing.assert_close(jitted(x), program(x), rtol=0, atol=0)
    (recording,) = (recording for key in jitted.statistics().keys for recording in key.recordings)
    assert recording.launch.stage == "recorded"
