"""Each test is in one tier, told from what it is; a test of the lowest starts no compiler."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from support.tiers import CACHE, compiled_code_of_this_run, no_compiler, tier_of


@pytest.mark.parametrize(
    ("folder", "marks", "parameters", "tier"),
    [
        ("trace", (), (), "unit"),
        ("trace", ("filterwarnings",), ("aten", 3), "unit"),
        ("backend", (), ("cpu", "inductor"), "compile"),
        ("backend", ("compile",), (), "compile"),
        ("models", ("compile",), ("inductor",), "models"),
        ("models", ("gpu",), (), "gpu"),
        ("gpu", ("compile", "gpu"), ("inductor",), "gpu"),
        ("gpu", ("gpu", "soak"), (), "soak"),
    ],
)
def test_the_tier_is_told_from_folder_marks_and_parameters(
    folder: str, marks: Sequence[str], parameters: Sequence[object], tier: str
) -> None:
    assert tier_of(folder, marks, parameters) == tier


def test_a_compiler_that_is_started_fails_the_test_even_where_that_is_caught() -> None:
    from torch._inductor.compile_fx import compile_fx_inner

    module = torch.fx.symbolic_trace(lambda x: (x - 1,))
    with pytest.raises(pytest.fail.Exception, match="mark it `compile`"), no_compiler():  # noqa: SIM117
        with contextlib.suppress(BaseException):
            compile_fx_inner(module, [torch.ones(2)])


def test_compiled_code_is_kept_for_one_run_unless_somebody_says_where(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    with compiled_code_of_this_run(environment):
        folder = Path(environment[CACHE])
        assert folder.is_dir()
        with compiled_code_of_this_run(environment):  # another process of the run
            assert environment[CACHE] == str(folder)
        assert folder.is_dir()
    assert not folder.exists() and not environment
    assert os.environ[CACHE]  # of this very run
