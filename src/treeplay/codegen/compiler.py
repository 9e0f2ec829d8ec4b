"""The compilers of this machine: for C++ (Inductor), for C (what captures need of it) and for GPUs (Triton)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass

_CANDIDATES = ("g++", "c++", "clang++", "gcc", "clang")


@dataclass(frozen=True, slots=True)
class Compiler:
    """The compiler found, or None and why."""

    path: str | None
    why: str


def find_compiler() -> Compiler:
    """The C++ compiler of `$CXX` or on `$PATH`."""
    named = os.environ.get("CXX")
    if named:
        path = shutil.which(named)
        return Compiler(path, f"$CXX is {named}" if path else f"$CXX is {named}, which is not on $PATH")
    candidates = ("cl",) if sys.platform == "win32" else _CANDIDATES[:3]
    for name in candidates:
        path = shutil.which(name)
        if path:
            return Compiler(path, f"{name} is on $PATH")
    return Compiler(None, f"none of {', '.join(candidates)} is on $PATH")


def find_c_compiler() -> str | None:
    """The path of the C compiler of `$CC` or on `$PATH`, which Triton takes too; None if there is none."""
    named = (os.environ.get("CC"), "gcc", "clang", "cc")
    return next((found for name in named if name and (found := shutil.which(name))), None)


def find_gpu_compiler() -> Compiler:
    """Triton, which compiles for GPUs, and the C compiler that it needs for its launchers."""
    if importlib.util.find_spec("triton") is None:
        return Compiler(None, "Triton is not installed")
    path = find_c_compiler()
    return Compiler(path and f"Triton and {path}", "Triton is installed" if path else "Triton needs a C compiler")
