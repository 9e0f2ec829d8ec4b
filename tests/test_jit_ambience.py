"""Modes of the thread and the process around a call: with another one a call acts as eager does, and back replays again."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from support import assert_same, jit
from treeplay.wrap.ambience import MODES, Ambience

Around = Callable[[], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def setting(read: Callable[[], Any], write: Callable[[Any], None], value: Any) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


@contextlib.contextmanager
def deterministic(*, warn_only: bool = False) -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    with setting(lambda: getattr(owner, name), lambda new: setattr(owner, name, new), value):
        yield


def without_flash() -> Any:
    return sdpa_kernel(SDPBackend.MATH)


ALL_KERNELS = (
    SDPBackend.MATH,
    SDPBackend.OVERRIDEABLE,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
)
cuda, cudnn, mha = torch.backends.cuda, torch.backends.cudnn, torch.backends.mha
CHANGES: dict[str, tuple[str, Around]] = {
    "grad mode": ("grad mode", torch.no_grad),
    "inference mode": ("grad mode", torch.inference_mode),
    "default dtype": (
        "default dtype",
        lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    ),
    "autocast": ("autocast", lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast for another device": (
        "autocast",
        lambda: setting(
            lambda: torch.is_autocast_enabled("xpu"), lambda on: torch.set_autocast_enabled("xpu", on), True
        ),
    ),
    "deterministic": ("deterministic algorithms", deterministic),
    "deterministic, warnings": ("deterministic algorithms", lambda: deterministic(warn_only=True)),
    "precision": (
        "precision of float32 matrix products",
        lambda: setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    ),
    "precision by its own name": (
        "precision of float32 matrix products",
        lambda: attribute(cuda.matmul, "fp32_precision", "tf32"),
    ),
    "flash": ("flash attention", lambda: setting(cuda.flash_sdp_enabled, cuda.enable_flash_sdp, False)),
    "math": ("attention of plain operators", lambda: setting(cuda.math_sdp_enabled, cuda.enable_math_sdp, False)),
    "16-bit sums": (
        "16-bit sums in attention",
        lambda: setting(cuda.fp16_bf16_reduction_math_sdp_allowed, cuda.allow_fp16_bf16_reduction_math_sdp, True),
    ),
    "fast path": ("fast path", lambda: setting(mha.get_fastpath_enabled, mha.set_fastpath_enabled, False)),
    "oneDNN": ("oneDNN", lambda: torch.backends.mkldnn.flags(enabled=False, deterministic=False)),
    "memory-efficient attention": (
        "memory-efficient attention",
        lambda: setting(cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp, False),
    ),
    "cuDNN attention": ("cuDNN attention", lambda: setting(cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp, False)),
    "cuDNN": ("cuDNN", lambda: attribute(cudnn, "enabled", False)),
    "cuDNN benchmark": ("cuDNN benchmark", lambda: attribute(cudnn, "benchmark", True)),
    "cuDNN deterministic": ("cuDNN deterministic", lambda: attribute(cudnn, "deterministic", True)),
    "order of attention kernels": (
        "order of attention kernels",
        lambda: sdpa_kernel(list(ALL_KERNELS), set_priority=True),
    ),
    "cuDNN TF32": ("TF32 in cuDNN", lambda: attribute(cudnn, "allow_tf32", False)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_mode_is_part_of_the_key_and_has_a_name(what: str) -> None:
    name, around = CHANGES[what]
    before = Ambience.now()
    with around():
        inside = Ambience.now()
    assert Ambience.now() == before != inside
    assert [mode for mode, _, _ in before.differences(inside) if name in mode]


def attend(x: torch.Tensor) -> torch.Tensor:
    """Attention, whose kernel is chosen by modes, and a normalization, which may be one of cuDNN's."""
    q = nn.functional.layer_norm(x * 2 - 1, (2,)).reshape(1, 1, -1, 2)
    return nn.functional.scaled_dot_product_attention(q, q * 2, q - 1).reshape(x.shape)


