"""The key of a call: what must be equal for two calls to be able to share a recording."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, NamedTuple

import torch

from treeplay.errors import Refusal
from treeplay.observe.shown import shown
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.tensors import has_strides, is_initialised, mkldnn_layout, spec_of
from treeplay.trace.call import Call
from treeplay.values.kinds import PLAIN, is_a, numpys
from treeplay.values.same import Itself, exact_key
from treeplay.values.structure import Leaf, Structure, as_written, indices_in_objects, paths
from treeplay.wrap.ambience import Ambience


class Key(NamedTuple):
    """What calls that share a recording have in common: their arguments, but for the values of tensors, and the modes."""

    arguments: Hashable
    ambience: Ambience


def make_key(call: Call) -> Key:
    """Structure, spec of each tensor, type and value of each Python leaf, and the modes around the call.

    Raises `Refusal` for a static argument that is mutable by its own account: one that cannot be hashed.
    """
    of_objects = indices_in_objects(call.structure)
    leaves = tuple(
        spec_of(leaf)
        if _is_strided(leaf)
        else (type(leaf), "any")
        if at in call.numbers
        else _static(leaf, at, call, is_of_object=at in of_objects)
        for at, leaf in enumerate(call.leaves)
    )
    return Key((_exact(call.structure), leaves), Ambience.now())


# By `id`: a metaclass may compare its classes as it likes, and then they may have no hash.
_SEEN_AS_THEY_ARE = frozenset(map(id, (int, float, bool, str, type(None))))
_PLAIN_TENSORS = frozenset(map(id, (torch.Tensor, torch.nn.Parameter)))
_LOOKED_INTO = frozenset(map(id, (dict, list, tuple, set)))  # or calls that differ in what is there would look alike
_MOST_LOOKED_AT = 16  # items


def glance(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """What a quick look at arguments shows: calls of different keys may look alike, but seldom do."""
    return tuple(map(_seen, (*args, *kwargs.values()))), tuple(kwargs)


def _seen(value: Any, *, looks_inside: bool = True) -> Any:
    kind = id(type(value))
    if kind in _PLAIN_TENSORS:
        return value.shape if has_strides(value) else kind  # a nested tensor raises if it is asked for its shape
    if kind in _SEEN_AS_THEY_ARE:
        return value
    if looks_inside and kind in _LOOKED_INTO and len(value) <= _MOST_LOOKED_AT:
        items = (*value, *value.values()) if type(value) is dict else value
        return kind, *(_seen(item, looks_inside=False) for item in items)
    return kind


_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_OTHER_LAYOUTS = (torch.sparse_coo, *_COMPRESSED, torch.jagged, mkldnn_layout)
_KEYWORD = re.compile(r"^kwargs\['(\w+)'\]")


def _is_strided(leaf: Any) -> bool:
    return is_a(leaf, torch.Tensor) and has_strides(leaf) and not is_a(leaf, FakeTensor)


def has_fakes(call: Call) -> bool:
    """Whether a tensor among the arguments has no data."""
    return any(is_a(leaf, FakeTensor) for leaf in call.leaves)


def _static(leaf: Any, at: int, call: Call, *, is_of_object: bool) -> Hashable:
    if is_a(leaf, FakeTensor) or (is_a(leaf, torch.Tensor) and leaf.layout in _OTHER_LAYOUTS):
        return type(leaf), leaf.layout, leaf.dtype, leaf.device  # refused, or run eagerly, whichever of its kind it is
    if is_a(leaf, torch.Tensor):
        nested_or_lazy = "nested tensor" if is_initialised(leaf) else "parameter without memory"
        kind = nested_or_lazy if leaf.layout is torch.strided else f"tensor of layout {leaf.layout}"
        raise Refusal.of(
            f"argument {as_written(paths(call.structure)[at])}",
            f"a {kind} is not described by its shape and strides, so it cannot be part of the key",
            "pass the tensors that it is made of, or call a lazy layer once before",
        )
    if is_a(leaf, (set, frozenset)) and any(is_a(item, torch.Tensor) for item in leaf):
        raise Refusal.of(
            f"argument {as_written(paths(call.structure)[at])}",
            f"a {type(leaf).__name__} of tensors comes in the order of their addresses, which is another one in each call",
            "pass them in a list, a tuple or a dict",
        )
    if is_of_object:  # a recording compares it, if the run read it
        return Itself(type(leaf))
    key = exact_key(leaf)
    if type(key) is Itself and type(leaf).__hash__ is None:
        raise Refusal.of(
            f"argument {as_written(paths(call.structure)[at])}",
            f"a static argument of type {type(leaf).__name__} cannot be hashed, so it cannot be part of the key",
            _advice(leaf),
        )
    return key


def _advice(leaf: Any) -> str:
    if is_a(leaf, numpys("ndarray")):
        return "pass torch.from_numpy(array), which shares its memory: nothing tells what the program reads of an array"
    if is_a(leaf, set):
        return "pass a set of numbers or strings, a frozenset, a list or a tuple, or put it in the program's closure"
    return "pass a tensor, a number, a string or a frozen dataclass, or put it in the program's closure"


def values_in_objects(call: Call) -> dict[str, Any]:
    """The plain values in objects among the arguments, by path."""
    of_objects = indices_in_objects(call.structure)
    if not of_objects:
        return {}
    named = enumerate(zip(paths(call.structure), call.leaves, strict=True))
    return {as_written(path): leaf for at, (path, leaf) in named if at in of_objects and is_a(leaf, PLAIN)}


def key_by_class(key: Key) -> Key | None:
    """A key with its class in the place of each object that counts as itself; None if there is none."""
    kind = _by_class(key.arguments)
    return key._replace(arguments=kind) if kind != key.arguments else None


def _by_class(part: Any) -> Any:
    if type(part) is Itself:
        return part if isinstance(part.value, type) else ("any", type(part.value))
    return tuple(map(_by_class, part)) if type(part) is tuple else part


def passing(call: Call) -> str:
    """The arguments of a call that count as themselves, as text."""
    named = zip(paths(call.structure), call.leaves, strict=True)
    found = [
        as_written(path) for path, leaf in named if not _is_strided(leaf) and _by_class(key := exact_key(leaf)) != key
    ]
    return ", ".join(found)


def _exact(structure: Leaf | Structure) -> Hashable:
    """Equal for equal containers with the very same keys."""
    if isinstance(structure, Leaf):
        return structure.index
    parts = tuple(map(_exact, structure.parts))
    return exact_key(structure.cls), exact_key(structure.keys), parts, structure.rest, structure.most


def arguments_text(call: Call) -> dict[str, str]:
    """The call's arguments by name, as text."""
    parts = {}
    for path, leaf in zip(paths(call.structure), call.leaves, strict=True):
        text = str(spec_of(leaf)) if _is_strided(leaf) else _short(leaf)
        parts[_KEYWORD.sub(r"\1", as_written(path))] = text
    return parts


def label_of(call: Call) -> str:
    """The call's arguments on one line."""
    return as_line(arguments_text(call))


def as_line(arguments: dict[str, str]) -> str:
    """Arguments by name on one line."""
    return ", ".join(f"{name}={text}" for name, text in arguments.items()) or "no arguments"


def _short(value: Any) -> str:
    if is_a(value, FakeTensor):
        return "fake tensor"
    if is_a(value, torch.Tensor) and value.layout in _OTHER_LAYOUTS:
        return str(value.layout).removeprefix("torch.")
    text = shown(value) if is_a(value, PLAIN) else ""
    return text if 0 < len(text) <= 30 else f"<{type(value).__name__}>"


def varying(calls: list[dict[str, str]]) -> str:
    """What differs among several calls: the arguments whose text is not the same in all."""
    names = [name for name in calls[0] if len({call.get(name) for call in calls}) > 1] if calls else []
    return (
        ", ".join(names)
        or "an object that is made for each call, the structure of the arguments, or a mode around the call"
    )
