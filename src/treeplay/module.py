"""A jitted module: the same class, the same attributes, another `__call__`.

The jitted object and the module share one attribute table, so parameters, buffers, submodules, `training` and every later
change are common to both; the recordings live beside it, in a slot that `state_dict`, pickle and deepcopy do not see.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any, TypeVar, cast

import torch

from treeplay.errors import ArgumentTypeError
from treeplay.program import Jitted
from treeplay.settings import settings

M = TypeVar("M", bound=torch.nn.Module)


class JittedModule:
    """Mixed in before the module's own class."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        program = _program_of(self)
        if not settings.enabled:
            return program.__wrapped__(*args, **kwargs)
        return program._manager.call(args, kwargs)

    @property
    def __wrapped__(self) -> Any:
        return _program_of(self).__wrapped__

    def statistics(self) -> Any:
        """See `Jitted.statistics`."""
        return _program_of(self).statistics()

    def explain(self) -> str:
        """See `Jitted.explain`."""
        return str(_program_of(self).explain())

    def sources(self) -> Any:
        """See `Jitted.sources`."""
        return _program_of(self).sources()

    def reset(self) -> None:
        """See `Jitted.reset`."""
        _program_of(self).reset()

    def __reduce__(self) -> Any:
        program = _program_of(self)
        return _rejit, (program.__wrapped__, program._lower, program._on_refusal)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        program = _program_of(self)
        return _rejit(copy.deepcopy(program.__wrapped__, memo), program._lower, program._on_refusal)


def _program_of(module: Any) -> Any:
    return module._treeplay


def _rejit(module: torch.nn.Module, lower: str, on_refusal: str) -> Any:
    return jit_module(module, lower=lower, on_refusal=on_refusal)


@lru_cache(maxsize=256)
def _class_for(cls: type) -> type:
    slots = {
        "__slots__": ("_treeplay",),
        "__module__": getattr(cls, "__module__", ""),  # some have none: of code that was executed without a `__name__`
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
    }
    return type(cls.__name__, (JittedModule, cls), slots)


def jit_module(module: M, *, lower: Any, on_refusal: Any) -> M:
    """A module like `module` that records and replays its calls."""
    if isinstance(module, JittedModule):
        raise ArgumentTypeError(f"jit: this {type(module).__name__} is jitted already")
    jitted: Any = object.__new__(_class_for(cast(Any, type(module))))
    object.__setattr__(jitted, "__dict__", module.__dict__)
    program = Jitted(module, lower=lower, on_refusal=on_refusal, name=type(module).__name__)
    type(jitted)._treeplay.__set__(jitted, program)
    return jitted  # type: ignore[no-any-return]
