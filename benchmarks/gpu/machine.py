"""Where a measurement was made: the machine and its GPU."""

from __future__ import annotations

import importlib.metadata
import subprocess
from typing import Any

import torch

from benchmarks import machine

_PACKAGES = ("cuda-bindings", "triton", "transformers", "timm", "torchvision", "diffusers")


def facts(device: torch.device) -> dict[str, Any]:
    """Versions, processor, GPU and date."""
    found: dict[str, Any] = {**machine.facts(), "device": device.type}
    if device.type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda, "driver": _driver()}
    return found | {name: _version(name) for name in _PACKAGES}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
