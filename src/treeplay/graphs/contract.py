"""What the arguments of a recorded callable look like, and the tensors of a call in the recorded order.

    f(x, {"a": y}, scale=2, mask=m)
      positional   every leaf is a tensor: the samples fix structure, shape, dtype, device and requires_grad
      keywords     tensors are held to what the first call with them had; everything else is a constant, part of the key

Nothing here has an effect: a call that does not fit is refused before anything was copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.errors import UsageError
from treeplay.torch_seam.modes import is_traceable_wrapper_subclass
from treeplay.torch_seam.tensors import storage_of
from treeplay.values.flatten import flatten
from treeplay.values.overlap import overlapping
from treeplay.values.same import exact_key
from treeplay.values.spec import TensorSpec
from treeplay.values.structure import DICTS, Leaf, Structure, paths


@dataclass(frozen=True, slots=True)
class Expected:
    """One tensor of the arguments as it was recorded. Strides may differ: values are copied whatever they are."""

    path: str
    spec: TensorSpec
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @classmethod
    def of(cls, path: str, tensor: torch.Tensor) -> Expected:
        """What is expected of later tensors at `path`."""
        return cls(path, TensorSpec.of(tensor), tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad)

    def fits(self, value: Any, with_gradients: bool) -> bool:
        """Whether `value` may take this place; `requires_grad` counts only while gradients are recorded."""
        return (
            (
                type(value) is torch.Tensor
                or (isinstance(value, torch.Tensor) and not is_traceable_wrapper_subclass(value))
            )
            and value.shape == self.shape
            and value.dtype is self.dtype
            and value.device == self.device
            and value.layout is torch.strided
            and (value.requires_grad is self.requires_grad or not with_gradients)
        )

    def complaint(self, value: Any) -> str:
        """What of `value` is wrong: `$[0]: shape (1, 3), recorded with (4, 3)`."""
        if not isinstance(value, torch.Tensor):
            return f"{self.path}: {_article(value)}, recorded with a tensor {self.spec}"
        if value.layout is not torch.strided:
            return f"{self.path}: layout {value.layout}, recorded with {torch.strided}"
        if is_traceable_wrapper_subclass(value):
            return f"{self.path}: {_article(value)}, which has no memory of its own, recorded with {self.spec}"
        names = ("shape", "dtype", "device", "requires_grad")
        pairs = ((name, _shown(getattr(value, name)), _shown(getattr(self, name))) for name in names)
        return f"{self.path}: " + "; ".join(f"{name} {a}, recorded with {b}" for name, a, b in pairs if a != b)


@dataclass(frozen=True, slots=True)
class Contract:
    """Structure and tensors of a recorded call: those of positional arguments, then those of keywords.

    `flat` is how many positional arguments there are if all of them are tensors, not containers.
    """

    positional: Leaf | Structure
    expected: tuple[Expected, ...]
    flat: int | None

    @classmethod
    def of(cls, args: tuple[Any, ...], keywords: Keywords) -> Contract:
        """The contract that a call sets for later ones; every positional leaf must be a tensor already."""
        leaves, structure = flatten(args)
        found = [*zip(paths(structure), leaves, strict=True), *zip(keywords.paths, keywords.tensors, strict=True)]
        is_flat = isinstance(structure, Structure) and all(isinstance(part, Leaf) for part in structure.parts)
        return cls(structure, tuple(Expected.of(path, leaf) for path, leaf in found), len(args) if is_flat else None)

    def gather(self, args: tuple[Any, ...], tensors: Sequence[Any]) -> list[Any]:
        """The leaves of a call in the recorded order; raises `UsageError` where its structure differs."""
        if len(args) == self.flat:
            return [*args, *tensors]
        leaves: list[Any] = []
        _follow(self.positional, args, "$", leaves)
        leaves.extend(tensors)
        return leaves

    def check_apart(self, tensors: Sequence[torch.Tensor], written: Sequence[int]) -> None:
        """`UsageError` if an argument that is written shares memory with another one: in a recording each has its own, so
        that the other would not see what is written."""
        for one, other in overlapping(tensors, written):
            first, second = self.expected[one].path, self.expected[other].path
            raise UsageError(
                f"{first} and {second}: they share memory, one of them is written, and they were recorded apart: "
                "pass a clone of one, or call the original"
            )

    def check_is_no_state(self, tensors: Sequence[torch.Tensor], written: Mapping[int, str]) -> None:
        """`UsageError` if an argument is in the memory of a buffer that the callable writes: it would not see what is written.
        `written`: what to say of such buffers, by storage."""
        for item, tensor in zip(self.expected, tensors, strict=True):
            name = written.get(storage_of(tensor))
            if name is not None:
                raise UsageError(
                    f"{item.path}: it shares memory with the buffer {name}, and they were recorded apart: "
                    "pass a clone, or call the original"
                )

    def check(self, leaves: Sequence[Any], *, with_gradients: bool) -> None:
        """Raise `UsageError` with every leaf that differs from what was recorded."""
        fits = [item.fits(leaf, with_gradients) for item, leaf in zip(self.expected, leaves, strict=True)]
        if not all(fits):
            triples = zip(self.expected, leaves, fits, strict=True)
            wrong = [item.complaint(leaf) for item, leaf, is_fitting in triples if not is_fitting]
            raise UsageError("\n".join(wrong))


@dataclass(frozen=True, slots=True, eq=False)
class Keywords:
    """Keyword arguments taken apart: `key` holds structure and constants, `tensors` the rest."""

    key: Hashable
    tensors: tuple[torch.Tensor, ...]
    paths: tuple[str, ...]


NO_KEYWORDS = Keywords(None, (), ())


def take_keywords(kwargs: dict[str, Any]) -> Keywords:
    """Take keyword arguments apart; raises `UsageError` for a constant that cannot be part of a key."""
    if not kwargs:
        return NO_KEYWORDS
    leaves, structure = flatten({name: kwargs[name] for name in sorted(kwargs)})
    # From `$['mask'][0]` to `$.mask[0]`: a keyword is no item of a dict.
    names = ["$." + path[3:].replace("']", "", 1) for path in paths(structure)]
    is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
    constants = tuple(
        None if given else _constant(name, leaf) for name, leaf, given in zip(names, leaves, is_tensor, strict=True)
    )
    return Keywords(
        (structure, constants),
        tuple(leaf for leaf, given in zip(leaves, is_tensor, strict=True) if given),
        tuple(name for name, given in zip(names, is_tensor, strict=True) if given),
    )


def _constant(path: str, value: Any) -> Hashable:
    if type(value).__hash__ is None:
        raise UsageError(
            f"{path}: {_article(value)} cannot be hashed, so it cannot be told apart from other constants; "
            "pass a tensor, a number, a string, or a list, tuple or dict of these"
        )
    return exact_key(value)


def _follow(structure: Leaf | Structure, value: Any, path: str, leaves: list[Any]) -> None:
    if isinstance(structure, Leaf):
        leaves.append(value)
        return
    cls: type = type(value)
    if cls is not structure.cls:
        raise UsageError(f"{path}: {_article(value)}, recorded with a {structure.cls.__name__}")
    if structure.cls is deque and value.maxlen != structure.most:
        raise UsageError(f"{path}: a deque of at most {value.maxlen} items, recorded with {structure.most}")
    if structure.is_named:
        for name, part in zip(structure.keys, structure.parts, strict=True):
            _follow(part, getattr(value, name), f"{path}.{name}", leaves)
    elif structure.cls in DICTS:
        _follow_dict(structure, value, path, leaves)
    else:
        _follow_sequence(structure, value, path, leaves)


def _follow_dict(structure: Structure, value: dict[Any, Any], path: str, leaves: list[Any]) -> None:
    missing = [key for key in structure.keys if key not in value]
    extra = [key for key in value if key not in structure.keys]
    if missing or extra:
        parts = [f"without {missing}"] * bool(missing) + [f"with {extra}"] * bool(extra)
        raise UsageError(f"{path}: a dict {' and '.join(parts)}, recorded with the keys {list(structure.keys)}")
    for key, part in zip(structure.keys, structure.parts, strict=True):
        _follow(part, value[key], f"{path}[{key!r}]", leaves)


def _follow_sequence(structure: Structure, value: Sequence[Any], path: str, leaves: list[Any]) -> None:
    if len(value) != len(structure.parts):
        noun = "positional arguments" if path == "$" else "items"
        raise UsageError(f"{path}: {len(value)} {noun}, recorded with {len(structure.parts)}")
    for index, part in enumerate(structure.parts):
        _follow(part, value[index], f"{path}[{index}]", leaves)


def _article(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _shown(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value)
