"""Compiles a `Source` once, so that tracebacks and debuggers show its text and Dynamo leaves it alone."""

from __future__ import annotations

import itertools
import linecache
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from treeplay.facts.source import Source

_count = itertools.count()


def load_source(source: Source) -> Callable[..., Any]:
    """The function that `source` defines, registered under a file name of its own."""
    file = f"<treeplay {source.name} {next(_count)}>"
    names = dict(source.names)
    exec(compile(source.text, file, "exec"), names)
    linecache.cache[file] = (len(source.text), None, source.text.splitlines(keepends=True), file)
    function: FunctionType = names[source.entry]
    hide_from_dynamo(function)
    return function


def hide_from_dynamo(function: FunctionType) -> None:
    """Keep `torch.compile` from tracing into `function`. A no-op until Dynamo is imported, which takes seconds."""
    if "torch._dynamo" in sys.modules:
        from torch._dynamo.eval_frame import skip_code

        skip_code(function.__code__)
