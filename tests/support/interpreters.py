"""Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol


class FreshPython(Protocol):
    """What the fixture `fresh_python` gives."""

    def __call__(
        self, code: str, *arguments: object, cwd: Path | None = None, fails: bool = False, **environment: str
    ) -> tuple[str, str]: ...


def run_python(
    code: str, *arguments: object, cwd: Path | None = None, fails: bool = False, **environment: str
) -> tuple[str, str]:
    """What `code` printed and complained of. It must come to an end without an error, or with one if it `fails`."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd,
        env={**os.environ, **environment},
        check=False,
    )
    assert (done.returncode != 0) is fails, done.stderr
    return done.stdout.strip(), done.stderr.strip()
