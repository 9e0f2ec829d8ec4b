"""Writes as eager does them, where torch's functional trace does not.

strides     eager's write leaves a tensor as it lies; the functional operator gives another tensor, that lies as it likes
expand      the trace writes through `expand` as `base + (written - base)`, which is not `written` in floating point.
            One that makes nothing larger is a view like another; a write through any other is refused
overlap     where elements of what is written share memory, eager's operators read what they have just written, in the order
            of the elements; a functional operator computes all of them from what was there. Such a write is refused
errors      some operators check less on tensors without data than on others
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.torch_seam import fakes, operators
from treeplay.torch_seam.tensors import shares_storage
from treeplay.values import layout
from treeplay.values.lists import one_by_one

_EXPANDS = frozenset(("expand", "expand_as", "broadcast_to"))


def viewed(name: str, args: Sequence[Any], result: Any) -> Any:
    """The result of an operator; that of an `expand` to the size that there was already as a view that may be written."""
    if name not in _EXPANDS or not isinstance(result, torch.Tensor) or not 0 < result.numel() == args[0].numel():
        return result
    return args[0].view(result.size())


def is_enlarged(target: torch.Tensor) -> bool:
    """Whether a traced tensor shows elements of another one several times, or a part of such a tensor."""
    steps = fakes.view_steps(target) or ()
    return any(type(step).__name__.startswith("expand") for step in steps)


@contextmanager
def lying_as_before(targets: Sequence[torch.Tensor]) -> Iterator[None]:
    """What is written meanwhile lies afterwards as it did, but for its size."""
    before = [(target, target.size(), fakes.traced_stride(target)) for target in targets]
    yield
    for target, size, stride in before:
        if stride is not None and target.size() == size and target.numel() > 0:
            now = zip(size, fakes.traced_stride(target) or (), stride, strict=False)
            if any(length > 1 and one != other for length, one, other in now):
                fakes.lay_traced(target, stride)


def written_tensors(args: Sequence[Any], kwargs: Mapping[str, Any], *, is_in_place: bool) -> list[torch.Tensor]:
    """The tensors that a call writes."""
    given = [args[0]] if is_in_place and args else []
    given += [kwargs["out"]] if kwargs.get("out") is not None else []
    listed = [item for one in given for item in (one if isinstance(one, (list, tuple)) else [one])]
    return [item for item in listed if isinstance(item, torch.Tensor)]


def why_eager_raises(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """What eager would raise for a call that tensors without data let pass; None if nothing."""
    if name.startswith("_foreach_") and name.endswith("_"):
        each = one_by_one(args, dict(kwargs)) if isinstance(args[0] if args else None, (list, tuple)) else ()
        told = (_cast(name.removeprefix("_foreach_"), [_alone(value) for value in one], named) for one, named in each)
        return next(filter(None, told), None)
    partial = _partial_overlap(name, args, kwargs)
    if partial is not None:
        return partial
    names, check = _CHECKS.get(name.strip("_"), ((), None))
    if check is not None:
        return check({**dict(zip(names, args, strict=False)), **kwargs})
    return _cast(name, args, kwargs) if args and name.endswith("_") else None


def _partial_overlap(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why an elementwise operator does not write to a tensor: it reads one that shares memory with it, and lies otherwise.

    Eager asks this of tensors without gaps alone, of which it is sure without looking at each element."""
    out = kwargs.get("out")
    target, read = (args[0] if args else None, args[1:]) if out is None else (out, args)
    if not isinstance(target, torch.Tensor):
        return None
    if name == "__setitem__":
        written = _part(target, args[1])
    elif (
        out is not None
        or name == "copy_"
        or (name.endswith("_") and operators.names_elementwise(_plain(name).strip("_")))
    ):
        written = _Block.of(target)
    else:
        return None
    others = [value for value in read if isinstance(value, torch.Tensor) and shares_storage(value, target)]
    if written is None or not any(written.meets_in_part(_Block.of(other)) for other in others if other is not target):
        return None
    return "some elements of the input tensor and the written-to tensor refer to a single memory location"


