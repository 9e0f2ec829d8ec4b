"""TorchScript: what a scripted module keeps in C++, where no dictionary of Python's has it."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.jit import ScriptModule as ScriptModule

_described: Any = torch._C.ConcreteModuleType.from_jit_type
_names: weakref.WeakKeyDictionary[ScriptModule, tuple[str, ...]] = weakref.WeakKeyDictionary()


def attributes_of(module: ScriptModule) -> dict[str, Any]:
    """The attributes, parameters and buffers of a scripted module itself. Lists and dictionaries are copies; a tensor is the
    same object each time, as long as somebody holds it."""
    kept = _kept(module)
    if kept is None:  # made without its constructor
        return {}
    if module not in _names:
        _names[module] = (*_described(kept._type()).get_attributes(),)
    return {name: kept.getattr(name) for name in _names[module]}


def set_attribute(module: ScriptModule, name: str, value: Any) -> None:
    """Give an attribute another value."""
    _kept(module).setattr(name, value)


def _kept(module: ScriptModule) -> Any:
    # One that was traced stands for a scripted one.
    return vars(vars(module).get("_actual_script_module", module)).get("_c")
