"""A graph's node with parameters in memory of our own, ready to be changed and handed to the driver.

The driver's own copy is never written. What it returns points into that copy, so kernels get a buffer of their own for the
parameters, and with it an array of pointers (or the marks of a packed buffer) of their own.

    params ──▶ [pointer, pointer, ...]        params ──▶ [1, buffer, 2, &size, 0]
                   │        └▶ bytes                            └▶ bytes
                   └▶ bytes
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import addressof, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from treeplay.device.cuda.nodes.calls import (
    KERNEL,
    MEMCPY,
    MEMSET,
    PACKED_BUFFER,
    PACKED_SIZE,
    KernelParams,
    MemcpyEnd,
    MemcpyParams,
    MemsetParams,
    call,
    current_context,
    function,
)
from treeplay.device.cuda.nodes.reading import HOST, kernel_function, node_kind, packed_buffer, params_of
from treeplay.errors import InternalError

_ALIGNMENT = 64
# CUlaunchAttributeValue is a union padded to 64 bytes; attributes are numbered from 1 on.
_ATTRIBUTE_BYTES = 64
_ATTRIBUTES = range(1, 19)


@dataclass(frozen=True, slots=True)
class Calls:
    """How a kind of node is set; `rest`: what the call for an executable takes besides handles and parameters."""

    set_template: str
    set_executable: str
    rest: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class OwnNode:
    """A node and its parameters. `buffers`: the addresses at which they lie; `kept`: the memory that they lie in."""

    handle: int
    calls: Calls
    params: ctypes.Structure
    buffers: tuple[int, ...]
    kept: tuple[Any, ...] = ()

    def word(self, buffer: int, offset: int) -> c_uint64:
        """A word of the parameters, to be read and written."""
        return c_uint64.from_address(self.buffers[buffer] + offset)

    def set_template(self) -> None:
        """Give the parameters to the graph that the executable was made from."""
        call(self.calls.set_template, self.handle, addressof(self.params))

    def attributes(self) -> dict[int, bytes]:
        """The launch attributes that the driver lets one read, by number; none but for kernels."""
        found: dict[int, bytes] = {}
        if self.calls.set_template != _KERNEL_CALLS.set_template:
            return found
        read, value = function("cuGraphKernelNodeGetAttribute"), (ctypes.c_char * _ATTRIBUTE_BYTES)()
        for number in _ATTRIBUTES:
            # The driver writes only the member that is meant, and all 64 bytes are compared.
            ctypes.memset(value, 0, _ATTRIBUTE_BYTES)
            if read(self.handle, number, addressof(value)) == 0:
                found[number] = value.raw
        return found


_KERNEL_CALLS = Calls("cuGraphKernelNodeSetParams_v2", "cuGraphExecKernelNodeSetParams_v2")


def own_node(handle: int, sizes_of: Callable[[int], tuple[int, ...]]) -> OwnNode:
    """A node of a graph with a copy of its parameters. `sizes_of` a function's parameters may remember what it was asked."""
    kind = node_kind(handle)
    if kind == KERNEL:
        return _own_kernel(handle, sizes_of)
    if kind == MEMCPY:
        return _own_memcpy(handle)
    if kind == MEMSET:
        return _own_memset(handle)
    raise InternalError(f"a node of kind {kind} holds no address that could be changed")


def _own_kernel(handle: int, sizes_of: Callable[[int], tuple[int, ...]]) -> OwnNode:
    params = params_of(handle, KernelParams)
    packed = packed_buffer(params)
    if packed is not None:
        memory, start = _copy_of([packed])
        size = c_size_t(packed[1])
        marks = (c_void_p * 5)(PACKED_BUFFER, start[0], PACKED_SIZE, addressof(size), None)
        params.params, params.extra = None, addressof(marks)
        return OwnNode(handle, _KERNEL_CALLS, params, start, (memory, size, marks))
    sizes = sizes_of(kernel_function(params))
    theirs = (c_void_p * len(sizes)).from_address(params.params or 0)
    memory, starts = _copy_of([(pointer or 0, size) for pointer, size in zip(theirs, sizes, strict=True)])
    pointers = (c_void_p * len(sizes))(*starts)
    params.params, params.extra = addressof(pointers), None
    return OwnNode(handle, _KERNEL_CALLS, params, starts, (memory, pointers))


def _own_memcpy(handle: int) -> OwnNode:
    params = params_of(handle, MemcpyParams)
    # The executable is also told in which context the copy runs, which its parameters do not say.
    calls = Calls("cuGraphMemcpyNodeSetParams", "cuGraphExecMemcpyNodeSetParams", (current_context(),))
    ends = tuple(_address_field(end) for end in (params.source, params.destination))
    return OwnNode(handle, calls, params, ends)


def _own_memset(handle: int) -> OwnNode:
    params = params_of(handle, MemsetParams)
    calls = Calls("cuGraphMemsetNodeSetParams", "cuGraphExecMemsetNodeSetParams", (current_context(),))
    return OwnNode(handle, calls, params, (addressof(params) + MemsetParams.destination.offset,))


def _copy_of(pieces: list[tuple[int, int]]) -> tuple[Any, tuple[int, ...]]:
    """Copies of pieces of memory (address, size) in one piece, each well aligned, and where they start."""
    offsets, total = [], 0
    for _, size in pieces:
        offsets.append(total)
        total += -(-size // _ALIGNMENT) * _ALIGNMENT
    memory = (ctypes.c_char * (total + _ALIGNMENT))()
    start = -(-addressof(memory) // _ALIGNMENT) * _ALIGNMENT
    starts = tuple(start + offset for offset in offsets)
    for (source, size), destination in zip(pieces, starts, strict=True):
        ctypes.memmove(destination, source, size)
    return memory, starts


def _address_field(end: MemcpyEnd) -> int:
    """Where a structure holds the address of one end of a copy."""
    offset = MemcpyEnd.host.offset if end.kind == HOST else MemcpyEnd.device.offset
    return addressof(end) + int(offset)
