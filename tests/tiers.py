"""In which tier a test is: told from its place, its parameters and its marks, when tests are collected.

| tier | what is tested | how a test gets there |
|---|---|---|
| `unit` | a stage; no compiler starts | every other test |
| `programs` | whole programs; no compiler | `test_jit_*.py`, `*_stale.py`, the fixture `fresh_python`, or the mark |
| `compile` | what Inductor compiles, with a C++ compiler | a parameter that is `"inductor"`, or the mark |
| `models` | published architectures, from packages | the folder `tests/models` |
| `gpu` | NVIDIA GPUs; skipped without one | the mark |
| `soak` | what takes long | the mark |

The lowest row that fits wins. A test carries its tier as a mark. Tiers run in this order: each module that a process has
loaded makes a trace slower, and Inductor and the models load hundreds. So do some tests of a tier without a compiler, with the
mark `late`: they come after both of these tiers. What is skipped comes before all: a process is handed a part of the tests that
are left at once, and a thousand that take no time behind the slowest would have one process get these.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TIERS = ("unit", "programs", "compile", "models", "gpu", "soak")
WITHOUT_COMPILER = ("unit", "programs")
TIER = pytest.StashKey[str]()
_SKIPPED = "skipped"
_LATE = "late"
_IN_ORDER = (_SKIPPED, *WITHOUT_COMPILER, _LATE, *(tier for tier in TIERS if tier not in WITHOUT_COMPILER))
CACHE = "TORCHINDUCTOR_CACHE_DIR"
WHERE_LINKERS_ARE = "COMPILER_PATH"
QUICK = {"AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL": "O0", "AOT_INDUCTOR_ENABLE_LINE_TABLES": "0"}
"""Of the code that Inductor writes around its kernels, and for debuggers."""
_LIBRARIES = "torch", "torch_cpu", "torch_python"
"""With which Inductor links what it compiles, in this order."""


def tier_of(path: Path, marks: Sequence[str], parameters: Sequence[object], fixtures: Sequence[str]) -> str:
    """The tier of a test in the file `path`, with the names of its marks and fixtures and the values of its parameters."""
    for tier in ("soak", "gpu"):
        if tier in marks:
            return tier
    if path.parent.name == "models":
        return "models"
    if _is_compiled(marks, parameters):
        return "compile"
    is_story = path.stem.startswith("test_jit_") or path.stem.endswith("_stale")
    return "programs" if is_story or "programs" in marks or "fresh_python" in fixtures else "unit"


def _is_compiled(marks: Sequence[str], parameters: Sequence[object]) -> bool:
    return "compile" in marks or any(isinstance(value, str) and value == "inductor" for value in parameters)


def sort_into_tiers(items: list[pytest.Item]) -> None:
    """Mark each test with its tier, and put tiers in order. What needs a GPU, or a compiler for the CPU, is skipped without."""
    found: dict[str, list[pytest.Item]] = {place: [] for place in _IN_ORDER}
    for item in items:
        marks = [mark.name for mark in item.iter_markers()]
        parameters = list(getattr(getattr(item, "callspec", None), "params", {}).values())
        tier = tier_of(item.path, marks, parameters, getattr(item, "fixturenames", ()))
        item.add_marker(tier)
        item.stash[TIER] = tier
        place = _LATE if _LATE in marks and tier in WITHOUT_COMPILER else tier
        needs = _why_no_gpu if "gpu" in marks else _why_no_compiler if _is_compiled(marks, parameters) else None
        if needs is not None and (reason := needs()):
            item.add_marker(pytest.mark.skip(reason=reason))
            place = _SKIPPED
        found[place].append(item)
    items[:] = [item for each in found.values() for item in each]


@cache
def _why_no_gpu() -> str:
    import torch

    return "" if torch.cuda.is_available() else "needs an NVIDIA GPU"


@cache
def _why_no_compiler() -> str:
    from treeplay.codegen.compiler import find_compiler

    found = find_compiler()
    return "" if found.path else f"needs a C++ compiler: {found.why}"


class CompilerGate(MetaPathFinder):
    """Fails tests that start Inductor though they are in a tier without a compiler, once somebody has imported it."""

    door = "torch._inductor.compile_fx", "_compile_fx_inner"
    """All ways to Inductor go through this function."""

    def __init__(self) -> None:
        self._is_shut = False
        self._started: list[str] = []

    def install(self) -> None:
        """For the whole process."""
        if self.door[0] in sys.modules:
            self._guard(sys.modules[self.door[0]])
        else:
            sys.meta_path.insert(0, self)

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Inductor that is started in this block fails the test, even where something catches what it raises."""
        self._is_shut, self._started = True, []
        try:
            yield
        finally:
            self._is_shut = False
        if self._started:
            pytest.fail(self._started[0])

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Of that module only, guarded as soon as it is executed."""
        spec = PathFinder.find_spec(name, path) if name == self.door[0] else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), self._guard(module))  # type: ignore[method-assign]
        return spec

    def _guard(self, module: ModuleType) -> None:
        compile_graph = getattr(module, self.door[1])

        def guarded(*args: Any, **options: Any) -> Any:
            if self._is_shut:
                self._started.append(
                    "a test that is not in the tier `compile` started Inductor: mark it, or lower to `aten`"
                )
                pytest.fail(self._started[0])
            return compile_graph(*args, **options)

        setattr(module, self.door[1], guarded)


@contextmanager
def compiled_code_of_this_run(environment: MutableMapping[str, str]) -> Iterator[None]:
    """What Inductor compiles is shared by all processes of a run and kept from others, unless the caller says where."""
    if CACHE in environment:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="treeplay-tests-", ignore_cleanup_errors=True) as folder:
        environment[CACHE] = folder
        yield
        del environment[CACHE]


@contextmanager
def quick_compiles(environment: MutableMapping[str, str]) -> Iterator[None]:
    """The code that Inductor writes around its kernels, which only makes tensors and calls, is compiled without optimizations,
    and nothing is noted for debuggers: a library takes a third less time. Kernels are compiled as ever, for in another order
    they would round otherwise."""
    lent = {name: value for name, value in QUICK.items() if name not in environment}
    environment.update(lent)
    yield
    for name in lent:
        del environment[name]


@contextmanager
def quick_linker(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Compilers find the linker `gold` before the usual one, where the machine has it, and gold finds empty libraries in the
    place of torch's: Inductor's libraries are small, and reading torch's is most of what linking one takes. What a library
    lacks is looked for when it is loaded, in the libraries that it names: torch's."""
    gold = shutil.which("ld.gold")
    if gold is None or WHERE_LINKERS_ARE in environment:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="treeplay-tests-") as folder:
        _write_linker(Path(folder), gold)
        environment[WHERE_LINKERS_ARE] = folder
        yield
        del environment[WHERE_LINKERS_ARE]


def _write_linker(folder: Path, gold: str) -> None:
    """Without `--no-as-needed`, a library that has nothing would not be named."""
    nothing = folder / "nothing.ld"
    nothing.write_text("PROVIDE(nothing = 0);")
    for name in _LIBRARIES:
        command = [gold, "-shared", "-soname", f"lib{name}.so", "-o", folder / f"lib{name}.so", nothing]
        subprocess.run(command, check=True)
    named = " ".join(f"-l{name}" for name in _LIBRARIES)
    linker = folder / "ld"
    linker.write_text(
        f"""#!/bin/sh
case " $* " in
*" {named} "*) exec {gold} -L {folder} --no-as-needed {named} --as-needed "$@" ;;
esac
exec {gold} "$@"
"""
    )
    linker.chmod(0o755)
