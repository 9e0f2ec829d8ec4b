"""Hooks of modules, optimizers and parameters: they run while a program is traced, and must be the same on a replay.

torch numbers all hooks of a process by one counter, so that as long as it stands still none was added anywhere; only when
it has moved, or where there are hooks that may be removed, are the tables compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

from treeplay.torch_seam.layers import (
    MODULE_HOOKS,
    OPTIMIZER_HOOKS,
    TENSOR_HOOKS,
    global_hook_tables,
    hooks_but_ours,
    hooks_made,
)
from treeplay.values.mismatch import Mismatch

F = TypeVar("F", bound=Callable[..., Any])


class HookTables:
    """The hooks that there were when it was made; `are_the_same` tells whether these are still all.

    `name` is asked once for each tensor, what to call it.
    """

    def __init__(
        self,
        modules: Iterable[Any],
        optimizers: Iterable[Any],
        tensors: Iterable[torch.Tensor],
        name: Callable[[torch.Tensor], str] | None = None,
    ) -> None:
        self._owners = [
            *((module, MODULE_HOOKS) for module in modules),
            *((optimizer, OPTIMIZER_HOOKS) for optimizer in optimizers),
            *((tensor, TENSOR_HOOKS) for tensor in tensors),
        ]
        self._names = [
            name(owner) if name is not None and isinstance(owner, torch.Tensor) else f"a {type(owner).__name__}"
            for owner, _ in self._owners
        ]
        self._recorded = self._now()
        self._made = hooks_made()

    @property
    def are_the_same(self) -> bool:
        """Whether no hook was added or removed."""
        made = hooks_made()
        if made == self._made and not self._recorded:
            return True
        if self._now() != self._recorded:
            return False
        self._made = made
        return True

    def difference(self) -> Mismatch | None:
        """The first table of hooks that has changed."""
        then, now = ({index: keys for index, *keys in tables} for tables in (self._recorded, self._now()))
        where = [f"hooks on all modules or optimizers ({index})" for index in range(len(global_hook_tables()))]
        where += [
            f"{name}.{table}" for name, (_, tables) in zip(self._names, self._owners, strict=True) for table in tables
        ]
        changed = (index for index in range(len(where)) if then.get(index) != now.get(index))
        return next(
            (Mismatch(where[at], _counted(then.get(at, ())), _counted(now.get(at, ()))) for at in changed), None
        )

    def _now(self) -> list[Any]:
        tables = [getattr(owner, name, None) for owner, names in self._owners for name in names]
        everywhere = [hooks_but_ours(table) for table in global_hook_tables()]
        return [(index, *table) for index, table in enumerate([*everywhere, *tables]) if table]


def _counted(keys: Sequence[Any]) -> str:
    """How many hooks there are, and their numbers: a hook that replaced another has a new one."""
    return f"{len(keys)} hooks ({', '.join(map(str, keys))})" if keys else "no hooks"


def ours(hook: F) -> F:
    """Mark a hook that is there only while treeplay traces, in whichever thread: it is none of a program's."""
    hook.is_treeplays = True  # type: ignore[attr-defined]
    return hook


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether hooks hang on `tensor` itself, so that another tensor in its place would not do."""
    return any(getattr(tensor, name, None) for name in TENSOR_HOOKS)
