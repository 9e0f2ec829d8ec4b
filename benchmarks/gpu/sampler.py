"""The most memory of a GPU that was in use while something ran, as the driver's management library counts it.

Torch counts addresses as memory, and does not count what others make; this counts what lies on the device. A process of its own
asks, so that it waits for nobody's interpreter: `python -m benchmarks.gpu.sampler UUID` prints the most that it saw, in bytes,
each time a line comes in, and begins anew.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from ctypes import CDLL, Structure, byref, c_char_p, c_ulonglong, c_void_p
from types import TracebackType


class _Memory(Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class MemorySampler:
    """A context in which `most` tells how many bytes of a GPU were in use at most since it was last called."""

    def __init__(self, uuid: str) -> None:
        self._command = [sys.executable, "-m", "benchmarks.gpu.sampler", f"GPU-{uuid}"]

    def __enter__(self) -> MemorySampler:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.most()
        return self

    def most(self) -> int:
        """Bytes of the whole device, by whatever process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()


def main() -> None:
    library = CDLL("libnvidia-ml.so.1")
    handle, memory = c_void_p(), _Memory()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(c_char_p(sys.argv[1].encode()), byref(handle)):
        raise SystemExit("the GPU cannot be asked")
    most, asked = 0, threading.Event()
    is_over = False

    def listen() -> None:
        nonlocal is_over
        for _ in sys.stdin:
            asked.set()
        is_over = True

    threading.Thread(target=listen, daemon=True).start()
    while not is_over:
        if library.nvmlDeviceGetMemoryInfo(handle, byref(memory)):
            raise SystemExit("the GPU cannot be asked")
        most = max(most, int(memory.used))
        if asked.wait(0.0005):
            asked.clear()
            print(most, flush=True)
            most = 0


if __name__ == "__main__":
    main()
