"""Reads the nodes of a captured graph: a raw graph goes in, `values.nodes` come out. Changes nothing.

Edges are not read: what a recording needs to know is which words hold addresses, and those are in the nodes.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from typing import TypeVar

from treeplay.device.cuda.nodes.calls import (
    KERNEL,
    KINDS,
    MEMCPY,
    MEMORY_KINDS,
    MEMORY_TYPE_OF_POINTER,
    MEMSET,
    PACKED_BUFFER,
    PACKED_SIZE,
    KernelParams,
    MemcpyEnd,
    MemcpyParams,
    MemsetParams,
    call,
    function,
)
from treeplay.errors import InternalError
from treeplay.values.nodes import GraphNode, Kernel, Memcpy, Memset, Other

HOST = 1
_MAX_CONTENT_BYTES = 1 << 20
_MAX_PARAMS_BYTES = 32764  # CUDA's limit for all parameters of a kernel: further apart, they are not in one piece

Shapes = dict[int, tuple[str, tuple[int, ...]]]
P = TypeVar("P", KernelParams, MemcpyParams, MemsetParams)
_GETTERS = {
    KernelParams: "cuGraphKernelNodeGetParams_v2",
    MemcpyParams: "cuGraphMemcpyNodeGetParams",
    MemsetParams: "cuGraphMemsetNodeGetParams",
}


def read_nodes(graph: int, shapes: Shapes | None = None) -> tuple[GraphNode, ...]:
    """The nodes of a raw graph, in order of creation. `shapes` is what other graphs of the same program have told."""
    shapes = {} if shapes is None else shapes
    return tuple(read_node(handle, shapes) for handle in handles_of(graph))


def handles_of(graph: int) -> list[int]:
    """The handles of the nodes of a raw graph, in the order of `read_nodes`."""
    count = c_size_t()
    call("cuGraphGetNodes", graph, None, byref(count))
    if not count.value:  # the driver takes no empty list
        return []
    handles = (c_void_p * count.value)()
    call("cuGraphGetNodes", graph, handles, byref(count))
    return [handle or 0 for handle in handles]


def read_node(handle: int, shapes: Shapes) -> GraphNode:
    """One node. `shapes` remembers names and sizes of parameters by function."""
    kind = node_kind(handle)
    if kind == KERNEL:
        return read_kernel(handle, shapes)
    if kind == MEMCPY:
        return read_memcpy(handle)
    if kind == MEMSET:
        return read_memset(handle)
    return Other(KINDS.get(kind, f"node of kind {kind}"))


def node_kind(handle: int) -> int:
    """What kind of node it is, as the driver numbers kinds."""
    kind = c_int()
    call("cuGraphNodeGetType", handle, byref(kind))
    return kind.value


def params_of(handle: int, kind: type[P]) -> P:
    """The parameters of a node, as a structure of this kind; what they point to belongs to the node."""
    params = kind()
    call(_GETTERS[kind], handle, byref(params))
    return params


def read_kernel(handle: int, shapes: Shapes) -> Kernel:
    """A kernel node with the bytes of its parameters."""
    params = params_of(handle, KernelParams)
    called = kernel_function(params)
    if called not in shapes:
        shapes[called] = kernel_name(called), param_sizes(called)
    name, sizes = shapes[called]
    packed = packed_buffer(params)
    if packed is not None:
        buffers: tuple[bytes, ...] = (ctypes.string_at(*packed),)
    else:
        buffers = _read_params(params.params, sizes) if sizes else ()
    grid, block = tuple(params.grid), tuple(params.block)
    return Kernel(name, called, grid, block, params.shared_bytes, buffers, is_packed=packed is not None)


def _read_params(pointers_at: int, sizes: tuple[int, ...]) -> tuple[bytes, ...]:
    """The bytes of each parameter. The driver keeps them in one piece, which is read at once where that is so."""
    pointers = [pointer or 0 for pointer in (c_void_p * len(sizes)).from_address(pointers_at)]
    first, length = pointers[0], pointers[-1] + sizes[-1] - pointers[0]
    if pointers != sorted(pointers) or length > _MAX_PARAMS_BYTES:
        return tuple(ctypes.string_at(pointer, size) for pointer, size in zip(pointers, sizes, strict=True))
    piece = ctypes.string_at(first, length)
    return tuple(piece[at - first : at - first + size] for at, size in zip(pointers, sizes, strict=True))


def read_memcpy(handle: int) -> Memcpy:
    """A memcpy node; of a small source in pinned memory also what it holds now."""
    params = params_of(handle, MemcpyParams)
    source, destination = params.source, params.destination
    layout = (*_end_layout(source), *_end_layout(destination), params.width_bytes, params.height, params.depth)
    # Host memory that is copied may hold a table of addresses, which then are in no parameter of any node.
    content = None
    if source.kind == HOST or _is_pinned(end_address(source)):
        content = _content(source.host or source.device, params)
    return Memcpy(
        end_address(source),
        end_address(destination),
        MEMORY_KINDS.get(source.kind, "unknown") if content is None else "host",
        MEMORY_KINDS.get(destination.kind, "unknown"),
        layout,
        content,
    )


def read_memset(handle: int) -> Memset:
    """A memset node."""
    params = params_of(handle, MemsetParams)
    return Memset(params.destination, params.value, params.element_bytes, params.width, params.height, params.pitch)


def kernel_function(params: KernelParams) -> int:
    """The handle of the function that a kernel node launches."""
    if params.func:
        return int(params.func)
    found = c_void_p()
    call("cuKernelGetFunction", byref(found), params.kern)
    return found.value or 0


def kernel_name(called: int) -> str:
    """The (mangled) name of a function."""
    name = c_char_p()
    call("cuFuncGetName", byref(name), called)
    return (name.value or b"").decode(errors="replace")


def param_sizes(called: int) -> tuple[int, ...]:
    """The size of each parameter of a function; an index after the last is refused by the driver."""
    ask, offset, size = function("cuFuncGetParamInfo"), c_size_t(), c_size_t()
    sizes: list[int] = []
    while ask(called, len(sizes), byref(offset), byref(size)) == 0:
        sizes.append(size.value)
    return tuple(sizes)


def packed_buffer(params: KernelParams) -> tuple[int, int] | None:
    """Address and size of the one buffer that holds all parameters, where the node has one."""
    if params.params or not params.extra:
        return None
    marks = (c_void_p * 5).from_address(params.extra)
    found = {marks[0]: marks[1] or 0, marks[2]: marks[3] or 0}  # the two come in either order
    if set(found) != {PACKED_BUFFER, PACKED_SIZE} or marks[4]:
        raise InternalError(f"parameters of a kernel node are packed in an unknown way: {list(marks)}")
    return found[PACKED_BUFFER], c_size_t.from_address(found[PACKED_SIZE]).value


def end_address(end: MemcpyEnd) -> int:
    """The address of one end of a copy, in whichever memory it is."""
    return int(end.host or 0) if end.kind == HOST else int(end.device or end.array or 0)


def _end_layout(end: MemcpyEnd) -> tuple[int, ...]:
    return (end.x, end.y, end.z, end.lod, end.pitch, end.height)


def _is_pinned(address: int) -> bool:
    kind = c_uint()
    # The driver gives an error for an address that it does not know: host memory that is not pinned.
    code = function("cuPointerGetAttribute")(byref(kind), MEMORY_TYPE_OF_POINTER, address)
    return code == 0 and kind.value == HOST


def _content(address: int, params: MemcpyParams) -> bytes | None:
    is_flat = params.height <= 1 and params.depth <= 1
    if not is_flat or params.width_bytes > _MAX_CONTENT_BYTES or not _is_pinned(address):
        return None
    return ctypes.string_at(address + params.source.x, params.width_bytes)
