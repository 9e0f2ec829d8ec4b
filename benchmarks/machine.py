"""Where a measurement was made, as plain values."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import treeplay

ROOT = Path(__file__).resolve().parent.parent


def facts() -> dict[str, str | int | None]:
    """Versions, processor, threads and date."""
    return {
        "device": "cpu",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "treeplay": _git_describe() or treeplay.__version__,
    }


def write_whole(result: dict[str, Any], file: Path) -> None:
    """Put a result into a file, as a whole or not at all. Files of this project are named as seen from its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".new")
    text = json.dumps(result, indent=2, ensure_ascii=False).replace(f"{ROOT}/", "")
    fresh.write_text(text + "\n")
    fresh.replace(file)


def resident_bytes() -> int:
    """Memory of this process that is in use now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux: the most that was ever in use still shows growth
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * os.sysconf("SC_PAGE_SIZE")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def _git_describe() -> str | None:
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--tags"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
