"""Does treeplay work with each release of torch? `make compat`, or `python -m benchmarks.compat [RELEASE ...]`.

For each release an environment with that torch is made, and a few tests are run in it: one program of each kind, and the tests
of the doors to torch's private parts. Takes minutes and gigabytes a release; the result is a file.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks import machine

OLDEST = (2, 11)
TESTS = ("tests/test_smoke.py", "tests/torch_seam")
ROOT = Path(__file__).parents[1]


def releases() -> list[str]:
    """The last release of each minor version of torch that can be installed, from the oldest that treeplay asks for."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "torch"], capture_output=True, text=True, check=True
    ).stdout
    found = sorted({tuple(map(int, each)) for each in re.findall(r"\b(\d+)\.(\d+)\.(\d+)(?=[,\s])", listed)})
    newest = [list(patches)[-1] for minor, patches in groupby(found, key=lambda each: each[:2]) if minor >= OLDEST]
    return [".".join(map(str, each)) for each in newest]


def tried(release: str, folder: Path) -> dict[str, Any]:
    """What came of one release: whether it could be installed, and how many tests passed and failed."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", f"torch=={release}", "-e", f"{ROOT}[dev]"]
    made = subprocess.run(install, capture_output=True, text=True, cwd=ROOT)
    if made.returncode != 0:
        return {"release": release, "installed": False, "why": made.stderr.strip().splitlines()[-1:]}
    run = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = run.stdout.strip().splitlines()
    counts = {
        what: int(count)
        for count, what in re.findall(r"(\d+) (passed|failed|error|skipped)", lines[-1] if lines else "")
    }
    broken = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"release": release, "installed": True, "works": run.returncode == 0, **counts, "broken": broken}


def main() -> None:
    parser = argparse.ArgumentParser(description="Try treeplay with each release of torch.")
    parser.add_argument("releases", nargs="*")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    found = []
    for release in chosen.releases or releases():
        folder = Path(tempfile.mkdtemp(prefix="treeplay-compat-"))
        try:
            found.append(tried(release, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(found[-1], flush=True)
        if chosen.out is not None:
            machine.write_whole({"environment": machine.facts(), "releases": found}, chosen.out)
    sys.exit(0 if all(each.get("works") for each in found if each["installed"]) else 1)


if __name__ == "__main__":
    main()
