"""`treeplay doctor`: the facts of this machine, for people and as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay

Command = Callable[..., Any]


def test_it_names_versions_and_the_lowering(command: Command) -> None:
    result = command("doctor")
    assert result.exit_code == 0
    for fact in (treeplay.__version__, torch.__version__, platform.python_version(), "lowering"):
        assert fact in result.stdout
    assert "records on the CPU only" in " ".join(result.stdout.split())


def test_json_holds_the_same_facts(command: Command) -> None:
    facts = json.loads(command("doctor", "--json").stdout)
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["cpu"]["threads"] == torch.get_num_threads()
    assert facts["settings"] == {
        "max_recordings_per_program": treeplay.settings.max_recordings_per_program,
        "max_rerecordings": treeplay.settings.max_rerecordings,
        "eager_random": treeplay.settings.eager_random,
    }


def test_without_a_compiler_it_says_what_will_be_used(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    facts = json.loads(command("doctor", "--json").stdout)
    assert facts["compiler"] == {"path": None, "why": "$CXX is no-such-compiler, which is not on $PATH"}
    assert facts["lowering"] == {"lowering": "aten", "why": "there is no C++ compiler", "fallbacks": []}


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
