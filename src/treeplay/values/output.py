"""Where an output comes from: the one vocabulary of all front ends.

    def f(x, w):                          inputs: x, w
        hidden = x * 2                    new memory 0
        return hidden, hidden.t(), w, x[1:], 3

    Fresh(0), View(Fresh(0), ...), SameAsInput(1), View(SameAsInput(0), ...), Static(3)

`values.memory` finds these from where tensors lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from treeplay.values.layout import Layout


@dataclass(frozen=True, slots=True)
class Fresh:
    """Output `index` of the graph, a new tensor on each call. `requires_grad`: it becomes a leaf."""

    index: int
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class SameAsInput:
    """The very tensor that came in as input `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Cast:
    """A piece of memory read as `dtype`: `length` elements of what it is a view of, from `start` on."""

    dtype: Any
    start: int
    length: int
    is_complex: bool  # from complex to real numbers or back, which autograd follows

    def __str__(self) -> str:
        return str(self.dtype)


@dataclass(frozen=True, slots=True)
class View:
    """A view of new memory, of an input or of another view; the offset of its layout counts from where that begins.

    `layout`: None where it lies as what it is a view of. `is_detached`: it has no part in the autograd history of what it is a
    view of, nor has what is a view of it. `has_own_version`: such a one, whose version counter is its own too, as that of
    `x.data` is. `requires_grad`: it is a leaf of its own.
    `cast`: it reads the memory as another dtype, and its offset counts from where the cast begins. `steps`: the view operators
    that lead to it, pickled, where a trace noted them: taken again, they give the history that eager gives. `number`: how many
    other tensors there are just like it. `with_gradients`: whether gradients were on where it was taken, if not as
    they are around the call.
    """

    of: Fresh | SameAsInput | View
    layout: Layout | None
    is_detached: bool = False
    requires_grad: bool = False
    cast: Cast | None = None
    steps: bytes | None = field(default=None, repr=False)
    number: int = 0
    has_own_version: bool = False
    with_gradients: bool | None = None


@dataclass(frozen=True, slots=True)
class SameAsOutput:
    """The very object that an earlier output is; `index` counts outputs."""

    index: int


@dataclass(frozen=True, slots=True)
class Static:
    """A Python value that is the same on every call."""

    value: Any


@dataclass(frozen=True, slots=True)
class Computed:
    """A number that Python computes on each call, by an expression over the numbers that are inputs. `cls`: of which class it
    is then, if of none of Python's."""

    expression: str
    cls: type | None = None


OutputRef = Fresh | SameAsInput | View | Static | Computed
Result = OutputRef | SameAsOutput  # where outputs are a list


def root_of(ref: object) -> object:
    """What a reference is a view of in the end, or itself."""
    while isinstance(ref, View):
        ref = ref.of
    return ref


def values_used(refs: Iterable[object]) -> Iterator[int]:
    """The outputs of the graph that references are, or are views of. Whatever else is among them leads to none."""
    return (of.index for of in map(root_of, refs) if isinstance(of, Fresh))


def inputs_used(refs: Iterable[object]) -> Iterator[int]:
    """The inputs that references are, or are views of, in the same way."""
    return (of.index for of in map(root_of, refs) if isinstance(of, SameAsInput))
