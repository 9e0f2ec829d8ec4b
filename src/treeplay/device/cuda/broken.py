"""Tells whether an error means that CUDA refused to capture something, and says it in the user's terms."""

from __future__ import annotations

import torch

from treeplay.errors import CaptureFailed, TreeplayError
from treeplay.observe.lines import failed_call

# The runtime's codes for broken captures; `torch.AcceleratorError` carries them.
# From cudaErrorStreamCaptureUnsupported to cudaErrorStreamCaptureWrongThread.
_UNSUPPORTED, _LAST_CODE = 900, 908

_WAITS = "return the tensor and read it after the replay; decide on the device (`torch.where`)"
_PINNED = "pin the host tensor (`pin_memory()`) and copy with `non_blocking=True`, or copy before the capture"
_STREAMS = "make the side stream wait for the capture's before its work, and the capture's wait for it afterwards"
_WARM = "run the same work once, eagerly, before capturing it, so that libraries have made what they need"
_GENERATOR = "make it before the capture, and call `register_generator_state` on the graph"
_ANY = "move it out of the captured code"

# Texts that mean a broken capture, wherever they come from: what happened, what to do.
_TEXTS: tuple[tuple[str, str, str], ...] = (
    ("during CUDA graph capture unless the CPU tensor is pinned", "copies from or to pageable host memory", _PINNED),
    ("unjoined work", "a side stream was left unjoined: work forked to it was not joined before the end", _STREAMS),
    ("uncaptured work in another stream", "waits for work of another stream that is not captured", _STREAMS),
    ("merge of separate capture", "would join two captures into one", _STREAMS),
    ("legacy stream depend", "works on the default stream, which a capture excludes", _STREAMS),
    ("last recorded in a capturing stream", "reads an event that was recorded inside of the capture", _WAITS),
    ("previous error during capture", "an operation before this one broke the capture", _ANY),
    (
        "not permitted when stream is capturing",
        "waits for the device on the host, or does what a capture forbids",
        _WAITS,
    ),
    (
        "increase offset for a CUDA generator not in capture mode",
        "draws from the generator `{generator}`, which is not registered on the recording",
        "call `register_generator_state({generator})` on the graph before the capture begins",
    ),
    (
        "construct a new CUDAGeneratorImpl",
        "makes or uses a random generator that the recording does not know",
        _GENERATOR,
    ),
    ("CUBLAS_STATUS_NOT_INITIALIZED", "makes a library's handle, which a capture forbids", _WARM),
    ("CUBLAS_STATUS_ALLOC_FAILED", "makes a library's handle, which a capture forbids", _WARM),
    ("DEVICE_ALLOCATION_FAILED", "makes a library's handle, which a capture forbids", _WARM),  # cuDNN
    ("cusolverDnCreate", "makes a library's handle, which a capture forbids", _WARM),
    ("cusparseCreate", "makes a library's handle, which a capture forbids", _WARM),
    ("stream is capturing", "does what a capture forbids", _ANY),
    ("graph capture", "does what a capture forbids", _ANY),
)


def broken_capture(error: BaseException) -> CaptureFailed | None:
    """`error` as a broken capture, with the operation and the user's line if they are known; None if it is none."""
    found = _meaning(error)
    if found is None:
        return None
    call = failed_call(error.__traceback__)
    generator = call.keyword("generator") or "generator"
    why, advice = (text.replace("{generator}", generator) for text in found)
    return CaptureFailed.of(call.name or "an operation", why, advice, call.where)


def explained_end(error: BaseException) -> CaptureFailed | None:
    """The same for an error at the end of a capture, where no line of the user's is to blame."""
    found = _meaning(error)
    return CaptureFailed.of("capture", *found) if found else None


def worked_elsewhere(captured: int, others: list[int]) -> CaptureFailed:
    """Nothing was captured on one device, and meanwhile there was work on others."""
    names = ", ".join(f"cuda:{index}" for index in others)
    return CaptureFailed.of(
        "capture",
        f"the capture is of cuda:{captured} and stayed empty, while the code worked on tensors of {names}",
        f"capture on {names} (`device=`), or move the tensors to cuda:{captured}",
    )


def _meaning(error: BaseException) -> tuple[str, str] | None:
    if not isinstance(error, RuntimeError) or isinstance(error, (TreeplayError, torch.OutOfMemoryError)):
        return None
    text = str(error)
    # The first that occurs counts: the general ones stand last.
    for part, why, advice in _TEXTS:
        if part in text:
            return why, advice
    code = getattr(error, "error_code", None)
    if isinstance(code, int) and _UNSUPPORTED <= code <= _LAST_CODE:
        return f"does what a capture forbids (CUDA error {code})", _ANY
    return None
