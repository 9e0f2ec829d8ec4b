"""What turns the graphs of a wrapped function into callables."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from treeplay.values.boxed import Boxed

AliasCheck = Literal["warn", "raise", "off"]
Compile = Callable[[torch.fx.GraphModule, Sequence[Any]], Boxed]

ARGUMENT = "treeplay_argument"
"""Under this name the placeholder of an argument notes where it stands in the call."""

VISIBLE = "treeplay_visible"
"""Under this name the output node notes the positions of the results that a user sees."""

INNER = "treeplay_inner"
"""Under this name the output node of a forward notes the first of the results that only its backward sees, and the end of
them. What is compiled may give these in one block, with a `SavedLayout` as the last of its results."""

LIES_ANEW = "treeplay_lies_anew"
"""Under this name the output node of a backward notes that what its nodes give may lie in memory in another way than noted."""


@dataclass(frozen=True, slots=True)
class DirectCall:
    """How a call function is called from outside: with its arguments one by one, behind those in `held`; it returns a tuple.

    Those of `others` that a call fits are asked first. One that fits neither them nor this function (`PatternChanged`) goes on
    with what is put in `for_others`. No call fits in which an argument of `frozen` needs a gradient, or one of `modes` does not
    hold: conditions on what surrounds a call, as code and the names in it. After an exception that is not treeplay's,
    `as_it_is` runs, which raises it with what it has written by then, if nothing shows of the call (`may_run_again`)."""

    held: tuple[Any, ...]
    as_it_is: Callable[..., Any]
    may_run_again: Callable[[], bool]
    frozen: tuple[int, ...] = ()
    modes: tuple[tuple[str, dict[str, Any]], ...] = ()
    others: list[Callable[..., Any]] = field(default_factory=list)
    for_others: list[Callable[..., Any]] = field(default_factory=list)

    @property
    def fits_every_call(self) -> bool:
        """Whether it asks nothing of a call by itself."""
        return not (self.frozen or self.modes)


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
    What is compiled may have a method `subscribe(listener)`, which tells it, whenever that changes, what does the same with
    nothing in between: see `follow`. A backward with a method `in_block(layout, first)` gives what takes the block of a forward
    where the values that lie there would begin.
    `direct`: how the call function is called; without it, with one list that it empties, and it returns a list.
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
    direct: DirectCall | None = None


def follow(run: Any, owner: Any, rebind: Callable[[Any, Boxed], None]) -> None:
    """Have `rebind(owner, now)` called whenever `now` is to be called in place of `run`. It keeps no owner alive."""
    if (subscribe := getattr(run, "subscribe", None)) is None:
        return
    owner_of = weakref.ref(owner)

    def told(now: Boxed) -> None:
        owner = owner_of()
        if owner is not None:
            rebind(owner, now)

    subscribe(told)
