"""Each test is in one tier, told from what it is; those of the first two start no compiler."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tiers import (
    CACHE,
    QUICK,
    TIER,
    WHERE_LINKERS_ARE,
    CompilerGate,
    compiled_code_of_this_run,
    quick_compiles,
    quick_linker,
    sort_into_tiers,
    tier_of,
)


@pytest.mark.parametrize(
    ("file", "marks", "parameters", "fixtures", "tier"),
    [
        ("trace/test_log.py", (), (), (), "unit"),
        ("trace/test_log.py", ("filterwarnings",), ("aten", 3), (), "unit"),
        ("trace/test_log.py", ("programs",), (), (), "programs"),
        ("trace/test_log.py", (), (), ("fresh_python",), "programs"),
        ("test_jit_state.py", (), ("aten",), (), "programs"),
        ("guards/test_dicts_stale.py", (), (), (), "programs"),
        ("test_jit_state.py", (), ("cpu", "inductor"), (), "compile"),
        ("backend/test_job.py", ("compile",), (), (), "compile"),
        ("models/test_models.py", ("compile",), ("inductor",), (), "models"),
        ("models/test_models.py", ("gpu",), (), (), "gpu"),
        ("gpu/test_memory.py", ("compile", "gpu"), ("inductor",), (), "gpu"),
        ("gpu/test_memory.py", ("gpu", "soak"), (), (), "soak"),
    ],
)
def test_the_tier_is_told_from_place_marks_parameters_and_fixtures(
    file: str, marks: Sequence[str], parameters: Sequence[object], fixtures: Sequence[str], tier: str
) -> None:
    assert tier_of(Path("tests") / file, marks, parameters, fixtures) == tier


class AnItem:
    """As much of a test as is asked where it belongs."""

    def __init__(self, file: str, *marks: str) -> None:
        self.path = Path("tests") / file
        self.marks = [getattr(pytest.mark, mark).mark for mark in marks]
        self.stash: dict[object, str] = {}

    def iter_markers(self) -> list[pytest.Mark]:
        return self.marks

    def add_marker(self, mark: str | pytest.MarkDecorator) -> None:
        self.marks.append(getattr(pytest.mark, mark).mark if isinstance(mark, str) else mark.mark)


def test_tiers_are_in_order_behind_what_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiers._why_no_gpu", lambda: "there is none")
    library, story, model, on_gpu, stage = items = [
        AnItem("trace/test_log.py", "late"),
        AnItem("test_jit_state.py"),
        AnItem("models/test_models.py"),
        AnItem("trace/test_log.py", "gpu"),
        AnItem("trace/test_log.py"),
    ]
    sort_into_tiers(items)  # type: ignore[arg-type]
    assert items == [on_gpu, stage, story, library, model]
    assert [item.stash[TIER] for item in items] == ["gpu", "unit", "programs", "unit", "models"]
    assert [mark.kwargs["reason"] for mark in on_gpu.marks if mark.name == "skip"] == ["there is none"]


def test_a_compiler_that_is_started_fails_the_test_even_where_that_is_caught(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a_compiler.py").write_text("def compile_it(x):\n    return x - 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    gate = CompilerGate()
    gate.door = "a_compiler", "compile_it"
    gate.install()
    import a_compiler  # type: ignore[import-not-found]

    assert a_compiler.compile_it(3) == 2
    with pytest.raises(pytest.fail.Exception, match="started Inductor"), gate.shut():  # noqa: SIM117
        with contextlib.suppress(BaseException):
            a_compiler.compile_it(3)
    assert a_compiler.compile_it(3) == 2
    del sys.modules["a_compiler"]


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


def test_pytest_does_not_listen_to_what_torch_prints_only_for_listeners() -> None:
    trace = logging.getLogger("torch.__trace")
    assert not [handler for handler in trace.handlers if type(handler).__module__.startswith("_pytest.")]


def test_wrappers_are_compiled_quickly_unless_somebody_says_how() -> None:
    first, second = QUICK
    environment = {first: "O3"}
    with quick_compiles(environment):
        assert environment == {first: "O3", second: QUICK[second]}
        with quick_compiles(environment):  # another process of the run
            pass
        assert environment == {first: "O3", second: QUICK[second]}
    assert environment == {first: "O3"}

    import torch._inductor.config as config

    assert config.aot_inductor.compile_wrapper_opt_level == os.environ[first]
    assert config.aot_inductor.enable_line_tables is (os.environ[second] == "1")


def test_compilers_of_this_run_find_the_quick_linker_first() -> None:
    environment: dict[str, str] = {"PATH": os.environ["PATH"]}
    with quick_linker(environment):
        found = environment.get(WHERE_LINKERS_ARE)
        assert (found is None) is (shutil.which("ld.gold") is None)
        if found is not None:
            assert "GNU gold" in subprocess.run([f"{found}/ld", "--version"], capture_output=True, text=True).stdout
        with quick_linker(environment):  # another process of the run
            assert environment.get(WHERE_LINKERS_ARE) == found
    assert WHERE_LINKERS_ARE not in environment


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_library_that_is_linked_quickly_finds_torchs_functions(tmp_path: Path) -> None:
    import ctypes

    import torch

    folder = Path(torch.__file__).parent / "lib"
    source, library = tmp_path / "threads.cpp", tmp_path / "threads.so"
    source.write_text(
        'namespace at { int get_num_threads(); } extern "C" int threads() { return at::get_num_threads(); }'
    )
    named = [f"-L{folder}", "-ltorch", "-ltorch_cpu", "-ltorch_python"]
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", library, *named], check=True)
    assert ctypes.CDLL(str(library)).threads() == torch.get_num_threads() == 1
