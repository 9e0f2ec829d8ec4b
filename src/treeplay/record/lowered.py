"""From the front to what a device records: lowered at once, or one operator after the other now and compiled in the background.

Front ─ make_lowered ▶ Lowered                   by the first lowering of the plan that takes the graph
      ─ make_first ▶ Lowered, and later ─ compile_later ▶ Lowered, Recorded              where it has tiers (`keeps_tiers`)
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch

from treeplay.device.protocol import Recorded
from treeplay.device.registry import device_for
from treeplay.errors import LoweringError, Refusal
from treeplay.graph_check import check_graph
from treeplay.lower.aten import lower_aten
from treeplay.lower.inductor.lowering import lower_inductor
from treeplay.lower.lowered import Lowered
from treeplay.lower.reshaped import with_reshapes_as_views
from treeplay.lower.stream import lower_for_stream
from treeplay.observe import counters
from treeplay.plan.arena import plan_arena
from treeplay.plan.devices import CPU
from treeplay.record.front import Front
from treeplay.settings import settings
from treeplay.tree.make import make_work


def make_lowered(front: Front) -> Lowered:
    """Lower the graph by the first lowering of the plan that takes it; what the others said is kept in its details."""
    problems: dict[str, list[str]] = {}
    for name in front.plan.lowerings:
        try:
            lowered = lower_by(name, front, eager_random=settings.eager_random)
        except LoweringError as error:
            counters.add("lowering failed", name)
            problems.setdefault(str(error), []).append(name)
        else:
            return replace(lowered, details={**lowered.details, "passed over": _told(problems)})
    other = "" if "aten" in front.plan.lowerings else 'try lower="aten", or '
    raise Refusal.of("lower", "; ".join(_told(problems)), f"{other}keep the program eager")


def _told(problems: dict[str, list[str]]) -> tuple[str, ...]:
    """What lowerings could not take, once if several say the same."""
    return tuple(f"{', '.join(names)}: {problem}" for problem, names in problems.items())


def make_first(front: Front) -> Lowered | None:
    """What serves until the graph is compiled in the background; None where there is one lowering from the start, as for a
    graph with operators that only the compiler may take."""
    if not keeps_tiers(front):
        return None
    try:
        return lower_by("aten", front, eager_random=True)
    except LoweringError:
        counters.add("lowering failed", "aten")
        return None


def keeps_tiers(front: Front) -> bool:
    """Whether what is recorded now is compiled later, in the background."""
    return may_depend_on_clocks() and front.plan.lowerings == ("inductor", "aten")


def may_depend_on_clocks() -> bool:
    """Whether a call may be run by what turns out to be fastest: ways that round differently."""
    return settings.tiers == "background" and not torch.are_deterministic_algorithms_enabled()


def compile_later(front: Front, name: str, *, eager_random: bool) -> tuple[Lowered, Recorded]:
    """The stages `lower` and `record` of a compiled recording, in whichever thread; raises `LoweringError`."""
    # Each thread has a current device of its own.
    with torch.cuda.device(front.device) if front.device.type == "cuda" else nullcontext():
        lowered = lower_by("inductor", front, eager_random=eager_random)
    return lowered, device_for(front.device).record(make_work(front.traced, front.plan, lowered, name))


def lower_by(name: str, front: Front, *, eager_random: bool) -> Lowered:
    graph = front.traced.graph
    check_graph(graph, "the trace")
    graph = with_reshapes_as_views(graph)
    if name == "inductor":
        return lower_inductor(graph, device=front.device, eager_random=eager_random, is_small=front.plan.is_small)
    return lower_aten(graph, plan_arena(graph)) if front.device == CPU else lower_for_stream(graph, front.device)
