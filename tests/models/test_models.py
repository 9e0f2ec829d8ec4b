"""Published architectures with random weights, small: what treeplay computes is what eager computes.

The models are those of `benchmarks.backend.zoo`. `pip install -e '.[models]'` brings the packages that most come from.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict

import pytest
import torch
from benchmarks.backend.agreement import Agreement, forward_agreement, full_precision, rounding, training_agreement
from benchmarks.backend.model import Model
from benchmarks.backend.ways import Way, treeplay_backend, treeplay_jit
from benchmarks.backend.zoo import MODELS, find_model

import treeplay

CPU = torch.device("cpu")
GPU = pytest.mark.gpu
DEVICES = [CPU, pytest.param(torch.device("cuda"), marks=GPU)]
COMPILED = ("vit",)  # Inductor takes its time
MASKED = ("llama",)  # where it is traced, transformers makes a mask, and with a mask, repeats heads by another operator
CALLS = 4  # jit: eager, recorded, replayed, replayed
CLOSE = 1e-4
TRACED = Way("aot_eager", lambda model: torch.compile(model, backend="aot_eager"))
AS_EAGER = 4  # times what eager itself is off in these few steps

pytestmark = pytest.mark.filterwarnings("ignore")
on_each_device = pytest.mark.parametrize("device", DEVICES, ids=str)


def with_each_model(*names: str) -> pytest.MarkDecorator:
    """On each device. Those of packages take minutes on a CPU, and are no part of the gate there."""
    made = []
    for model in MODELS:
        on_a_cpu = [pytest.mark.soak] if model.package is not None else []
        for device, marks in ((CPU, on_a_cpu), (torch.device("cuda"), [GPU])):
            if not names or model.name in names:
                made.append(pytest.param(model.name, device, marks=marks, id=f"{model.name}-{device}"))
    return pytest.mark.parametrize(("name", "device"), made)


@pytest.fixture(autouse=True)
def no_fallback() -> Iterator[None]:
    """A graph that treeplay does not take runs as it is, with a warning: here that is a failure."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="treeplay")
        yield


def model_of(name: str) -> Model:
    model = find_model(name)
    missing = model.why_missing()
    if missing:
        pytest.skip(missing)
    return model


def inference(way: Way, name: str, device: torch.device) -> Agreement:
    model = model_of(name)
    with full_precision():
        return forward_agreement(way, model.make("tiny", device, training=False), model.feeds("tiny", device, CALLS))


def training(way: Way, name: str, device: torch.device) -> Agreement:
    model = model_of(name)
    with full_precision():
        return training_agreement(
            way, model.make("tiny", device, training=True), model.feeds("tiny", device, CALLS), model.loss
        )


def assert_close(
    found: Agreement, name: str, device: torch.device, *, bound: float = CLOSE, through_compile: bool = False
) -> None:
    """A way is as near to eager as it can be: networks that normalize few numbers amplify how these are added up.

    `through_compile`: training behind Dynamo is as near at least as torch's own trace of it.
    """
    if found.worst < bound:
        return
    model = model_of(name)
    loss = model.loss if found.gradients else None
    with full_precision():
        network = model.make("tiny", device, training=loss is not None)
        own = rounding(network, model.feeds("tiny", device, CALLS), loss)
    limits = {key: max(bound, AS_EAGER * value) for key, value in asdict(own).items()}
    if through_compile and not all(value <= limits[key] for key, value in asdict(found).items()):
        torch.compiler.reset()
        theirs = asdict(training(TRACED, name, device))  # of torch's own trace, which takes the same operators
        limits = {key: max(limits[key], 1.01 * value) for key, value in theirs.items()}
    assert all(value <= limits[key] for key, value in asdict(found).items()), f"{found} where eager's own is {own}"


@with_each_model()
def test_inference_through_torch_compile_is_eagers(name: str, device: torch.device) -> None:
    assert_close(inference(treeplay_backend("aten"), name, device), name, device)


@with_each_model()
def test_training_through_torch_compile_is_eagers(name: str, device: torch.device) -> None:
    assert_close(training(treeplay_backend("aten"), name, device), name, device, through_compile=True)


@with_each_model()
def test_inference_that_is_replayed_is_eagers(name: str, device: torch.device) -> None:
    found = inference(treeplay_jit("aten"), name, device)
    assert found.worst == 0 or device != CPU
    assert_close(found, name, device)


@with_each_model()
def test_a_whole_step_that_is_replayed_is_eagers(name: str, device: torch.device) -> None:
    found = training(treeplay_jit("aten"), name, device)
    assert found.worst == 0 or device != CPU or name in MASKED
    assert_close(found, name, device)


@with_each_model(*MASKED)
def test_a_whole_step_is_eagers_bit_for_bit_where_eager_makes_a_mask_too(
    name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_of(name)
    monkeypatch.setattr("transformers.masking_utils.is_tracing", lambda tensor=None: True)
    found = training(treeplay_jit("aten"), name, device)
    assert found.worst == 0 or device != CPU
    assert_close(found, name, device)


@with_each_model(*COMPILED)
@pytest.mark.parametrize("way", [treeplay_backend("inductor"), treeplay_jit("inductor")], ids=lambda way: way.name)
def test_inference_of_compiled_kernels_is_eagers(way: Way, name: str, device: torch.device) -> None:
    assert_close(inference(way, name, device), name, device)


@with_each_model(*COMPILED)
@pytest.mark.parametrize("way", [treeplay_backend("inductor"), treeplay_jit("inductor")], ids=lambda way: way.name)
def test_training_of_compiled_kernels_is_eagers(way: Way, name: str, device: torch.device) -> None:
    found = training(way, name, device)
    assert_close(found, name, device, bound=CLOSE * 10)  # an update of AdamW follows the sign of a gradient


@with_each_model("lstm", "gru")
@pytest.mark.parametrize("train", [False, True])
def test_recurrent_layers_on_a_gpu_are_not_compiled_where_that_would_misread_them(
    name: str, train: bool, device: torch.device
) -> None:
    if device == CPU:
        pytest.skip("they run in cuDNN on a GPU only")
    found = (training if train else inference)(treeplay_jit(), name, device)
    assert_close(found, name, device)


@on_each_device
def test_the_steps_were_replayed(device: torch.device) -> None:
    model = model_of("lstm")
    network = model.make("tiny", device, training=False)
    jitted = treeplay.jit(network, lower="aten", on_refusal="raise")
    with torch.no_grad():
        for feed in model.feeds("tiny", device, CALLS):
            jitted(**feed.inputs)
    statistics = jitted.statistics()
    assert statistics.replays == CALLS - sum(statistics.not_replayed.values()) >= CALLS - 2
    assert statistics.keys[0].recordings[0].launch.stage == ("bound" if device == CPU else "recorded")
