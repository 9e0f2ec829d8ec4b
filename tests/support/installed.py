"""Functions as an installed package has them: their file is in site-packages, or says so."""

from __future__ import annotations

import sysconfig
from typing import Any

import torch

FILE = f"{sysconfig.get_paths()['purelib']}/a_library/layers.py"


def library(source: str, **names: Any) -> dict[str, Any]:
    """The names that `source` defines."""
    scope = {"__name__": "a_library.layers", "torch": torch, **names}
    exec(compile(source, FILE, "exec"), scope)
    return scope
