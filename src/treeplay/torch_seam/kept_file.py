"""Small files of ours beside what Inductor keeps on disk, for later processes: a file is there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def folder() -> Path:
    """Inductor's folder."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # with all of Dynamo, which takes a second

    return Path(cache_dir())


def read_text(name: str) -> str | None:
    """What `name`, a path in Inductor's folder, holds; None if it cannot be read."""
    try:
        return (folder() / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def write_text(name: str, text: str) -> bool:
    """Put a file there in one step, so that no other process reads half of it; False where that is not allowed."""
    path = folder() / name
    made: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(made, path)
    except OSError:
        if made is not None and os.path.exists(made):
            os.unlink(made)
        return False
    return True
