"""The lines of generated functions that open tensors made of others and build them again.

if type(args[0]) is not kind_arg0: args[0] = as_kind(args[0], kind_arg0, 'x')
args[:] = [args[0].a, args[0].b, args[1]]
values = run(args)
value0 = build_value0({'a': values[0], 'b': values[1]}, context_value0, (2, 3), (3, 1))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from treeplay.codegen import Writer, tuple_of
from treeplay.torch_seam import modes
from treeplay.wrap.aot.calls import node, opening
from treeplay.wrap.aot.emit.text import write_plain_gradient
from treeplay.wrap.aot.plan.facts import CallPlan, WrappedTangent
from treeplay.wrap.aot.plan.subclasses import Wrapper, starts

_FEW = 4


def write_wrapper_checks(text: Writer, plan: CallPlan) -> None:
    """Wrappers where wrappers were traced, of the same class and with the same notes, and nowhere else.

    Copies are dropped from `args` by now, and no common base is made yet.
    """
    dropped = {later for later, _ in plan.copies}
    given = [k for k in range(len(plan.arguments)) if k not in dropped]
    inside: list[tuple[str, str]] = []
    for k, argument in enumerate(given):
        name, wrapper = plan.name(argument), plan.wrapper(argument)
        if wrapper is None:
            inside.append((f"args[{k}]", name))
            continue
        for at, part in wrapper.wrappers(f"args[{k}]"):
            path = at.replace(f"args[{k}]", name)
            variable = at.replace(f"args[{k}]", plan.variable(argument)).replace(".", "_")
            _check_wrapper(text, at, part, path, variable=variable)
            if not plan.is_guarded and part.context is not None:
                _check_notes(text, at, part, path, variable=variable)
        inside += zip(wrapper.tensors(f"args[{k}]"), wrapper.tensors(name), strict=True)
    if inside and not plan.is_guarded:
        _check_plain(text, plan, inside)


def _check_plain(text: Writer, plan: CallPlan, inside: Sequence[tuple[str, str]]) -> None:
    places = [at for at, _ in inside]
    text.use("plain", opening.PLAIN)
    text.use("check_plain", opening.check_plain)
    text.use("names", tuple(path for _, path in inside))
    values = f"[{', '.join(places)}]"
    # One by one is faster for few; text of a fixed length does for many.
    test = " and ".join(f"type({at}) in plain" for at in places) if len(places) <= _FEW else None
    test = test or f"plain.issuperset(map(type, {values}))"
    if plan.node is None:
        text.use("is_transformed", modes.is_transformed)
        test = f"is_transformed() or not ({test})"
    else:  # which looks for transforms itself
        test = f"not ({test})"
    text.add(f"if {test}: {', '.join(places)}, = check_plain({values}, names)")


def open_arguments(plan: CallPlan, names: Sequence[str]) -> str | None:
    """A list display of what the graph takes in place of the arguments that `names` name; None if it takes them."""
    if plan.opened is None or not any(plan.opened.arguments):
        return None
    return f"[{', '.join(_flat(plan.opened.arguments, names))}]"


def rebuild_values(text: Writer, plan: CallPlan, needed: Sequence[int]) -> None:
    """A line for each needed value that is a wrapper."""
    if plan.opened is None:
        return
    for value, wrapper in enumerate(plan.opened.values):
        if wrapper is not None and value in needed:
            at = starts(plan.opened.values)[value]
            text.add(f"value{value} = {rebuilt(text, wrapper, f'value{value}', _items('values', at))}")


def value(plan: CallPlan, index: int) -> str:
    """Where a value is after the graph and the rebuilding."""
    if plan.opened is None:
        return f"values[{index}]"
    if plan.opened.values[index] is not None:
        return f"value{index}"
    return f"values[{starts(plan.opened.values)[index]}]"


def gradient(text: Writer, plan: CallPlan, index: int) -> str:
    """The gradient of an argument, rebuilt if it is a wrapper."""
    if plan.opened is None:
        return f"grads[{index}]"
    at = starts(plan.opened.gradients)[index]
    wrapper = plan.opened.gradients[index]
    return f"grads[{at}]" if wrapper is None else rebuilt(text, wrapper, f"gradient{index}", _items("grads", at))


def rebuilt(text: Writer, wrapper: Wrapper, name: str, items: Iterator[str]) -> str:
    """An expression that builds a wrapper from the next `items`."""
    build = text.use(f"build_{name}", wrapper.kind.__tensor_unflatten__)
    context = text.use(f"context_{name}", wrapper.context)
    parts = []
    for attribute, part in wrapper.parts:
        if isinstance(part, Wrapper):
            item = rebuilt(text, part, f"{name}_{attribute}", items)
        else:
            item, *_ = islice(items, part.count)  # the tensor, and numbers that it has itself
        parts.append(f"{attribute!r}: {item}")
    size, stride = _numbers(wrapper.size, items), _numbers(wrapper.stride, items)
    return f"{build}({{{', '.join(parts)}}}, {context}, {size}, {stride})"


def open_tangent(text: Writer, tangent: WrappedTangent, k: int) -> list[str]:
    """Lines that check and open gradient `k`, or make the zeros of one that did not come; the names of its parts."""
    name = f"grad{k}"
    parts = [part.replace(".", "_") for part in tangent.wrapper.tensors(name)]
    for at, part in zip(parts, tangent.parts, strict=True):
        text.use(f"layout_{at}", part.layout)
        text.use(f"dtype_{at}", part.dtype)
        text.use(f"device_{at}", part.device)
    text.use("missing", node.missing)
    text.use("as_tangent", opening.as_tangent)
    with text.block(f"if {name} is None:"):
        text.add(*(f"{at} = missing(layout_{at}, dtype_{at}, device_{at})" for at in parts))
    with text.block("else:"):
        text.add(*_opening(text, tangent, k), *_plain_parts(text, tangent, k))
    return parts


def _plain_parts(text: Writer, tangent: WrappedTangent, k: int) -> Iterator[str]:
    """The parts as the graph takes them: it would read into whatever else lies in the place of a plain tensor."""
    paths = tangent.wrapper.tensors(f"grad{k}")
    for path, part in zip(paths, tangent.parts, strict=True):
        at, place = path.replace(".", "_"), (k, path.removeprefix(f"grad{k}"), tangent.where)
        yield write_plain_gradient(text, at, part, repr(place), layout=f"layout_{at}")


def _opening(text: Writer, tangent: WrappedTangent, k: int) -> Iterator[str]:
    for at, part in tangent.wrapper.wrappers(f"grad{k}"):
        name = at.replace(".", "_")
        kind, context = text.use(f"kind_{name}", part.kind), text.use(f"context_{name}", part.context)
        place = (k, at.removeprefix(f"grad{k}"), tangent.where)
        yield f"{name} = as_tangent({name}, {kind}, {context}, {place})"
        for attribute, _ in part.parts:
            yield f"{name}_{attribute} = {name}.{attribute}"


def _check_wrapper(text: Writer, at: str, wrapper: Wrapper, path: str, *, variable: str) -> None:
    kind = text.use(f"kind_{variable}", wrapper.kind)
    text.use("as_kind", opening.as_kind)
    text.add(f"if type({at}) is not {kind}: {at} = as_kind({at}, {kind}, {path!r})")


def _check_notes(text: Writer, at: str, wrapper: Wrapper, path: str, *, variable: str) -> None:
    context = text.use(f"context_{variable}", wrapper.context)
    text.use("check_notes", opening.check_notes)
    text.add(f"check_notes({at}, {context}, {path!r})")


def _flat(wrappers: Sequence[Wrapper | None], names: Sequence[str]) -> list[str]:
    parts: list[str] = []
    for wrapper, name in zip(wrappers, names, strict=True):
        parts += [name] if wrapper is None else wrapper.opened(name)
    return parts


def _items(name: str, first: int) -> Iterator[str]:
    at = first
    while True:
        yield f"{name}[{at}]"
        at += 1


def _numbers(numbers: Sequence[int | None], items: Iterator[str]) -> str:
    return tuple_of(next(items) if number is None else str(number) for number in numbers)
