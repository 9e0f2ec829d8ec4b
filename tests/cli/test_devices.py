"""`--device`: which one is meant, and why it may not be there."""

from __future__ import annotations

import pytest
import torch

from treeplay.cli.devices import drain_of, find_device, full_float32, why_no_cuda
from treeplay.cli.outcome import CommandError


def test_the_cpu_is_always_there() -> None:
    assert find_device("cpu") == torch.device("cpu")
    drain_of(torch.device("cpu"))()


@pytest.mark.parametrize("text", ["mps", "meta", "gpu", "", "cuda:x"])
def test_other_devices_are_refused(text: str) -> None:
    with pytest.raises(CommandError, match="expected cpu, cuda or cuda:0"):
        find_device(text)


def test_a_missing_gpu_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(CommandError, match="is built without CUDA"):
        find_device("cuda")


def test_an_index_is_checked_and_the_current_one_is_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeplay.cli.devices.why_no_cuda", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert find_device("cuda") == torch.device("cuda", 1)
    assert find_device("cuda:0") == torch.device("cuda", 0)
    with pytest.raises(CommandError, match="an index below 2"):
        find_device("cuda:2")


def test_hidden_gpus_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert why_no_cuda() == "$CUDA_VISIBLE_DEVICES hides every GPU"


def test_what_torch_says_of_a_missing_driver_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def init() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.\nPlease check")

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "init", init)
    assert why_no_cuda() == "Found no NVIDIA driver on your system."


def test_tf32_is_off_within_and_back_after_an_exception() -> None:
    before = torch.backends.cudnn.allow_tf32
    with pytest.raises(KeyError), full_float32():
        assert not torch.backends.cudnn.allow_tf32
        raise KeyError
    assert torch.backends.cudnn.allow_tf32 is before


@pytest.mark.gpu
def test_a_gpu_is_found() -> None:
    assert why_no_cuda() is None
    assert find_device("cuda") == torch.device("cuda", 0)
