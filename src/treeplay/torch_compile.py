"""What `torch.compile(program, backend="treeplay", options=...)` calls with each graph, and the same by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from treeplay.settings import settings

if TYPE_CHECKING:
    from treeplay.backend.shapes.flat import Program


def compile_graph(
    gm: Program,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    inner: str | Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph for inputs like these; the callable takes positional inputs like the graph's. The graph stays as it is.

    `inner` is the same as `options={"inner": ...}`. Each call looks at what the graph was compiled for: inputs or parameters of
    another shape, stride, dtype or device, or another number, are a `UsageError`, unless the size was a symbol in `inputs`. In
    other modes, as in `torch.no_grad()` or under autocast, the graph is compiled once more for these.
    """
    if not settings.enabled:
        return _as_it_is(gm)
    from treeplay import driver
    from treeplay.backend.by_hand import CompiledByHand
    from treeplay.backend.options import options_from

    found = options_from(dict(options or {}) | ({} if inner is None else {"inner": inner}))
    return CompiledByHand(gm, inputs, lambda program, inputs: driver.compile_captured(program, inputs, found))


def backend(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """What `torch.compile` calls with each graph; the graph is used up.

    Where treeplay is switched off (`settings.enabled`), the graph runs as it is, with eager's checkpoints.

    `mode`: "default" and "reduce-overhead" are what it does; it has no other.
    """
    if not settings.enabled:
        return _as_it_is(gm)
    from treeplay import driver
    from treeplay.backend.options import check_mode, options_from

    check_mode(mode)
    return driver.compile_captured(gm, inputs, options_from(options))


def _as_it_is(gm: Program) -> Callable[..., Any]:
    """The graph, with nothing imported for it unless a graph is inside of it, as in a checkpoint: see there."""
    if not isinstance(gm, torch.fx.GraphModule) or not any(
        isinstance(part, torch.fx.GraphModule) for part in gm.children()
    ):
        return gm
    from treeplay.backend.checkpoints import with_real_checkpoints

    return with_real_checkpoints(gm)
