"""Tensors made of other tensors: what the graph takes in their place, and how one like them is built again.

    Pair(a, Pair(b, c)) ─ opened ▶ a, b, c ─ graph ▶ d, e, f ─ rebuilt ▶ Pair(d, Pair(e, f))

A class takes part if it has `__tensor_flatten__` and `__tensor_unflatten__`. Everything here is plain data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from treeplay.torch_seam.aot import Traced
from treeplay.torch_seam.modes import is_wrapper

_IGNORED = -1
"""Stands for a size that only the class itself knows, such as the longest row of a nested tensor."""


@dataclass(frozen=True, slots=True)
class PlainPart:
    """What lies in a wrapper and is passed as it is: a plain tensor, or something opaque.

    `size` and `stride`: which of the tensor's numbers the trace did not know. From torch 2.14 on, the graph takes them too.
    """

    is_tensor: bool = True
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many values it is passed as."""
        return 1 + len(self.size) + len(self.stride)

    def opened(self, text: str) -> list[str]:
        """Text for each value that the graph takes for the part that `text` names."""
        return [text, *(f"{text}.size({k})" for k in self.size), *(f"{text}.stride({k})" for k in self.stride)]


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A tensor made of others: its class, its attributes in the order of the class, and what the class notes beside.

    `size` and `stride` are the outer ones; None where the trace did not know a number: it then follows the tensors.
    """

    kind: type[Any]
    parts: tuple[tuple[str, Wrapper | PlainPart], ...]
    context: Any = field(hash=False)  # a class may note something that cannot be hashed
    size: tuple[int | None, ...]
    stride: tuple[int | None, ...]

    @property
    def count(self) -> int:
        """How many values it is opened to."""
        return sum(part.count for _, part in self.parts) + self.size.count(None) + self.stride.count(None)

    def tensors(self, text: str) -> list[str]:
        """Text for each plain tensor inside of the one that `text` names, depth first."""
        found: list[str] = []
        for name, part in self.parts:
            if isinstance(part, Wrapper):
                found += part.tensors(f"{text}.{name}")
            elif part.is_tensor:
                found.append(f"{text}.{name}")
        return found

    def opened(self, text: str) -> list[str]:
        """Text for each value that the graph takes in place of the tensor that `text` names."""
        found: list[str] = []
        for name, part in self.parts:
            found += part.opened(f"{text}.{name}")
        found += [f"{text}.size({k})" for k, number in enumerate(self.size) if number is None]
        return found + [f"{text}.stride({k})" for k, number in enumerate(self.stride) if number is None]

    def wrappers(self, text: str) -> Iterator[tuple[str, Wrapper]]:
        """Itself and the wrappers inside, outermost first, each with text that names it."""
        yield text, self
        for name, part in self.parts:
            if isinstance(part, Wrapper):
                yield from part.wrappers(f"{text}.{name}")


@dataclass(frozen=True, slots=True)
class Opened:
    """Which arguments, values and gradients are wrappers; None where one is plain.

    `arguments` and `gradients` leave out the copies of an argument; there are `gradients` only in training.
    """

    arguments: tuple[Wrapper | None, ...]
    values: tuple[Wrapper | None, ...]
    gradients: tuple[Wrapper | None, ...]

    @property
    def flat_values(self) -> int:
        """How many values the graph returns in place of `values`."""
        return sum(width(wrapper) for wrapper in self.values)


def width(wrapper: Wrapper | None) -> int:
    """How many places of a graph one position takes."""
    return 1 if wrapper is None else wrapper.count


def starts(wrappers: Sequence[Wrapper | None]) -> list[int]:
    """At which place of the graph each position begins."""
    places, at = [], 0
    for wrapper in wrappers:
        places.append(at)
        at += width(wrapper)
    return places


def graph_positions(wrappers: Sequence[Wrapper | None], first: int) -> list[range]:
    """Which places of the graph each position takes, counted from `first`."""
    return [
        range(first + at, first + at + width(wrapper)) for at, wrapper in zip(starts(wrappers), wrappers, strict=True)
    ]


def wrappers_of(traced: Traced) -> Opened | None:
    """The wrappers of a traced function, or None if it has to do with plain tensors only."""
    if traced.subclasses is None:
        return None
    gradients = traced.subclasses.grad_input_metas if traced.is_joint else ()
    return Opened(
        arguments=tuple(map(wrapper_of, traced.facts.subclass_inp_meta)),
        values=tuple(map(wrapper_of, traced.facts.subclass_fw_graph_out_meta)),
        gradients=tuple(map(wrapper_of, gradients or ())),
    )


def tangent_wrappers(traced: Traced, count: int) -> tuple[Wrapper | None, ...]:
    """The wrappers that the backward expects to arrive as gradients."""
    if traced.subclasses is None:
        return (None,) * count
    return tuple(map(wrapper_of, traced.facts.subclass_tangent_meta))


def wrapper_of(meta: Any) -> Wrapper | None:
    """What torch noted about one position, as plain data; None for a plain tensor."""
    if not hasattr(meta, "attrs"):
        return None
    counted = bool(meta.included_subclass_symints)
    return Wrapper(
        kind=type(meta.original_subclass),
        parts=tuple((name, _part(part)) for name, part in meta.attrs.items()),
        context=meta.meta,
        size=tuple(_number(number, counted=counted) for number in meta.outer_size),
        stride=tuple(_number(number, counted=counted) for number in meta.outer_stride),
    )


def value_fakes(traced: Traced, outputs: Sequence[Any]) -> list[Any]:
    """For each value, what the trace had for it: a fake tensor, a wrapper of fakes, a number or None."""
    if traced.subclasses is None:
        return list(outputs)
    metas = traced.facts.subclass_fw_graph_out_meta
    places = starts([wrapper_of(meta) for meta in metas])
    return [
        meta.original_subclass if hasattr(meta, "attrs") else outputs[place]
        for meta, place in zip(metas, places, strict=True)
    ]


def plain_parts(value: Any) -> list[torch.Tensor]:
    """The plain tensors that a value is made of."""
    if not isinstance(value, torch.Tensor):
        return []
    if not is_wrapper(value):
        return [value]
    names, _ = value.__tensor_flatten__()  # type: ignore[attr-defined]
    return [part for name in names for part in plain_parts(getattr(value, name))]


def _part(meta: Any) -> Wrapper | PlainPart:
    wrapper = wrapper_of(meta)
    if wrapper is not None:
        return wrapper
    size, stride = (getattr(meta, f"{which}_symbol_placeholders", ()) for which in ("size", "stride"))
    return PlainPart(type(meta).__name__ != "OpaqueMeta", _where(size), _where(stride))


def _where(flags: Sequence[bool]) -> tuple[int, ...]:
    return tuple(k for k, flag in enumerate(flags) if flag)


def _number(number: Any, *, counted: bool) -> int | None:
    if not isinstance(number, torch.SymInt):
        return int(number)
    return None if counted and not number.node.is_nested_int() else _IGNORED
