"""Rewriting a graph and the child graphs of its control flow: innermost first, each once, and every pass by its name.

children ─▶ their children first ─▶ pass ─▶ put back ─┐
                                        graph itself ─┴▶ pass ─▶ checked
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.backend.metadata import refresh
from treeplay.errors import UsageError
from treeplay.graph_check import check_graph
from treeplay.torch_seam.fx import lazy_module

Module = torch.fx.GraphModule
Rewrite = Callable[..., Any]


def run_before_autograd(module: Module, inputs: Sequence[Any], passes: Sequence[Rewrite]) -> Module:
    """Run passes `rewrite(module, inputs)`; child graphs come with None for inputs. What a pass returns replaces the graph."""

    def rewrite(one: Rewrite, graph: Module, is_child: bool) -> Any:
        return one(graph, None if is_child else inputs)

    return _run(module, passes, rewrite, where="before autograd")


def run_joint(module: Module, inputs: Sequence[Any], passes: Sequence[Rewrite]) -> Module:
    """Run passes `rewrite(module)` and note anew what the nodes yield, which the split goes by."""

    def rewrite(one: Rewrite, graph: Module, is_child: bool) -> Any:
        return one(graph)

    rewritten = _run(module, passes, rewrite, where="on the joint graph")
    if passes:
        refresh(rewritten, inputs)
    return rewritten


def run_after_autograd(
    module: Module, inputs: Sequence[Any], passes: Sequence[Rewrite], *, is_inference: bool
) -> Module:
    """Run passes `rewrite(module, is_inference)`, which rewrite in place, and note anew what the nodes yield."""

    def rewrite(one: Rewrite, graph: Module, is_child: bool) -> None:
        one(graph, is_inference)

    rewritten = _run(module, passes, rewrite, where="after autograd")
    if passes:
        refresh(rewritten, inputs)
    return rewritten


def children(module: Module) -> Iterator[tuple[str, Module]]:
    """The child graphs that `module` really refers to, each once, by their names."""
    seen = set()
    for node in module.graph.nodes:
        if node.op not in ("get_attr", "call_module") or node.target in seen:
            continue
        seen.add(node.target)
        child = _attribute(module, node.target)
        if isinstance(child, Module):
            yield node.target, child


def _attribute(module: torch.nn.Module, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _run(
    module: Module,
    passes: Sequence[Rewrite],
    rewrite: Callable[[Rewrite, Module, bool], Any],
    *,
    where: str,
) -> Module:
    for one in passes:
        done: dict[
            int, tuple[Module, Module]
        ] = {}  # by identity, with the graph kept alive: two names may share a child
        module = _run_one(module, one, rewrite, where, done, is_child=False)
    return module


def _run_one(
    module: Module,
    one: Rewrite,
    rewrite: Callable[[Rewrite, Module, bool], Any],
    where: str,
    done: dict[int, tuple[Module, Module]],
    *,
    is_child: bool,
) -> Module:
    if id(module) in done:
        return done[id(module)][1]
    for name, child in list(children(module)):
        module.set_submodule(name, _run_one(child, one, rewrite, where, done, is_child=True))
    try:
        rewritten = rewrite(one, module, is_child)
        rewritten = module if rewritten is None else rewritten
        _check(rewritten)
    except Exception as error:
        raise UsageError(f"the pass {_name(one)} ({where}) broke the graph it was given: {error}") from error
    done[id(module)] = (module, rewritten)
    return rewritten


def _check(module: Any) -> None:
    if not isinstance(module, Module):
        raise TypeError(f"it returned {type(module).__name__}, expected a torch.fx.GraphModule or None")
    module.graph.lint()
    check_graph(module.graph, "a pass")
    module.recompile()


def _name(one: Rewrite) -> str:
    known = getattr(one, "__qualname__", None)
    return f"{one.__module__}.{known}" if known else repr(one)


def copy_of(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph of the same parameters that can be rewritten without a mark on `module` or its child graphs."""
    twin = lazy_module(module, copy.deepcopy(module.graph))
    twin.meta.update(module.meta)
    for name, child in list(children(twin)):
        twin.set_submodule(name, copy_of(child))
    return twin
