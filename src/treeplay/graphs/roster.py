"""The tensors of modules as they were when they were recorded, and what has become of them since.

A recording reads parameters and buffers where they lay. New values at the same place are what it reads next; a tensor that
was added, removed, replaced, moved, frozen or unfrozen is not what was recorded, and the names say which.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import torch

from treeplay.errors import UsageError
from treeplay.torch_seam import allocator
from treeplay.torch_seam.layers import MODULE_TABLES

_address = torch.Tensor.data_ptr
_needs_gradient = attrgetter("requires_grad")
_values = dict.values


class Roster:
    """Parameters and buffers of some modules, and further tensors by name.

    Keeps the recorded memory alive, so that an address that is still the same is the same memory.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], others: dict[str, torch.Tensor] | None = None) -> None:
        self.modules = tuple(modules)
        self._others = dict(others or {})
        self._tables: list[dict[str, Any]] = list(_tables(self.modules))
        self._entries = [dict(table) for table in self._tables]
        self._filled = [table for table in self._tables if table]
        # Most tables: of these it is enough to ask whether they still are.
        self._empty = [table for table in self._tables if not table]
        self._members = self._members_now()
        self.tensors = tuple(_tensors(self.modules, self._others))
        self._names = dict(_named(self.modules))
        self._memory = [tensor.detach() for tensor in self.tensors]
        self._addresses = [*map(_address, self.tensors)]
        self._are_in_place = _address_check(self.tensors, self._addresses)
        self._flags = [*map(_needs_gradient, self.tensors)]
        self.written: dict[int, str] = {}  # by storage: buffers that the callable writes, as text

    @property
    def needs_gradient(self) -> bool:
        """Whether any of the tensors requires a gradient."""
        return any(self._flags)

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Every parameter once."""
        found = (parameter for module in self.modules for parameter in module.parameters())
        return list({id(parameter): parameter for parameter in found}.values())

    @property
    def buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Names and buffers."""
        seen: dict[int, tuple[str, torch.Tensor]] = {}
        for module in self.modules:
            for name, buffer in module.named_buffers():
                seen.setdefault(id(buffer), (name, buffer))
        return list(seen.values())

    def is_unchanged(self) -> bool:
        """Whether everything is what and where it was."""
        return (
            self._members_now() == self._members
            and not any(self._empty)
            and self._are_in_place()
            and [*map(_needs_gradient, self.tensors)] == self._flags
        )

    def difference(self) -> str:
        """What has changed, by name."""
        now = dict(_named(self.modules))
        added = sorted(now.keys() - self._names.keys())
        removed = sorted(self._names.keys() - now.keys())
        replaced = sorted(name for name in now.keys() & self._names.keys() if now[name] is not self._names[name])
        moved = self._names_where([*map(_address, self.tensors)], self._addresses)
        frozen = self._names_where([*map(_needs_gradient, self.tensors)], self._flags)
        parts = {
            "added": added,
            "removed": removed,
            "replaced": replaced,
            "at another address": moved,
            "with another requires_grad": frozen,
        }
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in parts.items() if names)

    def put_back(self) -> None:
        """Undo what was added, removed or replaced."""
        if self._members_now() == self._members and not any(self._empty):
            return
        for table, entries in zip(self._tables, self._entries, strict=True):
            table.clear()
            table.update(entries)

    def with_tensors(self, others: dict[str, torch.Tensor]) -> Roster:
        """The same modules and `others` besides."""
        made = Roster(self.modules, {**self._others, **others})
        made.written = self.written
        return made

    def name_of(self, tensor: torch.Tensor) -> str:
        """The name of one of the tensors."""
        named = chain(_named(self.modules), self._others.items())
        return next((name for name, value in named if value is tensor), f"a tensor of shape {tuple(tensor.shape)}")

    def _members_now(self) -> list[int]:
        return [*map(id, chain.from_iterable(map(_values, self._filled)))]

    def _names_where(self, now: Sequence[object], then: Sequence[object]) -> list[str]:
        pairs = zip(self.tensors, now, then, strict=True)
        return sorted(self.name_of(tensor) for tensor, a, b in pairs if a != b)


def check_memory(modules: Sequence[torch.nn.Module]) -> None:
    """Raise `UsageError` for a parameter or buffer without an address that a recording could read."""
    for name, tensor in _named(modules):
        if isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided:
            raise UsageError(f"{name}: a recording reads strided memory, and this tensor's layout is {tensor.layout}")


def _address_check(tensors: Sequence[torch.Tensor], addresses: Sequence[int]) -> Callable[[], bool]:
    """Asks whether tensors lie where they did; natively where torch can, which matters for hundreds of them."""
    if allocator.is_built():
        check = allocator.native("_tensors_data_ptrs_at_indices_equal")
        return functools.partial(check, list(tensors), list(addresses), list(range(len(tensors))))
    return lambda: [*map(_address, tensors)] == addresses


def _tables(modules: Sequence[torch.nn.Module]) -> Iterator[dict[str, Any]]:
    for module in _submodules(modules):
        for table in MODULE_TABLES:
            yield getattr(module, table)


def _submodules(modules: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    found: dict[int, torch.nn.Module] = {}
    for module in modules:
        for part in module.modules():
            found.setdefault(id(part), part)
    return list(found.values())


def _tensors(modules: Sequence[torch.nn.Module], others: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    for module in modules:
        for tensor in chain(module.parameters(), module.buffers()):
            found.setdefault(id(tensor), tensor)
    for tensor in others.values():
        found.setdefault(id(tensor), tensor)
    return list(found.values())


def _named(modules: Sequence[torch.nn.Module]) -> Iterator[tuple[str, Any]]:
    """Every entry of the tables by its full name, an entry without a tensor too."""
    for module in modules:
        for prefix, part in module.named_modules():
            for table in MODULE_TABLES:
                for name, value in getattr(part, table).items():
                    yield f"{prefix}.{name}" if prefix else name, value
