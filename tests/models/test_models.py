"""Published architectures with random weights, small: what treeplay computes is what eager computes.

The models are those of `benchmarks.backend.zoo`. `pip install -e '.[models]'` brings the packages that most come from.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from benchmarks.backend.agreement import Agreement, forward_agreement, training_agreement
from benchmarks.backend.model import Model
from benchmarks.backend.ways import Way, treeplay_backend, treeplay_jit
from benchmarks.backend.zoo import MODELS, find_model

import treeplay

CPU = torch.device("cpu")
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
DEVICES = [CPU, pytest.param(torch.device("cuda"), marks=GPU)]
NAMES = [model.name for model in MODELS]
COMPILED = ("vit",)  # Inductor takes its time
CALLS = 4  # jit: eager, recorded, replayed, replayed
CLOSE = 1e-4

pytestmark = [pytest.mark.parametrize("device", DEVICES, ids=str), pytest.mark.filterwarnings("ignore")]


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
    network = model.make("tiny", device, training=False)
    return forward_agreement(way, network, model.feeds("tiny", device, CALLS))


def training(way: Way, name: str, device: torch.device) -> Agreement:
    model = model_of(name)
    network = model.make("tiny", device, training=True)
    return training_agreement(way, network, model.feeds("tiny", device, CALLS), model.loss)


@pytest.mark.parametrize("name", NAMES)
def test_inference_through_torch_compile_is_eagers(name: str, device: torch.device) -> None:
    assert inference(treeplay_backend("aten"), name, device).worst < CLOSE


@pytest.mark.parametrize("name", NAMES)
def test_training_through_torch_compile_is_eagers(name: str, device: torch.device) -> None:
    assert training(treeplay_backend("aten"), name, device).worst < CLOSE


@pytest.mark.parametrize("name", NAMES)
def test_inference_that_is_replayed_is_eagers(name: str, device: torch.device) -> None:
    assert inference(treeplay_jit("aten"), name, device).worst <= (0 if device == CPU else CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_step_that_is_replayed_is_eagers(name: str, device: torch.device) -> None:
    assert training(treeplay_jit("aten"), name, device).worst <= (0 if device == CPU else CLOSE)


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("way", [treeplay_backend("inductor"), treeplay_jit("inductor")], ids=lambda way: way.name)
def test_inference_of_compiled_kernels_is_eagers(way: Way, name: str, device: torch.device) -> None:
    assert inference(way, name, device).worst < CLOSE


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("way", [treeplay_backend("inductor"), treeplay_jit("inductor")], ids=lambda way: way.name)
def test_training_of_compiled_kernels_is_eagers(way: Way, name: str, device: torch.device) -> None:
    assert training(way, name, device).worst < CLOSE * 10  # an update of AdamW follows the sign of a gradient


def test_the_steps_were_replayed(device: torch.device) -> None:
    model = model_of("lstm")
    network = model.make("tiny", device, training=False)
    jitted = treeplay.jit(network, lower="aten", on_refusal="raise")
    with torch.no_grad():
        for feed in model.feeds("tiny", device, CALLS):
            jitted(**feed.inputs)
    assert jitted.statistics().replays >= CALLS - 2
