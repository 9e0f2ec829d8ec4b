"""What the command takes to start: torch only where a verb needs it."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import treeplay
from support.interpreters import FreshPython
from treeplay.cli import VERBS

_AS_A_MODULE = """
import runpy, sys
try:
    runpy.run_module("treeplay", run_name="__main__")
except SystemExit as end:
    print("exit", end.code or 0, "torch" in sys.modules)
"""


@pytest.mark.parametrize(("word", "said"), [("--version", f"treeplay {treeplay.__version__}"), ("--help", "doctor")])
def test_what_needs_no_torch_does_not_import_it(fresh_python: FreshPython, word: str, said: str) -> None:
    out, _ = fresh_python(f"import sys; sys.argv[1:] = [{word!r}]\n{_AS_A_MODULE}")
    assert said in out and out.endswith("exit 0 False")


def test_python_m_treeplay_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "treeplay", "chek"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2 and "treeplay" in done.stderr and "chek" in done.stderr


@pytest.mark.parametrize(
    ("variable", "found", "expected"),
    [("TREEPLAY", "maybe", "0 or 1"), ("TREEPLAY_LOGS", "guard", "some of recordings, refusals, guards, all")],
)
def test_an_unknown_word_in_the_environment_is_one_message(variable: str, found: str, expected: str) -> None:
    words = [sys.executable, "-m", "treeplay", "doctor"]
    environment = {**os.environ, variable: found}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: the environment variable {variable}: expected {expected}, found {found!r}\n"


def test_a_letter_that_the_output_lacks_is_written_as_its_number(tmp_path: Path) -> None:
    file = tmp_path / "lines.py"
    file.write_text("def step(x):\n    return x * x.sum().item()  # é\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "treeplay", "check", f"{file}:step", "--args", "torch.ones(2)"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 1 and "return x * x.sum().item()  # \\xe9" in done.stdout, done.stderr


def test_the_list_of_verbs_says_what_each_says_of_itself() -> None:
    for name, told in VERBS.items():
        verb = getattr(importlib.import_module(f"treeplay.cli.{name}"), name)
        assert inspect.getdoc(verb).partition("\n")[0] == told


def test_importing_treeplay_waits_with_torch_until_something_is_used(fresh_python: FreshPython) -> None:
    script = "import sys, treeplay; print('torch' in sys.modules, 'jit' in dir(treeplay), hasattr(treeplay, 'jti'))"
    assert fresh_python(script)[0] == "False True False"


def test_what_compiles_is_imported_where_something_is_compiled(fresh_python: FreshPython) -> None:
    """They take one to two seconds, which the first call of a program would wait for."""
    script = (
        "import sys, torch, treeplay.driver\n"
        "print([name for name in ('sympy', 'torch._dynamo', 'torch._inductor') if name in sys.modules])"
    )
    assert fresh_python(script)[0] == "[]"
