"""`treeplay doctor`: the facts of this machine, for people and as JSON."""

from __future__ import annotations

import importlib
import json
import platform
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay

doctor = importlib.import_module("treeplay.cli.doctor")  # the package shows the verb under this name
Command = Callable[..., Any]
CUDA_PACKAGES = {"triton": "3.6.0"}


@pytest.fixture
def _one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine as it looks with a GPU."""
    monkeypatch.setattr(doctor, "why_no_cuda", lambda: None)
    monkeypatch.setattr(doctor, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    monkeypatch.setattr(doctor, "_version", CUDA_PACKAGES.get)


def test_it_names_versions_and_the_lowering(command: Command) -> None:
    result = command("doctor")
    assert result.exit_code == 0
    for fact in (treeplay.__version__, torch.__version__, platform.python_version(), "lowering"):
        assert fact in result.stdout


def test_json_holds_the_same_facts(command: Command) -> None:
    facts = json.loads(command("doctor", "--json").stdout)
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["cpu"]["threads"] == torch.get_num_threads()
    assert facts["settings"] == {
        "enabled": treeplay.settings.enabled,
        "max_recordings_per_program": treeplay.settings.max_recordings_per_program,
        "max_rerecordings": treeplay.settings.max_rerecordings,
        "compile_budget": treeplay.settings.compile_budget,
        "tiers": treeplay.settings.tiers,
        "compare_with_eager": treeplay.settings.compare_with_eager,
        "eager_random": treeplay.settings.eager_random,
        "memory_budget_bytes": treeplay.settings.memory_budget_bytes,
        "verify": treeplay.settings.verify,
        "audit": treeplay.settings.audit,
    }


def test_without_a_compiler_it_says_what_will_be_used(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    facts = json.loads(command("doctor", "--json").stdout)
    assert facts["compiler"] == {"path": None, "why": "$CXX is no-such-compiler, which is not on $PATH"}
    assert facts["lowering"] == {"lowering": "aten", "why": "there is no compiler", "fallbacks": []}


def test_a_named_compiler_is_the_one_that_is_used(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    compiler = tmp_path / "my-cxx"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    facts = json.loads(command("doctor", "--json").stdout)
    assert facts["compiler"]["path"] == str(compiler)
    assert facts["lowering"]["lowering"] == "inductor"
    assert facts["lowering"]["fallbacks"] == ["aten"]


def test_without_cuda_it_says_why_not(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "why_no_cuda", lambda: "there is no driver")
    facts = json.loads(command("doctor", "--json").stdout)
    assert facts["cuda"] == {"available": False, "built for": torch.version.cuda, "why not": "there is no driver"}


@pytest.mark.usefixtures("_one_gpu")
def test_with_a_gpu_it_names_what_recording_there_uses(command: Command) -> None:
    cuda = json.loads(command("doctor", "--json").stdout)["cuda"]
    assert (cuda["available"], cuda["devices"], cuda["Triton"]) == (True, ["GPU 0"], "3.6.0")
    assert cuda["inputs that move"] == "patched into the launch"


@pytest.mark.usefixtures("_one_gpu")
def test_with_an_old_driver_it_says_what_is_lost(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_available", lambda: False)
    cuda = json.loads(command("doctor", "--json").stdout)["cuda"]
    assert cuda["inputs that move"].startswith("copied, not patched")
    assert "update the driver" in cuda["inputs that move"]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build", "580.159.04"),
        ("something else", None),
    ],
)
def test_the_driver_is_read_where_the_system_tells_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, text: str, version: str | None
) -> None:
    file = tmp_path / "version"
    monkeypatch.setattr(doctor, "_DRIVER", file)
    assert doctor._driver() is None
    file.write_text(text)
    assert doctor._driver() == version


@pytest.mark.gpu
def test_a_real_gpu_is_named(command: Command) -> None:
    cuda = json.loads(command("doctor", "--json").stdout)["cuda"]
    assert cuda["devices"][0] == torch.cuda.get_device_name(0)
    assert cuda["available"] and cuda["lowering"]