@dataclass(frozen=True, slots=True)
class _Block:
    """Where a tensor without gaps lies in its storage, in bytes, and in which order."""

    start: int
    end: int
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor, offset: int = 0) -> _Block | None:
        """The block of a tensor `offset` elements further on; None if it has gaps, no elements, or sizes that are symbols."""
        shape, stride, start = tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset()
        if not all(type(number) is int for number in (*shape, *stride, start)) or tensor.numel() == 0:
            return None
        if layout.span(shape, stride) != tensor.numel() or layout.overlaps(shape, stride):
            return None
        width, start = tensor.element_size(), int(start) + offset
        return cls(start * width, (start + tensor.numel()) * width, stride)

    def meets_in_part(self, other: _Block | None) -> bool:
        """Whether some bytes are of both, and not each element one of both."""
        return other is not None and self != other and self.start < other.end and other.start < self.end


def _part(tensor: torch.Tensor, index: Any) -> _Block | None:
    """What an assignment writes; None where it is elements at places that a tensor gives."""
    places = index if isinstance(index, tuple) else (index,)
    if not all(place is None or place is Ellipsis or type(place) in (int, slice) for place in places):
        return None
    offset = tensor.storage_offset()
    with fakes.without_data([tensor]) as (like,):
        return _Block.of(like[index], offset) if type(offset) is int else None


def _plain(name: str) -> str:
    """The operator that a method in place is made of."""
    return f"__{name[3:]}" if name.startswith("__i") else name.removesuffix("_")


def _alone(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) else value


def _cast(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why a tensor cannot hold what an elementwise operator computes to be stored in it."""
    dtypes = [value.dtype for value in args if isinstance(value, torch.Tensor)]
    if not dtypes or args[0] is None or dtypes[0].is_complex:
        return None
    if dtypes[0].is_floating_point and not any(dtype.is_complex for dtype in dtypes):
        return None
    plain = _plain(name)
    computes = getattr(torch.Tensor, plain, None)
    if computes is None or not operators.names_elementwise(plain.strip("_")):
        return None
    with fakes.without_data(args) as given:
        try:
            found = computes(*given, **{name: _alone(value) for name, value in kwargs.items()}).dtype
        except Exception:  # it is no such call: whoever makes it will be told
            return None
    if torch.can_cast(found, dtypes[0]):
        return None
    return f"result type {found} can't be cast to the desired output type {dtypes[0]}"


def _index_copy(given: Mapping[str, Any]) -> str | None:
    self, source = given["self"], given["source"]
    fits = self.dtype == source.dtype
    return None if fits else f"self ({self.dtype}) and source ({source.dtype}) must have the same dtype"


def _index_add(given: Mapping[str, Any]) -> str | None:
    sizes = [list(given[name].size()) for name in ("self", "source")]
    for size in filter(None, sizes):
        del size[given["dim"]]
    return _index_copy(given) if sizes[0] == sizes[1] else "the sizes of self and source differ in other dimensions"


def _index_put(given: Mapping[str, Any]) -> str | None:
    self, indices, values = given["self"], given["indices"], given["values"]
    if self.dtype != values.dtype:
        return f"self ({self.dtype}) and values ({values.dtype}) must have the same dtype"
    with fakes.without_data((self, values, *indices)) as (target, value, *places):
        if any(place is not None and place.dtype in (torch.bool, torch.uint8) for place in places):
            return None  # the size depends on the mask's elements
        return _raised(lambda: value.expand(target[tuple(places)].size()))


_PLACES = ("self", "dim", "index", "source")
_CHECKS: dict[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], str | None]]] = {
    "index_add": (_PLACES, _index_add),
    "index_copy": (_PLACES, _index_copy),
    "index_put": (("self", "indices", "values"), _index_put),
}


def _raised(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except (RuntimeError, IndexError) as error:
        return str(error)
    return None
