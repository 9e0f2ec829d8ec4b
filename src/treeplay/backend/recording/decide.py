"""Whether a compiled graph may be recorded: facts in, all reasons against it out. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from treeplay.values.captured import GraphFacts, InputFacts, Skip
from treeplay.values.location import Location
from treeplay.values.refusal import Reason

_KINDS = ("int", "float", "bool", "NoneType", "SymInt", "SymFloat", "SymBool", "Generator")


def reasons_to_skip(facts: GraphFacts) -> tuple[Skip, ...]:
    """Every reason not to record a graph, in a fixed order; none means that it may be."""
    return tuple(_reasons(facts))


def _reasons(facts: GraphFacts) -> Iterator[Skip]:
    if not facts.is_on:
        yield _skip("off", "record", "recording is switched off", 'compile with options={"record": True}')
    if facts.operators == 0:
        yield _skip("no_work", "graph", "it calls no operator", "nothing to fix: there is nothing to launch")
    if facts.is_forward_skipped:
        yield _skip("forward_skipped", "backward", "forward skipped", "fix what keeps the forward from being recorded")
    yield from _of_devices(facts)
    yield from (Skip("operator", reason) for reason in facts.obstacles)
    for item in facts.inputs:
        yield from _of_input(item)
    if facts.is_dynamic and not facts.allows_dynamic:
        advice = 'pad to fixed sizes, or compile with options={"record_dynamic": True}'
        yield _skip("dynamic_sizes", "sizes", "some of its sizes change from call to call", advice)
    yield from (Skip("annotation", reason) for reason in facts.marked)


def _of_devices(facts: GraphFacts) -> Iterator[Skip]:
    """A program on the CPU alone is recorded there. One on an accelerator has to be on one device as a whole."""
    if not facts.uses_accelerator:
        return
    accelerators = [use for use in facts.devices if use.device.type not in ("cpu", "meta")]
    first = accelerators[0].device
    for use in accelerators[1:]:
        why = f"the graph works on {first} and on {use.device}, and a recording belongs to one device"
        yield _skip("devices", use.op, why, "compile the parts apart", use.where)
    for use in facts.devices:
        if use.device.type == "cpu":
            why = f"works on a tensor on the CPU in a graph that computes on {first}"
            yield _skip("cpu_tensor", use.op, why, f"keep the tensor on {first}", use.where)
    if not facts.has_caching_allocator:
        advice = "unset PYTORCH_NO_CUDA_MEMORY_CACHING"
        yield _skip(
            "no_caching_allocator", "memory", "the caching allocator is off, and a recording keeps memory", advice
        )


def _of_input(item: InputFacts) -> Iterator[Skip]:
    if item.is_rebound:
        why = f"the storage of input `{item.name}` is replaced"
        yield _skip("rebound_storage", "set_", why, "write into the tensor with copy_", item.written)
    if item.spec is None and item.kind not in _KINDS:
        why = f"input `{item.name}` is of type {item.kind}"
        yield _skip("input_kind", "input", why, "give it tensors, numbers and generators alone")


def _skip(name: str, op: str, why: str, advice: str, where: Location | None = None) -> Skip:
    return Skip(name, Reason(op, why, advice, where))
