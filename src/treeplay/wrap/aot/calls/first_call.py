"""What only the first call of a wrapped function does; later calls go straight to the graph.

run = once(run) ─ first call ▶ checks, or fakes ─▶ run = the graph
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.errors import UsageError
from treeplay.torch_seam import context as torch_context
from treeplay.torch_seam.modes import TorchDispatchMode
from treeplay.torch_seam.operators import OpOverload
from treeplay.torch_seam.tensors import shares_storage
from treeplay.torch_seam.trees import tree_leaves
from treeplay.values.boxed import Boxed
from treeplay.wrap.aot.compilers import AliasCheck

Instead = Callable[[Boxed, list[Any]], Sequence[Any]]
_TORCHS = frozenset(
    ("aten", "prim", "prims", "rngprims", "inductor", "c10d", "_c10d_functional", "_c10d_functional_autograd")
)


def on_first_call(function: Any, instead: Instead) -> None:
    """Let the first call of a generated function do `instead(run, args)` where it would do `run(args)`."""
    names = function.__globals__
    run = names["run"]

    def once(args: list[Any]) -> Sequence[Any]:
        names["run"] = run
        return instead(run, args)

    names["run"] = once


def first_call(graph: torch.fx.GraphModule, *, alias_check: AliasCheck, has_wrappers: bool) -> Instead | None:
    """What the first call does in place of running the graph, if anything. Asked before the graph is compiled."""
    if torch_context.wants_fakes_first():
        results: Any = graph.graph.output_node().args[0]
        return _fakes(tuple(item.meta["val"] if isinstance(item, torch.fx.Node) else item for item in results))
    has_custom = any(is_custom_operator(node.target) for node in graph.graph.nodes if node.op == "call_function")
    if not has_custom or has_wrappers or alias_check == "off":
        return None
    return _checked(is_error=alias_check == "raise")


def is_custom_operator(target: Any) -> bool:
    """Whether a call's target is an operator that torch does not bring."""
    return isinstance(target, OpOverload) and target.namespace not in _TORCHS


def _fakes(values: tuple[Any, ...]) -> Instead:
    """Compute nothing and return what the trace had, with the strides that the graph will give."""

    def fakes(run: Boxed, args: list[Any]) -> Sequence[Any]:
        args.clear()
        return values

    return fakes


def _checked(*, is_error: bool) -> Instead:
    """Compare what custom operators return with what their schemas say."""

    def checked(run: Boxed, args: list[Any]) -> Sequence[Any]:
        with _CheckAliases(is_error=is_error):
            return run(args)

    return checked


class _CheckAliases(TorchDispatchMode):
    """Sees each custom operator's results and finds those that share memory though the schema denies it."""

    supports_higher_order_operators = True
    """One that writes its arguments is called by such an operator, inside of which nothing is looked at."""

    def __init__(self, *, is_error: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_error = is_error
        self.found: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if is_custom_operator(func) and func not in self.found:
            shared = _shared(func, (args, kwargs or {}), result)
            if shared is not None:
                self.found.add(func)
                self._report(func, shared)
        return result

    def _report(self, func: Any, shared: str) -> None:
        text = (
            f"the custom operator {func} returns a tensor that shares memory with {shared}, which its schema denies: "
            "results may be wrong once it is compiled. Fix: return a clone, or write the alias into the schema"
        )
        if self.is_error:
            raise UsageError(text)
        warnings.warn(text, stacklevel=2)


def _shared(func: Any, given: Any, result: Any) -> str | None:
    """With what a result shares memory that its schema does not allow."""
    inputs = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    results = result if isinstance(result, tuple) else (result,)
    known: list[torch.Tensor] = []
    for value, returned in zip(results, func._schema.returns, strict=False):
        if returned.alias_info is not None:
            continue
        for leaf in tree_leaves(value):
            if not isinstance(leaf, torch.Tensor):
                continue
            if any(leaf is other or shares_storage(leaf, other) for other in inputs):
                return "an argument"
            if any(leaf is other or shares_storage(leaf, other) for other in known):
                return "another result"
            known.append(leaf)
    return None
