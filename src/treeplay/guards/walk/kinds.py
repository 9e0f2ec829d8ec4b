"""Kinds of objects that a walk over what a run read treats apart."""

from __future__ import annotations

import array
import ctypes
import importlib.machinery
import logging
import types

import torch

from treeplay.guards.memory import BUFFERS
from treeplay.torch_seam.operators import BINDING, OpOverload, OpOverloadPacket
from treeplay.values.kinds import numpys

# Immutable, or without anything that a program could see change; what some of them refer to is entered elsewhere.
VALUES = frozenset({int, bool, float, complex, str, bytes, type(None), type(...), type(NotImplemented), slice, range})
HARMLESS: tuple[type, ...] = (
    *((BINDING,) if BINDING.__name__.startswith("pybind11") else ()),
    types.CodeType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Generator,
    OpOverload,
    OpOverloadPacket,
    importlib.machinery.ModuleSpec,
    logging.Handler,  # where messages go, and nothing comes back from
    logging.Manager,
    logging.PlaceHolder,
    torch.SymInt,
    torch.SymFloat,
    torch.SymBool,
)
VIEWS: tuple[type, ...] = (types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items()))
WRAPPERS = (staticmethod, classmethod)
_CData: type = ctypes.c_int.__mro__[-2]  # which has no public name


def memories() -> tuple[type, ...]:
    """Memory without tensors: NumPy's arrays, and bytes that can change. Asked for each walk: NumPy may be imported later."""
    return (bytearray, memoryview, array.array, _CData, *BUFFERS, *numpys("ndarray"))
