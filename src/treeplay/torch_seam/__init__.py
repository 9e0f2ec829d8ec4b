"""The one door to torch's private parts: a file for each area of torch. None of them imports a stage of ours, only values.

A new release of torch breaks files here and nowhere else. `probe` tells which, `require` turns it into one clear error.
"""

from __future__ import annotations

import platform
from importlib import import_module

import torch

WORKS_WITH = "2.11 to 2.15"
"""The releases of torch that the tests of `make compat` pass with."""

AT_ONCE = (
    "allocator",
    "autograd",
    "casts",
    "checkpoints",
    "context",
    "dynamo",
    "facts",
    "fakes",
    "flags",
    "fx",
    "layers",
    "modes",
    "operators",
    "schemas",
    "scripts",
    "streams",
    "symbols",
    "tensors",
    "traced_apart",
    "trees",
)
LATER = ("aot", "inductor", "inductor_store", "kept_file", "partition", "sizes", "vector_isa")
"""Areas whose import takes seconds: they are imported where they are needed."""


def probe() -> dict[str, str | None]:
    """What this torch lacks, by area; None for an area that has all it needs. Imports Dynamo and Inductor."""
    return {area: lacking(area) for area in (*AT_ONCE, *LATER)}


def lacking(area: str) -> str | None:
    """What torch lacks that an area needs, as torch says it; None if nothing."""
    try:
        import_module(f"{__name__}.{area}")
    except (ImportError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def require() -> None:
    """Raise `ImportError` if this torch, or this Python, lacks what treeplay needs at once: whoever comes in by this door is
    told."""
    for area in AT_ONCE:
        missing = lacking(area)
        if missing is not None:
            raise ImportError(
                f"treeplay works with torch {WORKS_WITH}, and this is torch {torch.__version__}, which lacks something that "
                f"treeplay.torch_seam.{area} needs ({missing}). Install one of those releases, or a newer treeplay."
            )
    if not import_module(f"{__name__}.dynamo").counts_attributes():
        raise ImportError(
            f"treeplay works with Python 3.11 and 3.12, and this is Python {platform.python_version()}, which does not count "
            "the changes of objects' attributes. Without that count, treeplay would replay what no longer holds."
        )


require()  # first: what follows would end in an error that names a part of torch and nothing else
