"""The CUDA context of a thread. The driver's own functions need a current one: without it they end the process.

torch's calls make one current by themselves, since they go through the runtime library. So a thread that has called the
runtime has one, and a thread that has not, such as a fresh one of a server's pool, gets one before it first calls the driver.
"""

from __future__ import annotations

import threading
from ctypes import byref, c_int, c_void_p

import torch

from treeplay.device.cuda.nodes.calls import call, current_context
from treeplay.torch_seam import allocator


class Here(threading.local):
    """Reading `has_context` makes sure that this thread has a context; after the first time that is one look-up."""

    def __getattr__(self, name: str) -> bool:
        if name != "has_context":
            raise AttributeError(name)
        if not current_context():
            make_current()
        self.has_context = True
        return True


here = Here()


def make_current() -> None:
    """Give a thread without a context one: one that exists, if there is any. The current device, as torch tells it, stays the
    same one."""
    index = torch.cuda.current_device()
    if allocator.has_context(index):
        _make_primary_current(index)
        return
    # A recording on another device: torch makes that one's current, and remembers which device the thread is on.
    other = next((at for at in range(torch.cuda.device_count()) if allocator.has_context(at)), None)
    if other is None:
        torch.cuda.Stream(device=index)  # nothing has used a GPU yet: torch makes the device's context with its streams
        _make_primary_current(index)
        return
    with torch.cuda.device(other):
        if not current_context():
            _make_primary_current(other)


def _make_primary_current(index: int) -> None:
    device, context = c_int(), c_void_p()
    call("cuDeviceGet", byref(device), index)
    call("cuDevicePrimaryCtxRetain", byref(context), device)
    try:
        call("cuCtxSetCurrent", context)
    finally:
        call("cuDevicePrimaryCtxRelease_v2", device)  # the runtime library holds it too
