"""`treeplay demo`: trains both ways and says whether they agree."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from treeplay.cli import training
from treeplay.cli.digits import BATCH, HELD_OUT, batches, load_digits
from treeplay.cli.training import make_eager, score

Command = Callable[..., Any]
WRONG_OPTIONS = [
    ["--steps", 1],
    ["--lower", "none"],
    ["--json", "/there/is/no/folder/x.json"],
    ["--device", "mps"],
    ["--device", "gpu"],
    ["--device", "cuda:99"],
]
pytestmark = pytest.mark.late  # scikit-learn, with SciPy, has a thousand modules


@pytest.fixture
def _digits() -> None:
    pytest.importorskip("sklearn")


@pytest.mark.programs
@pytest.mark.usefixtures("_digits")
def test_it_trains_both_ways_and_they_agree(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    result = command("demo", "--steps", 8, "--lower", "aten", "--json", path)
    assert result.exit_code == 0, result.output
    assert "all 8 losses agree" in result.stdout
    assert "lowered by aten (aten: asked for)" in result.stdout
    assert "8 calls = 7 replayed + 1 observed" in result.stdout
    written = json.loads(path.read_text())
    assert written["agree"] is True
    assert [len(learner["losses"]) for learner in written["learners"]] == [8, 8]
    assert written["statistics"]["recordings"] == 1  # the learning rate falls at each step


@pytest.mark.usefixtures("_digits")
def test_without_a_compiler_it_says_why_it_is_lowered_as_it_is(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    result = command("demo", "--steps", 5)
    assert result.exit_code == 0, result.output
    assert "aten: there is no compiler" in result.stdout
    refused = command("demo", "--steps", 5, "--peers")
    assert refused.exit_code == 2
    assert "torch.compile needs a C++ compiler" in refused.stderr


@pytest.mark.usefixtures("_digits")
def test_a_disagreement_is_told_and_ends_with_an_error(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    real = training._make
    seeds = iter([0, 1])  # the two networks start from different weights
    monkeypatch.setattr(training, "_make", lambda seed, device: real(next(seeds), device))
    result = command("demo", "--steps", 5, "--lower", "aten")
    assert result.exit_code == 1
    assert "the losses differ by more than" in result.stdout


def test_a_missing_scikit_learn_is_one_message(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    result = command("demo", "--steps", 5)
    assert result.exit_code == 2
    assert "pip install 'treeplay[demo]'" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.usefixtures("_digits")
@pytest.mark.parametrize("words", WRONG_OPTIONS)
def test_an_option_that_cannot_be_is_an_error(command: Command, words: list[Any]) -> None:
    result = command("demo", *words)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.gpu
@pytest.mark.usefixtures("_digits")
def test_it_trains_both_ways_on_a_gpu_and_they_agree(command: Command, tmp_path: Path) -> None:
    path, allowed = tmp_path / "demo.json", torch.backends.cudnn.allow_tf32
    result = command("demo", "--device", "cuda", "--steps", 40, "--json", path)
    assert result.exit_code == 0, result.output
    assert "all 40 losses agree" in result.stdout
    assert torch.cuda.get_device_name(0) in result.stdout
    assert torch.backends.cudnn.allow_tf32 is allowed
    written = json.loads(path.read_text())
    assert (written["device"], written["agree"], written["statistics"]["eager_calls"]) == ("cuda:0", True, 1)
    assert written["statistics"]["keys"][0]["recordings"][0]["launch"]["stage"] == "recorded"


@pytest.mark.usefixtures("_digits")
def test_batches_repeat_with_the_seed_and_cover_the_data() -> None:
    digits = load_digits()
    assert len(digits.labels) + HELD_OUT == 1797
    per_pass = len(digits.labels) // BATCH
    first, again = (list(batches(digits, steps=per_pass + 1, seed=3)) for _ in range(2))
    assert all(torch.equal(a, b) for one, two in zip(first, again, strict=True) for a, b in zip(one, two, strict=True))
    assert {tuple(images.shape) for images, _ in first} == {(BATCH, 1, 8, 8)}
    assert not torch.equal(first[0][0], first[per_pass][0])  # shuffled anew


@pytest.mark.usefixtures("_digits")
def test_a_score_leaves_the_network_as_it_was() -> None:
    digits, network = load_digits(), make_eager(0).network
    before = {name: value.clone() for name, value in network.state_dict().items()}
    result = score(network, digits)
    assert result.total == HELD_OUT
    assert 0 <= result.accuracy < 0.5  # untrained
    assert network.training
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_a_seed_makes_the_same_network_and_leaves_the_random_state() -> None:
    state = torch.get_rng_state()
    one, two = make_eager(5), make_eager(5)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.network.parameters(), two.network.parameters(), strict=True))
