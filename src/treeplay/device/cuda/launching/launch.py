"""The function that launches a captured graph: straight-line text, made from what was found out while it was captured.

def launch(tensors, numbers):
    with lock:                                    one replay of a device at a time is issued
        stream = current_stream(0)
        if stream != lane.stream: order(stream)   recordings share scratch memory
        fill(numbers)
        if not are_at(tensors, ...): moved(...)   state that stays where it is: one native question
        p = tensors[0].data_ptr()
        if p != a0: ...                           arguments that move: their address goes into the graph
        out0 = empty_strided(...)                 results: new tensors, whose address goes into the graph
        block = empty_strided(...)                results that nobody sees but another recording: one tensor, one address
        replay()
    return (out0,)

Where there are many arguments or results, one native question comes first: most lie where they lay in the last launch.
With a `Boxing` it is `launch(args)`, which takes the tensors out of its list, and puts together what its caller returns. It is
written from `LaunchParts`: lines of inputs by `inputs`, of results by `results`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from treeplay.codegen import Source, tuple_of
from treeplay.device.cuda.lane import Unplaced
from treeplay.device.cuda.launching.inputs import write_inputs
from treeplay.device.cuda.launching.parts import LaunchParts
from treeplay.device.cuda.launching.results import write_copies, write_launch_results
from treeplay.device.cuda.launching.text import LaunchText
from treeplay.device.protocol import InBlock
from treeplay.errors import InternalError
from treeplay.torch_seam import allocator, streams


def emit_launch(parts: LaunchParts, name: str) -> Source:
    """The launch function of these parts."""
    text = LaunchText(
        lane=parts.lane,
        lock=parts.lane.lock,
        order=parts.lane.order,
        current_stream=allocator.native("_cuda_getCurrentRawStream"),
        replay=parts.replay,
        plain=parts.otherwise.plain,
        not_launched=parts.otherwise.not_launched,
        Unplaced=Unplaced,
    )
    text.keep("launches", 0)
    # Written apart from the rest: only then is it known which names the launch keeps, which its first lines need.
    with text.aside() as before:
        write_inputs(text, parts)
        write_launch_results(text, parts)
    boxing, block = parts.boxing, None if parts.block is None else "block"
    made = [f"out{at}" for at in range(len(parts.results))]
    outside = [name for at, name in enumerate(made) if not parts.is_inside(at)]
    with text.block(f"def launch({'tensors, numbers' if boxing is None else 'args'}):"):
        text.add(f"global {', '.join(text.state)}")
        with nullcontext() if boxing is None else boxing.around(text):
            _write_launch(text, parts, before)
        if boxing is not None:
            boxing.returned(text, made, block)
        elif block is not None:
            text.add(f"return {text.use('InBlock', InBlock)}({tuple_of([*outside, block])})")
        else:
            text.add(f"return {tuple_of(outside)}")
    return text.source(f"launch {name}", entry="launch")


def _write_launch(text: LaunchText, parts: LaunchParts, before: Iterable[str]) -> None:
    """Lines from the lock to the end of the launch, and for a call that cannot be launched."""
    # A gradient that is written again lies where the stream of its allocation may have it anew: on another stream, a new one.
    kept = [name for name in text.state if name.startswith("kept")]
    plain, not_launched = "plain(tensors, numbers)", "not_launched(error, tensors, numbers)"
    if parts.boxing is not None:
        put_together = text.use("put_together", parts.boxing.put_together)
        plain = f"{put_together}(args, plain(tensors, ()))"
        not_launched = f"{put_together}(args, not_launched(error, tensors, ()))"
    # The lock is the inner one: the handlers run the work as it is, or capture it again, and must not hold it.
    with text.block("try:"), text.block("with lock:"):
        text.add(f"stream = current_stream({parts.lane.device.index})")
        with text.block("if stream != lane.stream:"):
            text.add("order(stream)", *([f"{' = '.join(kept)} = None"] if kept else []))
        text.add(*before, "replay()")
        launched = len(text.lines) + 1  # the number of the next line
        text.add("launches += 1")
        write_copies(text, parts)
    text.add("except Unplaced:", f"    return {plain}")
    with text.block("except Exception as error:"):
        # The outermost frame of the traceback is `launch`: its line tells whether the graph was launched by then.
        text.add(f"if error.__traceback__.tb_lineno >= {launched}: raise")
        text.add(f"return {not_launched}")


def disable(launch: Callable[..., Any]) -> None:
    """Make a launch function fall back for good, and keep no result: its graph goes. The caller holds the lane's lock."""

    def gone(index: int) -> int:
        raise Unplaced

    launch.__globals__["current_stream"] = gone  # the first thing it asks with the lock in its hands
    forget_results(launch)


def forget_results(launch: Callable[..., Any]) -> None:
    """Have it let go of the results that it would write again. The caller holds the lane's lock."""
    names = launch.__globals__
    for name in names:
        if name.startswith("memory"):
            streams.unwatch(names[name])
            names[name] = 0
        if name.startswith(("kept", "storage")):
            names[name] = None


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A bound method that does not keep its object alive, for a launch function which that object keeps."""
    found = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        bound = found()
        if bound is None:
            raise InternalError("a recording was launched that is gone")
        return bound(*args)

    return call


def launches_of(launch: Callable[..., Any]) -> int:
    """How often a launch function has launched."""
    return int(launch.__globals__["launches"])
