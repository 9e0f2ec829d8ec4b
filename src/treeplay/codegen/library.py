"""C in a file of the package → functions of this process, compiled when they are first wanted."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from ctypes import CDLL, c_void_p, cast
from pathlib import Path

from treeplay.codegen.compiler import find_c_compiler

_MOST_SECONDS = 60


def compile_library(source: Path, kind: type[CDLL] = CDLL) -> CDLL:
    """The functions of a C file that includes nothing but the language's own headers. Takes a tenth of a second.

    Raises `OSError` where there is no C compiler, or where it does not compile this."""
    compiler = find_c_compiler()
    if compiler is None or os.name != "posix":
        raise OSError("there is no C compiler")
    with tempfile.TemporaryDirectory(prefix="treeplay-") as folder:
        path = Path(folder, f"{source.stem}.so")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(path), str(source)]
        if sys.platform == "darwin":  # where what the interpreter has is not looked for there by itself
            command += ["-undefined", "dynamic_lookup"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_MOST_SECONDS)
        except subprocess.SubprocessError as error:
            raise OSError(f"{compiler} does not compile: {error}") from error
        # What is loaded stays mapped when the folder goes.
        return kind(str(path))


def address_in(library: CDLL, name: str) -> int:
    """Where a function of a library is."""
    return int(cast(getattr(library, name), c_void_p).value or 0)
