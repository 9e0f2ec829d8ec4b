"""`treeplay check`: yes with a summary, no with the user's line, and errors for targets that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STEP = """
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.25)

def step(x, y):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss
"""
STEP_ARGS = """
def step_args():
    return torch.ones(4, 8), torch.ones(4, 1)
"""
READS = """
import torch

def reads(x):
    total = x.sum()
    return x * total.item()

def example_args():
    return torch.ones(3)
"""
Command = Callable[..., Any]
WriteProgram = Callable[[str], str]


def test_a_training_step_can_be_recorded(command: Command, write_program: WriteProgram) -> None:
    result = command("check", write_program(STEP + STEP_ARGS) + ":step")
    assert result.exit_code == 0, result.output
    assert "can be recorded" in result.stdout
    assert "whole step" in result.stdout
    assert "lr'] = 0.25" in result.stdout
    assert "model.weight.grad, model.bias.grad" in " ".join(result.stdout.split())


def test_arguments_come_from_an_expression(command: Command, write_program: WriteProgram) -> None:
    result = command("check", write_program(STEP) + ":step", "--args", "torch.ones(2, 8), torch.ones(2, 1)")
    assert result.exit_code == 0, result.output
    assert "args[0]=float32[2, 8], args[1]=float32[2, 1] (--args)" in result.stdout


def test_a_refusal_names_the_line_and_the_cure(command: Command, write_program: WriteProgram) -> None:
    path = write_program(READS)
    result = command("check", f"{path}:reads")
    assert result.exit_code == 1
    assert "cannot be recorded" in result.stdout
    assert f"{path}:6 in reads" in result.stdout
    assert "return x * total.item()" in result.stdout
    assert "fix: " in result.stdout
    assert "there may be more" in result.stdout


def test_a_number_that_changes_from_call_to_call_is_refused(command: Command, write_program: WriteProgram) -> None:
    path = write_program("import random\n\ndef noisy(x):\n    return x * random.random()\n")
    result = command("check", f"{path}:noisy", "--args", "torch.ones(2)")
    assert result.exit_code == 1
    assert "random" in result.stdout


def test_a_module_is_checked_under_no_grad(command: Command, write_program: WriteProgram) -> None:
    path = write_program("import torch\nnet = torch.nn.Linear(2, 3)\n")
    assert "inference" in command("check", f"{path}:net", "--args", "torch.ones(1, 2)", "--no-grad").stdout


def test_a_program_for_a_backward_outside_says_what_it_gives(command: Command, write_program: WriteProgram) -> None:
    path = write_program("import torch\nnet = torch.nn.Linear(2, 3)\n")
    result = command("check", f"{path}:net", "--args", "torch.ones(1, 2)")
    assert result.exit_code == 0, result.output
    assert "differentiable" in result.stdout and "gradients for 2 of 3 tensors" in result.stdout


def test_a_hook_inside_is_refused_with_its_line(command: Command, write_program: WriteProgram) -> None:
    lines = "import torch\n\ndef hooked(x):\n    y = x * 2\n    y.register_hook(print)\n    return y\n"
    path = write_program(lines)
    result = command("check", f"{path}:hooked", "--args", "torch.ones(2, requires_grad=True)")
    assert result.exit_code == 1
    assert f"{path}:5 in hooked" in result.stdout


def test_a_module_that_cannot_be_recorded_has_no_line_of_the_users(
    command: Command, write_program: WriteProgram
) -> None:
    text = "import torch\nnet = torch.nn.Linear(2, 3)\nnet.register_full_backward_hook(lambda *given: None)\n"
    result = command("check", f"{write_program(text)}:net", "--args", "torch.ones(1, 2)")
    assert result.exit_code == 1
    assert "  at " not in result.stdout  # no line of the user's is running in a bare module


@pytest.mark.parametrize("text", ["treeplay.jit(lambda x: x + 1)", "treeplay.jit(torch.nn.ReLU())"])
def test_a_jitted_program_is_checked_as_the_plain_one(command: Command, write_program: WriteProgram, text: str) -> None:
    path = write_program(f"import torch, treeplay\nprogram = {text}\n")
    result = command("check", f"{path}:program", "--args", "torch.ones(2)")
    assert result.exit_code == 0, result.output
    assert "inference" in result.stdout


def test_a_module_on_the_path_can_be_named(command: Command) -> None:
    result = command("check", "torch:sigmoid", "--args", "torch.ones(2)")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_separator.py", "expected FILE.py:NAME or module:NAME"),
        (":name", "expected FILE.py:NAME or module:NAME"),
        ("/there/is/none.py:step", "there is no file /there/is/none.py"),
        ("no_such_module_here:step", "there is no module no_such_module_here"),
        ("torch.no_such_module:step", "there is no module torch.no_such_module"),
        ("..there:step", "there is no module ..there"),
        ("torch:sigmod", "did you mean sigmoid"),
        ("torch:pi", "torch:pi cannot be called: its type is float"),
    ],
)
def test_a_wrong_target_is_one_message(command: Command, target: str, message: str) -> None:
    result = command("check", target)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("x = 1 / 0\n", [], "ZeroDivisionError"),
        ("def program():\n    raise KeyError('k')\n", [], ":2 in program"),
        ("def program(x):\n    return x\n", ["--args", "1 +"], "SyntaxError"),
        ("def program(x):\n    return x\n", [], "missing 1 required positional argument"),
        ("import sys\nsys.exit(0)\n", [], "SystemExit"),
        ("def __getattr__(name):\n    raise ValueError(name)\n", [], ":2 in __getattr__"),
    ],
)
def test_an_exception_of_the_user_is_one_message(
    command: Command, write_program: WriteProgram, text: str, words: list[str], message: str
) -> None:
    result = command("check", write_program(text) + ":program", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("line", ["1 / 0", "import no_such_module_here"])
def test_an_exception_of_a_package_is_the_packages_own(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    folder = tmp_path / "programs_of_a_user"
    folder.mkdir()
    (folder / "__init__.py").write_text(f"{line}\n")
    (folder / "steps.py").write_text("def step():\n    pass\n")
    monkeypatch.chdir(tmp_path)
    result = command("check", "programs_of_a_user.steps:step")
    assert result.exit_code == 2
    assert "importing programs_of_a_user.steps raised" in result.stderr
    assert "__init__.py:1" in result.stderr


def test_a_file_that_parses_arguments_is_given_none(command: Command, write_program: WriteProgram) -> None:
    path = write_program(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--rate', type=float, default=0.5)\n"
        "rate = parser.parse_args().rate\n\ndef step(x):\n    return x * rate\n"
    )
    result = command("check", f"{path}:step", "--args", "torch.ones(2)")
    assert result.exit_code == 0, result.output


def test_the_program_runs_eagerly_once(command: Command, write_program: WriteProgram) -> None:
    path = write_program("import torch\nstate = torch.zeros(1)\n\ndef program():\n    return state.add_(1)\n")
    result = command("check", f"{path}:program")
    assert result.exit_code == 0, result.output
    import sys

    assert sys.modules["programs_of_a_user"].state.tolist() == [1.0]


def test_a_program_on_another_device_cannot_be_recorded(command: Command, write_program: WriteProgram) -> None:
    program = write_program("import torch\n\ndef triple(x):\n    return x * 3 - 1\n")
    result = command("check", f"{program}:triple", "--args", "torch.ones(2, device='meta')")
    assert result.exit_code == 1, result.output
    assert "on meta" in result.stdout


def test_a_returned_value_that_changes_cannot_be_recorded(command: Command, write_program: WriteProgram) -> None:
    program = write_program("import time\nimport torch\n\ndef stamped(x):\n    return x, time.perf_counter_ns()\n")
    result = command("check", f"{program}:stamped", "--args", "torch.ones(2)")
    assert result.exit_code == 1, result.output
    assert "cannot be recorded" in result.stdout
