"""Small files of ours beside what Inductor keeps on disk, for later processes: a file is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MOST_SECONDS = 60
"""That a process waits for another one."""


def folder() -> Path:
    """Inductor's folder."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # with all of Dynamo, which takes a second

    return Path(cache_dir())


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Run a block while no other process does for this file; at once where no lock can be had."""
    from torch.utils._filelock import FileLock

    path = folder() / f"{name}.lock"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # or it took too long
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(str(path), timeout=_MOST_SECONDS))
        yield


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
