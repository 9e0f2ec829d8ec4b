"""Which device a command shall use, and why it may not be there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import torch

from treeplay.cli.outcome import CommandError


def find_device(text: str) -> torch.device:
    """The device called `text`. Raises `CommandError` if it is not one to record on, or not here."""
    try:
        device = torch.device(text)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise CommandError(f"--device {text}: expected cpu, cuda or cuda:0")
    if device.type == "cpu":
        return torch.device("cpu")
    missing = why_no_cuda()
    if missing is not None:
        raise CommandError(f"--device {text}: {missing}\n  fix:    leave out --device, or ask: treeplay doctor")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise CommandError(
            f"--device {text}: expected an index below {count}, the number of GPUs that are visible here"
        )
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def why_no_cuda() -> str | None:
    """Why no CUDA device can be used here, or None if one can."""
    if torch.version.hip is not None:
        return "this torch is built for ROCm, which treeplay does not record on"
    if not torch.backends.cuda.is_built():
        return f"this torch ({torch.__version__}) is built without CUDA"
    if torch.cuda.is_available():
        return None
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return "$CUDA_VISIBLE_DEVICES hides every GPU"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().splitlines()[0]
    return "no NVIDIA GPU is visible"


def drain_of(device: torch.device) -> Callable[[], None]:
    """What waits until a device has done its work."""
    if device.type != "cuda":
        return lambda: None
    return lambda: torch.cuda.synchronize(device)


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Convolutions of float32 round as float32, not as tf32, so that rounding cannot hide a difference."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
