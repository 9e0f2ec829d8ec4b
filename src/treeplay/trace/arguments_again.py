"""The arguments of a call once more, over other tensors: a program that is run again may tell its containers from others.

([t1], cfg) ─ of call ▶ LikeArguments ─ over [t2] ▶ ([t2], cfg)     where the program knows `cfg` from its state
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from treeplay.trace.call import Call
from treeplay.values.flatten import Given, containers, flatten
from treeplay.values.structure import Structure, classes_in, indices_in
from treeplay.values.unflatten import unflatten


class LikeArguments:
    """Makes arguments like those of a call. `originals` gives the containers that are to be the very ones of the call, each by
    the variable that a call function has it in. Holds neither the call nor its tensors, unless such a container does."""

    def __init__(self, call: Call, originals: Mapping[str, Callable[[], Any]]) -> None:
        self._structure = call.structure
        self._given = Given.of(call.structure, (call.args, call.kwargs))
        self._themselves = tuple(_numbered(call, originals))

    def over(self, leaves: list[Any]) -> tuple[Any, Any]:
        """args and kwargs with these leaves. A container that has other tensors by now is made anew."""
        same = {number: value for number, get, part in self._themselves if _holds(value := get(), part, leaves)}
        return unflatten(self._structure, leaves, self._given, same)  # type: ignore[no-any-return]


def in_containers(call: Call) -> frozenset[int]:
    """The tensors, by `id`, that are in containers among the arguments."""
    alone = Counter(map(id, (*call.args, *call.kwargs.values())))
    return frozenset(key for key, count in Counter(map(id, call.leaves)).items() if count != alone[key])


def _numbered(
    call: Call, originals: Mapping[str, Callable[[], Any]]
) -> Iterator[tuple[int, Callable[[], Any], Structure]]:
    """With the number of each container in `Given`, and its structure."""
    for number, (name, _, part) in enumerate(containers(call.structure, (call.args, call.kwargs), "")):
        start = {"_0": "args", "_1": "kwargs"}.get(name[:2], "")
        if start + name[2:] in originals:
            yield number, originals[start + name[2:]], part


def _holds(value: Any, part: Structure, leaves: Sequence[Any]) -> bool:
    """Whether a container is there, with these tensors in it. Other values show in what the program does with them."""
    if value is None:
        return False
    classes = classes_in(part)
    found, _ = flatten(value, opens=lambda inner: type(inner) in classes, opens_sets=True)
    expected = [leaves[at] for at in sorted(indices_in(part))]
    return len(found) == len(expected) and all(
        new is old or (not isinstance(new, torch.Tensor) and not isinstance(old, torch.Tensor))
        for new, old in zip(found, expected, strict=True)
    )
