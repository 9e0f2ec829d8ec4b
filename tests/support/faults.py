"""Faults for tests: an error that some code of treeplay's raises once, and what a failure may not leave behind."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

import treeplay
from treeplay.device.turns import turns
from treeplay.torch_seam.modes import ThreadModes
from treeplay.trace import turn as trace_turn

_TEXT = (
    "def fault(*args, **kwargs):\n    if errors:\n        raise errors.pop()\n    return original(*args, **kwargs)\n"
)


def raising_once(error: BaseException, original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, but that its first call raises `error`, from what seems to be a file of treeplay's."""
    file = str(Path(treeplay.__file__).parent / "fault.py")
    scope: dict[str, Any] = {"errors": [error], "original": original}
    exec(compile(_TEXT, file, "exec"), scope)
    fault: Callable[..., Any] = scope["fault"]
    return fault


def surroundings() -> dict[str, Any]:
    """All of the process and of this thread that a failure may not change."""
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])]
    return {
        "modes": {name: str(value) for name, value in vars(ThreadModes()).items()},
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "generators": [bytes(state.numpy()) for state in states],
        "random": random.getstate(),
        "threads": torch.get_num_threads(),
        "compiling": torch.compiler.is_compiling(),
        "hooks": [
            len(table)
            for table in (
                module_hooks._global_forward_pre_hooks,
                module_hooks._global_forward_hooks,
                optimizer_hooks._global_optimizer_pre_hooks,
            )
        ],
        "watched": [type(torch).__name__, "__getattribute__" in vars(torch.nn.Module)],
        "patched": [torch.overrides._pop_mode_temporarily.__qualname__, vars(torch.autograd.Function)["apply"]],
        "profiler": sys.getprofile(),
        "collector": [gc.isenabled(), len(gc.callbacks)],
        "locks": [trace_turn._turns.locked(), turns.is_mine],
    }
