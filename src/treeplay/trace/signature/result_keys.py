"""The keys of dictionaries that a program returns or stores: a replay has those of the recording.

a string, a number, an object of the state       the same in each call
a tensor of the state                            so, as long as it is in its place: that is a condition of the call
an argument, or what the program makes           another object in each call: refused
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.trace.numbers.scalars import SYMBOLS
from treeplay.values.same import components
from treeplay.values.signature import Built, Ref
from treeplay.values.structure import Leaf, Structure, keys_in


def check_key(key: Any, is_fixed: Callable[[Any], bool], refuse: Callable[..., Refusal]) -> None:
    """Refuse what is another object in each call. `is_fixed` tells of an object, and of a tensor, whether it is none."""
    if type(key) is str or isinstance(key, SYMBOLS):
        return
    held = None if isinstance(key, torch.Tensor) else components(key)
    for part in held or ():
        check_key(part, is_fixed, refuse)
    if held is None and not is_fixed(key):
        kind = "tensor" if isinstance(key, torch.Tensor) else type(key).__name__
        raise refuse(
            "result",
            f"a {kind} is a key of what is returned or stored, and another object in each call: a replay would have that of "
            "the recording",
            "return or store a list of pairs, or key by a name or an index",
        )


def tensors_in_keys(values: Iterable[Ref], results: Leaf | Structure) -> Iterator[torch.Tensor]:
    """The tensors of the state that are keys of what is returned and stored."""
    waiting = [*keys_in(results)]
    for value in values:
        if isinstance(value, Built):
            waiting += keys_in(value.structure)
            yield from tensors_in_keys(value.refs, Leaf(0))
    while waiting:
        key = waiting.pop()
        if isinstance(key, torch.Tensor):
            yield key
        elif type(key) is not str:
            waiting += components(key) or ()
