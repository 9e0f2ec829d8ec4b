"""The driver's calls that keep addresses apart from memory: a range of addresses is reserved, memory is put behind any part
of it, taken away, and put behind another.

The same memory may lie behind several addresses. Nothing here waits for the device: whoever takes memory away knows that
nothing runs any more that uses it.
"""

from __future__ import annotations

from ctypes import Structure, byref, c_int, c_size_t, c_ubyte, c_uint64, c_ushort, c_void_p
from functools import cache

from treeplay.device.cuda.contexts import here
from treeplay.device.cuda.nodes.calls import call

# CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_PINNED, _ON_DEVICE, _READ_AND_WRITE = 1, 1, 3


class _MemoryLocation(Structure):
    """CUmemLocation."""

    _fields_ = [("kind", c_int), ("index", c_int)]


class MemoryProperties(Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("kind", c_int),
        ("handle_kinds", c_int),
        ("location", _MemoryLocation),
        ("windows", c_void_p),
        ("compression", c_ubyte),
        ("remote", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    ]


class Access(Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", _MemoryLocation), ("flags", c_int)]


def _call(name: str, *args: object) -> None:
    # The look-up itself makes a context current; without one the driver ends the process.
    _ = here.has_context
    call(name, *args)


def access_to(index: int) -> Access:
    """The access of a device that may read and write."""
    return Access(_MemoryLocation(_ON_DEVICE, index), _READ_AND_WRITE)


@cache
def granularity(index: int) -> int:
    """Bytes that are mapped in one, on a device."""
    found = c_size_t()
    _call("cuMemGetAllocationGranularity", byref(found), byref(properties_of(index)), 0)
    return found.value


def reserve(nbytes: int, where: int = 0) -> int:
    """The first of `nbytes` addresses that nobody else in the process gets: `where` it is asked for, if that is free."""
    found = c_uint64()
    _call("cuMemAddressReserve", byref(found), nbytes, 0, where, 0)
    return found.value


def release_addresses(start: int, nbytes: int) -> None:
    """Give such addresses back; nothing is mapped there any more."""
    _call("cuMemAddressFree", start, nbytes)


def make_memory(index: int, nbytes: int) -> int:
    """Memory of a device without an address, as the driver's handle. Raises `torch.OutOfMemoryError`."""
    found = c_uint64()
    _call("cuMemCreate", byref(found), nbytes, byref(properties_of(index)), 0)
    return found.value


def release_memory(memory: int) -> None:
    """Give memory back; it goes when it is mapped nowhere."""
    _call("cuMemRelease", memory)


def map_memory(address: int, nbytes: int, memory: int) -> None:
    """Put `memory`, which has so many bytes, behind addresses; nobody may use them before `allow`."""
    _call("cuMemMap", address, nbytes, 0, memory, 0)


def allow(address: int, nbytes: int, index: int) -> None:
    """Let a device read and write what is mapped there."""
    _call("cuMemSetAccess", address, nbytes, byref(access_to(index)), 1)


def unmap(address: int, nbytes: int) -> None:
    """Take away the memory behind addresses: of whole mappings."""
    _call("cuMemUnmap", address, nbytes)


def try_out(index: int) -> None:
    """Map a page of a device's memory and take it away again. Raises `InternalError` on a device that cannot do that."""
    unit = granularity(index)
    address = reserve(unit)
    try:
        memory = make_memory(index, unit)
        try:
            map_memory(address, unit, memory)
            allow(address, unit, index)
            unmap(address, unit)
        finally:
            release_memory(memory)
    finally:
        release_addresses(address, unit)


def properties_of(index: int) -> MemoryProperties:
    """The properties of memory that lies on a device."""
    return MemoryProperties(kind=_PINNED, location=_MemoryLocation(_ON_DEVICE, index))
