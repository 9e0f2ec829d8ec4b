"""The examples that use a library run, agree with eager, and are replayed."""

from __future__ import annotations

import pytest

from support.examples import run_example

PACKAGES = {
    "transformers_trainer": (1, "transformers", "accelerate"),
    "transformers_generate": (4, "transformers"),
    "accelerate_step": (1, "transformers", "accelerate"),
    "peft_lora": (1, "transformers", "peft"),
    "lightning_module": (1, "lightning"),
    "tensordict_batches": (2, "tensordict"),
    "diffusers_pipeline": (1, "diffusers"),
}
"""How many calls of each run eagerly, and what it imports."""

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", PACKAGES)
def test_an_example_is_replayed(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    not_replayed, *packages = PACKAGES[name]
    for package in packages:
        pytest.importorskip(str(package))
    replayed, calls = run_example(name, capsys, monkeypatch)
    assert calls - replayed == not_replayed
