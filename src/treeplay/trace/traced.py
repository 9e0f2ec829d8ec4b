"""What came of a traced run: the program as a graph, and what the run came across."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from treeplay.errors import Refusal
from treeplay.guards.reads.reads import Reads
from treeplay.trace.call import Call
from treeplay.trace.log import LoggedCall
from treeplay.trace.restore.snapshot import Snapshot
from treeplay.trace.run.tracer import Tracer
from treeplay.trace.run.watch import WatchFunctions
from treeplay.trace.survey.found import Survey
from treeplay.values.refusal import Reason
from treeplay.values.signature import Kind, Number, Signature


@dataclass(frozen=True, slots=True)
class Trace:
    """A program as a graph of ATen operators, and what a call does around it."""

    graph: torch.fx.Graph
    signature: Signature
    log: list[LoggedCall] = field(repr=False)
    generators: tuple[torch.Generator, ...] = ()  # those it draws from
    reads: Reads | None = field(default=None, repr=False)  # of a program that is to be run again
    # Draws that give what others have given, which another run of the program would draw anew.
    has_repeats: bool = False
    effects: tuple[Reason, ...] = ()  # that its Python has, and no replay: what it prints, logs and writes


@dataclass(slots=True, weakref_slot=True)
class TracedRun:
    """What one traced run came across, besides its operators."""

    program: Callable[..., Any]
    call: Call
    found: Survey
    reads: Reads
    tracer: Tracer
    watch: WatchFunctions
    snapshot: Snapshot
    misses: dict[int, int] | None = None  # see `restore.caching.check_steady`
    numbers: list[Number] = field(default_factory=list)  # of state
    varying: list[Number] = field(default_factory=list)  # those of them that were no optimizer's
    given: list[Number] = field(default_factory=list)  # of the arguments
    grads_read: dict[int, torch.Tensor] = field(default_factory=dict)
    unseen: list[tuple[Any, str]] = field(default_factory=list)  # attributes assigned where no replay assigns them
    dying: list[tuple[weakref.ref[Any], Refusal]] = field(default_factory=list)  # see `Results.dying`
    called: dict[int, torch.nn.Module] = field(default_factory=dict)
    stepped: dict[int, torch.optim.Optimizer] = field(default_factory=dict)
    unreached: list[torch.Tensor] = field(
        default_factory=list
    )  # leaves of which some result that is differentiated is no function
    has_own_backwards: bool = False  # those of custom functions, in Python, which the caller's backward is to run
    kind: Kind = Kind.INFERENCE
