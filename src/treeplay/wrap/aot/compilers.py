"""What turns the graphs of a wrapped function into callables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

AliasCheck = Literal["warn", "raise", "off"]
Boxed = Callable[[list[Any]], Sequence[Any]]
Compile = Callable[[torch.fx.GraphModule, Sequence[Any]], Boxed]

ARGUMENT = "treeplay_argument"
"""Under this name the placeholder of an argument notes where it stands in the call."""

VISIBLE = "treeplay_visible"
"""Under this name the output node notes the positions of the results that a user sees."""


@dataclass(frozen=True, slots=True)
class Compilers:
    """One compiler for each kind of graph, and how a joint graph is cut in two.

    Each compiler takes a graph and its sample inputs and returns a callable that takes one list and empties it.
    The backward's samples lie in memory as the first tensors that arrived, not as those of the trace: what the forward
    saves is laid out as the forward's compiler liked best.
    `partition(graph, inputs, num_fwd_outputs=..., static_lifetime_input_indices=...)` returns forward and backward.
    `alias_check`: what the first call does about a custom operator that returns memory which its schema says is new.
    `plain()` gives compilers that run graphs as they are, for derivatives of the backward; without it there are none, and
    `why_once` says why. `keeps_inputs`: a call's node keeps all of its inputs for them, not those that live anyway; gradients
    that come to the backward of a backward are nobody else's.
    `is_guarded`: what calls the wrapped function compares the classes of tensors, and what these note, as Dynamo does.
    `is_boxed`: compiled callables take one list; otherwise they take their arguments one by one.
    """

    forward: Compile
    backward: Compile
    inference: Compile
    partition: Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]]
    decompositions: dict[Any, Callable[..., Any]] | None = None
    is_guarded: bool = False
    alias_check: AliasCheck = "warn"
    plain: Callable[[], Compilers] | None = None
    why_once: str | None = None
    keeps_inputs: bool = False
    is_boxed: bool = True


def take_one_list(run: Callable[..., Any]) -> Boxed:
    """A callable that takes its arguments one by one, as one that takes a list and empties it."""

    def call(args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()
        return run(*given)

    return call
