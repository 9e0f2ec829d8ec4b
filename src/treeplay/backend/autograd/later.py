"""A differentiable program whose graphs are compiled in the background.

forward    nobody calls it before it is compiled: another callable serves until then
backward   its operators run one by one until it is compiled, which begins when it is first needed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.fx

from treeplay.backend.autograd.differentiable import Differentiable, task_of, wrap_by
from treeplay.backend.inner import boxed, without_views
from treeplay.backend.options import Options
from treeplay.backend.passes import copy_of
from treeplay.errors import InternalError
from treeplay.observe.internal import tell_internal
from treeplay.sandbox.boundary import internal
from treeplay.torch_seam import flags
from treeplay.values.boxed import Boxed
from treeplay.values.captured import Role
from treeplay.values.signature import Input


def wrap_for_later(
    function: Callable[..., Any],
    samples: Sequence[torch.Tensor],
    lowering: str,
    inputs: Sequence[Input],
    *,
    add: Callable[[Callable[[], None]], None],
) -> Any:
    """As `wrap_flat`, but nobody may call it before its `.compile()` has ended, in whichever thread. `add` has work done in the
    background: its backward is compiled there."""
    job = CompiledInTheBackground(*task_of(lowering, inputs), add=add)
    call = wrap_by(job, function, samples, lowering)
    call.compile = job.compile
    return call


class CompiledLater:
    """Boxed. Calls what `compile` has made, once it has; before that `now`, if there is anything."""

    def __init__(self, compile_graph: Callable[[], Boxed], now: Boxed | None = None) -> None:
        self._compile: Callable[[], Boxed] | None = compile_graph
        self._now = now
        self._listeners: list[Callable[[Boxed], None]] = []

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if self._now is None:
            raise InternalError("a graph was called that is not compiled yet")
        return self._now(args)

    def subscribe(self, listener: Callable[[Boxed], None]) -> None:
        """Have `listener` told, whenever that changes, of what does the same with nothing in between."""
        self._listeners.append(listener)
        if self._compile is None:
            self._pass_on([listener])

    def compile(self) -> None:
        """Compile, in whichever thread; nothing changes if that raises."""
        if self._compile is None:
            return
        with torch.no_grad(), flags.without_autocast():
            self._now = self._compile()
        self._compile = None
        self._pass_on(self._listeners)

    def _pass_on(self, listeners: Sequence[Callable[[Boxed], None]]) -> None:
        now: Any = self._now
        for listener in listeners:
            listener(now)
            if hasattr(now, "subscribe"):
                now.subscribe(listener)


class CompiledInTheBackground(Differentiable):
    """The compile of a program another wrapper of which serves until `compile` has ended. `add` has work done in a background
    thread, in its turn."""

    def __init__(
        self,
        options: Options,
        roles: Sequence[Role],
        names: Sequence[str],
        *,
        add: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__(options, roles, names)
        self._add = add
        self._waiting: list[CompiledLater] = []

    def compile(self) -> None:
        """Compile the forward, or the graph that has no backward; raises what its compilation raises."""
        while self._waiting:
            self._waiting.pop().compile()

    def compile_forward(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        """A forward that is compiled by `compile`."""
        return self._later(partial(super().compile_forward, module, list(inputs)))

    def compile_inference(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        """The same for a graph that has no backward."""
        return self._later(partial(super().compile_inference, module, list(inputs)))

    def compile_backward(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        """A backward that runs its operators until it is compiled."""
        now = boxed(without_views(copy_of(module)))
        later = CompiledLater(partial(super().compile_backward, module, list(inputs)), now)

        def compile_in_its_turn() -> None:
            try:
                later.compile()
            except Exception as error:  # nobody waits for it
                tell_internal(internal(error, "compiling a backward in the background"), "a backward")

        self._add(compile_in_its_turn)
        return later

    def _later(self, compile_graph: Callable[[], Boxed]) -> Boxed:
        self._waiting.append(CompiledLater(compile_graph))
        return self._waiting[-1]
