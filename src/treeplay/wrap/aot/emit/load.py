"""`CallPlan` and the callables of its graphs → the function that a user calls: emitted, loaded, hidden from Dynamo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treeplay.codegen import Source, hide_from_dynamo, load_source
from treeplay.errors import InternalError
from treeplay.torch_seam import aot
from treeplay.values.boxed import Boxed
from treeplay.wrap.aot.calls.again import Onward
from treeplay.wrap.aot.calls.first_call import Instead, on_first_call
from treeplay.wrap.aot.calls.node import Needs
from treeplay.wrap.aot.calls.under_autocast import UnderAutocast
from treeplay.wrap.aot.compilers import DirectCall, follow
from treeplay.wrap.aot.emit.backward import emit_backward
from treeplay.wrap.aot.emit.call import emit_wrapper_call
from treeplay.wrap.aot.emit.forward import emit_forward
from treeplay.wrap.aot.plan.facts import CallPlan, NodePlan


def load_call(
    plan: CallPlan,
    run: Callable[..., Any],
    backward: Boxed | None = None,
    *,
    onward: Onward | None = None,
    under_autocast: UnderAutocast | None = None,
    run_for: Callable[[Any], Boxed] | None = None,
    instead: Instead | None = None,
    direct: DirectCall | None = None,
) -> Any:
    """The generated function of a plan, be it fresh or from elsewhere, around the callables of its graphs.

    `onward` is what a backward does under create_graph, `under_autocast` what it does there, `run_for` what runs it for the
    inputs whose gradients are wanted, where that matters, `instead` what the first call does in place of `run`; `direct` tells
    how the function is called."""
    sources: tuple[str, ...] = ()
    kept: tuple[Any, ...] = ()
    if plan.node is not None:
        if backward is None:
            raise InternalError("a plan with a node was loaded without a backward")
        needs = Needs(backward, onward, under_autocast, run_for)
        node_class = _node_class(plan, plan.node, run, needs)
        _follow(node_class.forward, run)
        if instead is not None:
            on_first_call(node_class.forward, instead)
        kept = (needs, _End(node_class.forward.__globals__))
        run, sources, instead = aot.apply_of(node_class), node_class.sources, None
    source: Source = emit_wrapper_call(plan, run, direct=direct)
    call: Any = load_source(source)
    if plan.node is None:
        _follow(call, run)
    if instead is not None:
        on_first_call(call, instead)
    call.source, call.plan, call.sources, call.backward = source.text, plan, (source.text, *sources), None
    call.kept = kept  # as long as calls may come: see `Needs`
    return call


def _follow(function: Any, run: Any) -> None:
    """Have a generated function call what `run` tells of."""
    function.__globals__["followed"] = run  # which owns what it tells of
    follow(run, function, _rebind)


def _rebind(function: Any, now: Boxed) -> None:
    names = function.__globals__
    if "run" in names:  # else the function has come to its end
        names["run"] = now


class _End:
    """Empties a node's forward when the call function goes, which alone calls it: see `Needs`."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def __del__(self) -> None:
        self._names.clear()


def _node_class(plan: CallPlan, node: NodePlan, forward: Callable[..., Any], needs: Needs) -> Any:
    """The plan's autograd function: nothing but the two generated functions."""
    first, second = emit_forward(plan, node, forward, needs), emit_backward(plan, node, needs)
    run_backward = load_source(second)
    # Autograd may call it inside of a frame that Dynamo watches; what it calls, the compile above all, is not to be traced.
    hide_from_dynamo(run_backward, with_callees=True)
    members = {
        "forward": staticmethod(load_source(first)),
        "backward": staticmethod(run_backward),
        "sources": (first.text, second.text),
    }
    return type("Treeplay", (aot.GeneratedFunction,), members)
