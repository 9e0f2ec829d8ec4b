"""Source → function: compiled once, readable in tracebacks and by debuggers, and left alone by Dynamo."""

from __future__ import annotations

import itertools
import linecache
import math
import weakref
from collections.abc import Callable
from typing import Any

from treeplay.codegen.writer import Source
from treeplay.torch_seam.dynamo import skip_code

_numbers = itertools.count(1)


def load_source(source: Source) -> Callable[..., Any]:
    """Compile `source` under a file name of its own, such as `<treeplay aten 3>`, and give back its entry."""
    file = f"<treeplay {source.name} {next(_numbers)}>"
    # No modification time: `linecache.checkcache` must not look for the file on disk.
    linecache.cache[file] = (len(source.text), None, source.text.splitlines(keepends=True), file)
    scope = {"math": math, **source.names}
    exec(compile(source.text, file, "exec"), scope)
    function: Callable[..., Any] = scope.pop(source.entry)  # whose globals these are: it would keep itself alive
    hide_from_dynamo(function)
    weakref.finalize(function, linecache.cache.pop, file, None).atexit = False
    return function


def hide_from_dynamo(function: Callable[..., Any], *, with_callees: bool = False) -> None:
    """Keep `torch.compile` from tracing into `function`, whether it meets it as a frame or as a call.

    An invented file name is not skipped by itself. Skipping the code stops frames; the attribute stops inlining. With
    `with_callees` the frames of what it calls are left alone too.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = "part of treeplay"  # type: ignore[attr-defined]
    skip_code(function.__code__, with_callees)