def test_a_mode_is_asked_for_where_an_operator_that_it_concerns_has_run(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    jitted, x = jit(lambda x: x * 2 - 1), torch.ones(2, 2)
    for _ in range(3):
        jitted(x)
    for what in ON_GPU:
        _, around = CHANGES[what]
        with around():
            before = jitted.statistics()
            assert_same(jitted(x), x * 2 - 1)
            assert jitted.statistics().replays == before.replays + 1
    assert "sdp" not in jitted.sources()[0] and "cudnn" not in jitted.sources()[0]


def test_a_precision_set_by_its_newer_name_is_no_obstacle_on_a_gpu(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        jitted, x = jit(lambda x: x * 2 - 1), torch.ones(2)
        for _ in range(4):
            assert_same(jitted(x), x * 2 - 1)
        assert jitted.statistics().replays == 3
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.compile
def test_a_precision_set_by_its_newer_name_is_no_obstacle_to_the_compiler() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        jitted, x = jit(lambda x: x * 2 - 1, lower="inductor"), torch.ones(2)
        for _ in range(4):
            assert_same(jitted(x), x * 2 - 1)
        assert jitted.statistics().replays == 3
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_a_recording_of_a_gpu_asks_for_its_modes(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    jitted, x = jit(attend), torch.ones(2, 2)
    for _ in range(3):
        jitted(x)
    assert "get_sdp_priority_order() == c" in jitted.sources()[0]
    for what in ON_GPU:
        _, around = CHANGES[what]
        with around():
            before = jitted.statistics()
            assert_same(jitted(x), attend(x))
            assert jitted.statistics().eager_calls == before.eager_calls + 1, what
        jitted(x)
        assert jitted.statistics().replays == before.replays + 1
    assert jitted.statistics().recordings == 1


ON_GPU = (
    "memory-efficient attention",
    "cuDNN attention",
    "cuDNN",
    "cuDNN benchmark",
    "cuDNN deterministic",
    "cuDNN TF32",
    "order of attention kernels",
)
ON_CPU = [what for what in CHANGES if what not in ON_GPU]


@pytest.mark.parametrize("with_tensors", [True, False])
@pytest.mark.parametrize("what", ON_CPU)
def test_going_back_replays_the_first_recording(what: str, with_tensors: bool) -> None:
    if with_tensors and what == "autocast for another device":
        pytest.skip("tensors on the CPU are not cast")
    name, around = CHANGES[what]
    jitted = jit(lambda *xs: torch.full((2,), 1.5) @ torch.full((2,), 2.5) + attend(torch.full((2, 2), 0.5)) - sum(xs))
    given = (torch.full((), 3.0),) if with_tensors else ()
    for _ in range(3):
        jitted(*given)
    for _ in range(2):
        with around():
            for _ in range(3):
                found, expected = jitted(*given), jitted.__wrapped__(*given)
                assert_same(found, expected)
                assert found.is_inference() == expected.is_inference()
        before = jitted.statistics()
        for _ in range(2):
            assert_same(jitted(*given), jitted.__wrapped__(*given))
        after = jitted.statistics()
        assert (after.recordings, after.replays) == (before.recordings, before.replays + 2) == (2, before.replays + 2)
    assert name in jitted.explain(), jitted.explain()


@pytest.mark.parametrize("what", ON_GPU)
def test_modes_of_a_gpu_cost_a_program_on_the_cpu_nothing(what: str) -> None:
    if torch.cuda.is_initialized():
        pytest.skip("modes of a GPU count here")
    _, around = CHANGES[what]
    jitted, x = jit(lambda x: x * 2 - 1), torch.ones(2)
    for _ in range(3):
        jitted(x)
    with around():
        assert_same(jitted(x), x * 2 - 1)
    assert jitted.statistics().recordings == 1


def attention(query: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, query * 2, query - 1)


def test_attention_takes_the_kernel_that_is_chosen() -> None:
    jitted = jit(attention)
    query = torch.randn(1, 2, 8, 16)
    with torch.no_grad():
        for around in (contextlib.nullcontext, without_flash) * 4:
            with around():
                assert_same(jitted(query), attention(query))
    assert jitted.statistics().recordings == 2


def test_without_any_kernel_attention_raises_as_eager_does() -> None:
    jitted = jit(attention)
    query = torch.randn(1, 2, 8, 16)
    with torch.no_grad():
        for _ in range(3):
            jitted(query)
        with pytest.raises(RuntimeError), sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            jitted.__wrapped__(query)
        with pytest.raises(RuntimeError), sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            jitted(query)
        assert_same(jitted(query), attention(query))
    assert jitted.statistics().recordings == 1


def test_attention_modules_take_their_fast_path_or_not() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    jitted = jit(lambda x: layer(x), on_refusal="eager")
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        for enabled in (True, False) * 4:
            with setting(mha.get_fastpath_enabled, mha.set_fastpath_enabled, enabled):
                assert_same(jitted(x), layer(x))


def put(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))


def test_operators_that_are_not_deterministic_raise_as_in_eager() -> None:
    jitted, x = jit(put, on_refusal="eager"), torch.ones(3)
    for _ in range(3):
        jitted(x)
    before = jitted.statistics()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="deterministic"), deterministic():
            jitted(x)
    with warnings.catch_warnings(record=True) as caught, deterministic(warn_only=True):
        warnings.simplefilter("always")
        jitted(x)
    assert any("deterministic" in str(warning.message) for warning in caught)
    assert_same(jitted(x), put(x))
    assert jitted.statistics().recordings == before.recordings


def test_new_memory_is_filled_where_that_is_asked_for() -> None:
    jitted, x = jit(lambda x: torch.empty(3) + x), torch.ones(3)
    for _ in range(3):
        jitted(x)
    for fill in (True, False) * 2:
        with deterministic(), attribute(torch.utils.deterministic, "fill_uninitialized_memory", fill):
            for _ in range(3):
                assert jitted(x).isnan().all() or not fill


def root(x: torch.Tensor) -> torch.Tensor:
    return (x - x).sqrt()


@pytest.mark.parametrize("inside", [True, False])
def test_anomaly_detection_finds_the_operator(inside: bool) -> None:
    weight = nn.Parameter(torch.ones(2))

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = (root(weight * x) * 0).sum()
        if inside:
            loss.backward()
            return loss.detach()
        return loss

    jitted = jit(step)

    def run() -> None:
        weight.grad = None
        loss = jitted(torch.ones(2))
        if not inside:
            loss.backward()

    for _ in range(4):
        run()
    replays = jitted.statistics().replays
    for _ in range(3):
        with (
            warnings.catch_warnings(),
            torch.autograd.detect_anomaly(),
            pytest.raises(RuntimeError, match="SqrtBackward0"),
        ):
            warnings.simplefilter("ignore")
            run()
    run()
    assert jitted.statistics().replays == replays + 1
    assert jitted.statistics().recordings == 1
    assert "anomaly detection" in jitted.explain()


def test_anomaly_detection_without_a_check_for_nans() -> None:
    jitted, x = jit(lambda x: root(x).sum()), torch.ones(2, requires_grad=True)
    for _ in range(3):
        with warnings.catch_warnings(), torch.autograd.detect_anomaly(check_nan=False):
            warnings.simplefilter("ignore")
            jitted(x).backward()
    assert x.grad is not None and x.grad.isnan().all()
    assert jitted.statistics().eager_calls == 3


@pytest.mark.parametrize("place", ["argument", "state"])
def test_a_tangent_is_not_lost(place: str) -> None:
    primal, tangent = torch.randn(3), torch.randn(3)
    state = {"x": primal}
    jitted = jit(lambda x: (x * state["x"]).sin() - x)
    for _ in range(3):
        jitted(primal)
    for _ in range(3):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(primal, tangent)
            if place == "state":
                state["x"] = dual
            found = forward_ad.unpack_dual(jitted(dual if place == "argument" else primal))
            expected = forward_ad.unpack_dual(jitted.__wrapped__(dual if place == "argument" else primal))
            assert expected.tangent is not None
            assert_same(found, expected)
            state["x"] = primal
        assert_same(jitted(primal), jitted.__wrapped__(primal))
    statistics = jitted.statistics()
    assert (statistics.recordings, statistics.eager_calls, statistics.replays) == (1, 4, 5)
    assert "forward-mode differentiation" in jitted.explain()


def test_a_default_device_is_followed() -> None:
    jitted, x = jit(lambda x: (torch.ones(2) * 3 - 1, x), on_refusal="eager"), torch.ones(2)
    for _ in range(3):
        jitted(x)
    for _ in range(2):
        with torch.device("meta"):
            assert jitted(x)[0].device.type == "meta"
        torch.set_default_device("meta")
        try:
            assert jitted(x)[0].device.type == "meta"
        finally:
            torch.set_default_device(None)
        assert_same(jitted(x)[0], torch.full((2,), 2.0))
    statistics = jitted.statistics()
    assert (statistics.recordings, statistics.refusals, statistics.replays) == (1, 1, 4)
    assert statistics.not_replayed == {"observed": 2, "refused": 3} and "computes on meta" in jitted.explain()


def test_the_number_of_threads_is_no_condition() -> None:
    jitted, x = jit(lambda x: x * 2 - 1), torch.ones(2)
    for _ in range(3):
        jitted(x)
    with setting(torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1):
        jitted(x)
    assert jitted.statistics().replays == 3


def test_hooks_on_saved_tensors_see_what_eager_saves() -> None:
    seen: list[torch.Tensor] = []
    x = torch.ones(2, requires_grad=True)
    jitted = jit(lambda x: (x * 3).sin())
    for _ in range(3):
        jitted(x)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        jitted(x)
    assert seen


def test_training_under_precisions_is_that_of_eager() -> None:
    model = nn.Linear(4, 4)
    twin = copy.deepcopy(model)
    jitted = jit(model)
    x = torch.randn(2, 4)
    with torch.no_grad():
        for precision in ("highest", "high", "medium") * 3:
            with setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, precision):
                assert_same(jitted(x), twin(x))
    assert jitted.statistics().recordings == 3


def test_every_mode_has_one_name() -> None:
    assert len({mode.what for mode in MODES}) == len({mode.name for mode in MODES}) == len(MODES)
