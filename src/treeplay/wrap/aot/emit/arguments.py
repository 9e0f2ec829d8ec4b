"""The part of a call function that comes before its graph: what it asks of its arguments, and how it arranges them.

Arguments are checked, those that are one tensor twice are passed once, those that are views of one base give way to the base,
and what the graph writes has to lie apart from everything else. When one of these lines raises, the graph has not run.
"""

from __future__ import annotations

from treeplay.codegen import list_of, tuple_of
from treeplay.codegen.idioms import note_writes
from treeplay.torch_seam import fakes
from treeplay.torch_seam import tensors as torch_tensors
from treeplay.wrap.aot.calls import checks
from treeplay.wrap.aot.calls import node as helpers
from treeplay.wrap.aot.emit import subclasses
from treeplay.wrap.aot.emit.plan_text import PlanText
from treeplay.wrap.aot.plan.facts import NoOverlap

_FEW = 4
_MAX_PAIRS = 8
"""Up to so many pairs are tested one by one; more are tested by address, all at once."""


def write_arguments(text: PlanText) -> None:
    """Lines from the list of arguments as they were given to the one that the graph takes."""
    _checks(text)
    _copies(text)
    subclasses.write_wrapper_checks(text, text.plan)
    _bases(text)
    _apart(text)
    _versions(text)


def _checks(text: PlanText) -> None:
    for argument in text.plan.awaited:
        text.use("waited", fakes.waited)
        text.add(f"args[{argument}] = waited(args[{argument}])")
    for argument, offset in text.plan.begins:
        text.use("begins_elsewhere", checks.begins_elsewhere)
        text.add(f"if args[{argument}].storage_offset() != {offset}: raise begins_elsewhere({text.told(argument)!r})")
    if text.plan.checks:
        text.use("check_arguments", checks.check_arguments)
        text.use("expected", text.plan.checks)
        text.add(f"check_arguments(args, expected, {text.plan.arguments!r})")


def _copies(text: PlanText) -> None:
    for later, earlier in text.plan.copies:
        text.use("check_copy", checks.check_copy)
        told = (text.told(earlier), text.told(later))
        text.add(f"check_copy(args[{earlier}], args[{later}], {told!r})")
    for later in sorted((later for later, _ in text.plan.copies), reverse=True):
        text.add(f"del args[{later}]")


def _bases(text: PlanText) -> None:
    """Members of a common base are taken off the list, and the base is put in front."""
    dropped = sorted(later for later, _ in text.plan.copies)
    place = {k: k - sum(later < k for later in dropped) for k in range(len(text.plan.arguments))}
    for k, base in enumerate(text.plan.bases):
        name = text.named(len(text.plan.arguments) + k)
        spec = text.use(f"{name}spec", base)
        for member in base.members:
            text.add(f"{text.named(member.argument)} = args[{place[member.argument]}]")
        members = tuple_of(text.named(member.argument) for member in base.members)
        text.use("common_base", checks.common_base)
        told = tuple(text.told(member.argument) for member in base.members)
        text.add(f"{name} = common_base({spec}, {members}, {told!r})")
        for argument in base.moved:
            note_writes(text, [text.named(argument)])
    if text.plan.bases:
        count = len(text.plan.arguments)
        texts = [text.named(k) if k >= count else f"args[{place[k]}]" for k in text.plan.inputs]
        text.add(f"args[:] = {list_of(texts)}")


def _apart(text: PlanText) -> None:
    apart = text.plan.apart
    if apart is None:
        return
    for one, other in apart.distinct:
        text.use("one_object", checks.one_object)
        both = (text.told(one), text.told(other))
        text.add(f"if args[{text.at(one)}] is args[{text.at(other)}]: raise one_object({both!r})")
    if len(apart.written) * (len(apart.written) + len(apart.others)) > _MAX_PAIRS:
        _all_apart(text, apart)
        return
    text.use("check_apart", checks.check_apart)
    lengths = dict(zip((*apart.written, *apart.others), apart.lengths, strict=True))
    for k in (k for k, length in lengths.items() if length):
        text.add(f"at{k} = args[{text.at(k)}].data_ptr()")
    for one, other in apart.pairs():
        first, second = lengths[one], lengths[other]
        if first is not None and second is not None:
            if first and second:  # not only one storage: tensors made of a NumPy array have one each
                given = f"args[{text.at(one)}], args[{text.at(other)}], {(text.told(one), text.told(other))!r}"
                # Two spans meet if each begins before the other ends.
                text.add(f"if -{first} < at{one} - at{other} < {second}: check_apart({given})")
            continue
        text.use("shares_storage", torch_tensors.shares_storage)
        for left in text.tensors(one):
            for right in text.tensors(other):
                pair = f"{left}, {right}"
                told = text.told(one), text.told(other)
                text.add(f"if shares_storage({pair}): check_apart({pair}, {told!r})")


def _all_apart(text: PlanText, apart: NoOverlap) -> None:
    parts: dict[int, list[str]] = {k: text.tensors(k) for k in (*apart.written, *apart.others)}
    if not any(map(text.plan.wrapper, parts)):
        places, told, given = {k: [text.at(k)] for k in parts}, {text.at(k): text.told(k) for k in parts}, "args"
    else:  # each tensor inside has a place of its own
        listed = [(k, inner) for k, every in parts.items() for inner in every]
        places = {k: [at for at, (owner, _) in enumerate(listed) if owner == k] for k in parts}
        told = {at: text.told(owner) for at, (owner, _) in enumerate(listed)}
        given = list_of(inner for _, inner in listed)
    written, others = ([at for k in group for at in places[k]] for group in (apart.written, apart.others))
    length_of = dict(zip((*apart.written, *apart.others), apart.lengths, strict=True))
    lengths = [length_of[k] for k in (*apart.written, *apart.others) for _ in places[k]]
    text.use("check_all_apart", checks.AllApart(written, others, lengths, told))
    text.add(f"check_all_apart({given})")


def _versions(text: PlanText) -> None:
    """Layouts change before the graph as far as autograd can tell: what this call saves is not outdated by it."""
    moved = {write.argument for write in text.plan.writes if not write.has_data} | set(text.plan.touched)
    places = [f"args[{text.at(argument)}]" for argument in sorted(moved)]
    if len(places) > _FEW:
        text.add(f"{text.use('note_every_write', helpers.note_every_write)}({list_of(places)})")
        return
    for place in places:
        text.use("note_write", helpers.note_write)
        text.add(f"note_write({place})")
