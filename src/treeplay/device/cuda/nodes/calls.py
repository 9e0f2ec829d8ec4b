"""The driver's calls, about captures, graphs and their nodes and about memory, through the driver library itself; and the
structures of nodes.

The names that end in `_v2` fix the layout of the structures: a driver keeps them for good. The library is loaded at the
first call, never on import. What a call costs is what matters when a graph is patched, so these are the plain functions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from ctypes import (
    POINTER,
    PyDLL,
    Structure,
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_uint,
    c_uint64,
    c_ulonglong,
    c_void_p,
)
from functools import cache
from typing import Any

import torch

from treeplay.codegen.library import address_in
from treeplay.errors import InternalError

KERNEL, MEMCPY, MEMSET = 0, 1, 2
KINDS = {
    3: "host function",
    4: "child graph",
    5: "empty",
    6: "event wait",
    7: "event record",
    8: "semaphore signal",
    9: "semaphore wait",
    10: "memory allocation",
    11: "memory release",
    12: "batch of memory operations",
    13: "conditional",
}
MEMORY_KINDS = {0: "unknown", 1: "host", 2: "device", 3: "array", 4: "unified"}
PACKED_BUFFER, PACKED_SIZE = 1, 2  # how `extra` marks what follows; a null marks its end
MEMORY_TYPE_OF_POINTER = 2
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class KernelParams(Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("func", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("params", c_void_p),
        ("extra", c_void_p),
        ("kern", c_void_p),
        ("context", c_void_p),
    ]


class MemcpyEnd(Structure):
    """One end of a copy."""

    _fields_ = [
        ("x", c_size_t),
        ("y", c_size_t),
        ("z", c_size_t),
        ("lod", c_size_t),
        ("kind", c_int),
        ("host", c_void_p),
        ("device", c_uint64),
        ("array", c_void_p),
        ("reserved", c_void_p),
        ("pitch", c_size_t),
        ("height", c_size_t),
    ]


class MemcpyParams(Structure):
    """CUDA_MEMCPY3D_v2."""

    _fields_ = [
        ("source", MemcpyEnd),
        ("destination", MemcpyEnd),
        ("width_bytes", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
    ]


class MemsetParams(Structure):
    """CUDA_MEMSET_NODE_PARAMS_v1."""

    _fields_ = [
        ("destination", c_uint64),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("element_bytes", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    ]


class UpdateResult(Structure):
    """CUgraphExecUpdateResultInfo."""

    _fields_ = [("result", c_int), ("node", c_void_p), ("from_node", c_void_p)]


_OF_GRAPHS: dict[str, tuple[Any, ...]] = {
    "cuGraphGetNodes": (c_void_p, c_void_p, POINTER(c_size_t)),
    "cuGraphNodeGetType": (c_void_p, POINTER(c_int)),
    "cuGraphChildGraphNodeGetGraph": (c_void_p, POINTER(c_void_p)),
    "cuGraphKernelNodeGetParams_v2": (c_void_p, POINTER(KernelParams)),
    "cuGraphKernelNodeSetParams_v2": (c_void_p, c_void_p),
    "cuGraphExecKernelNodeSetParams_v2": (c_void_p, c_void_p, c_void_p),
    "cuGraphKernelNodeGetAttribute": (c_void_p, c_int, c_void_p),
    "cuGraphMemcpyNodeGetParams": (c_void_p, POINTER(MemcpyParams)),
    "cuGraphMemcpyNodeSetParams": (c_void_p, c_void_p),
    "cuGraphExecMemcpyNodeSetParams": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuGraphMemsetNodeGetParams": (c_void_p, POINTER(MemsetParams)),
    "cuGraphMemsetNodeSetParams": (c_void_p, c_void_p),
    "cuGraphExecMemsetNodeSetParams": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuGraphExecUpdate_v2": (c_void_p, c_void_p, POINTER(UpdateResult)),
    "cuGraphUpload": (c_void_p, c_void_p),
    "cuFuncGetParamInfo": (c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_size_t)),
    "cuFuncGetName": (POINTER(c_char_p), c_void_p),
    "cuKernelGetFunction": (POINTER(c_void_p), c_void_p),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxSetCurrent": (c_void_p,),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuPointerGetAttribute": (c_void_p, c_int, c_uint64),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamIsCapturing": (c_void_p, POINTER(c_int)),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "cuStreamGetCaptureInfo_v2": (c_void_p, POINTER(c_int), POINTER(c_uint64), POINTER(c_void_p), c_void_p, c_void_p),
    "cuThreadExchangeStreamCaptureMode": (POINTER(c_int),),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphDebugDotPrint": (c_void_p, c_char_p, c_uint),
}
_OF_MEMORY: dict[str, tuple[Any, ...]] = {
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), c_void_p, c_int),
    "cuMemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_ulonglong),
    "cuMemAddressFree": (c_uint64, c_size_t),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, c_void_p, c_ulonglong),
    "cuMemRelease": (c_uint64,),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_ulonglong),
    "cuMemUnmap": (c_uint64, c_size_t),
    "cuMemSetAccess": (c_uint64, c_size_t, c_void_p, c_size_t),
}
_SIGNATURES = {**_OF_GRAPHS, **_OF_MEMORY}


@cache
def function(name: str) -> Any:
    """A function of the driver with its argument types set. Raises AttributeError if the driver lacks it.

    The library is one that keeps the interpreter's lock: these calls last about a microsecond, and giving the lock away
    for so short a time costs more.
    """
    found = getattr(library(), name)
    found.argtypes = _SIGNATURES[name]
    found.restype = c_int
    return found


@cache
def is_available() -> bool:
    """Whether this machine's driver has all of them that are about captures and graphs."""
    return _has(_OF_GRAPHS)


@cache
def maps_memory() -> bool:
    """Whether it has all that keep addresses apart from memory."""
    return _has(_OF_MEMORY)


def _has(names: Iterable[str]) -> bool:
    try:
        return all(function(name) is not None for name in names)
    except (OSError, AttributeError):
        return False


def call(name: str, *args: object) -> None:
    """Call a function that has to succeed."""
    code = function(name)(*args)
    if code != 0:
        raise failed(name, code)


def function_address(name: str) -> int:
    """Where the driver has one of these functions, for code that is not Python's."""
    return address_in(library(), name)


def failed(name: str, code: int) -> Exception:
    """The error of a call that has to succeed and did not: treeplay's own, unless the GPU is full."""
    if code == _OUT_OF_MEMORY:
        return torch.OutOfMemoryError(f"{name}: the GPU has no memory left for a recording")
    return InternalError(f"{name} failed with CUDA driver code {code}")


def current_context() -> int:
    """The CUDA context of this thread; 0 if it has none."""
    found = c_void_p()
    call("cuCtxGetCurrent", byref(found))
    return found.value or 0


@cache
def library() -> PyDLL:
    """The driver's library. Raises OSError if there is none."""
    return PyDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
