"""Errors that mean a broken capture are told apart from the program's own. Needs no GPU."""

from __future__ import annotations

import pytest
import torch

from treeplay import CaptureFailed, UsageError
from treeplay.device.cuda.broken import broken_capture, explained_end, worked_elsewhere


def raised(error: BaseException, call: object = None) -> BaseException:
    def item() -> None:
        raise error

    try:
        item()
    except BaseException as caught:
        return caught
    raise AssertionError


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("CUDA error: operation not permitted when stream is capturing", "waits for the device on the host"),
        ("CUDA error: operation failed due to a previous error during capture", "an operation before this one"),
        ("CUDA error: capturing stream has unjoined work", "left unjoined"),
        (
            "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned.",
            "pageable",
        ),
        ("Attempt to increase offset for a CUDA generator not in capture mode.", "generator `generator`, which is not"),
        ("Something new that is forbidden during CUDA graph capture", "does what a capture forbids"),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "makes a library's handle"),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "makes a library's handle"),
        ("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`", "library's handle"),
    ],
)
def test_cudas_texts_are_put_into_the_users_terms(text: str, why: str) -> None:
    failure = broken_capture(raised(RuntimeError(text)))
    assert isinstance(failure, CaptureFailed) and why in failure.reason.why
    assert failure.where is not None and failure.where.file == __file__
    assert explained_end(RuntimeError(text)).op == "capture"


def test_codes_are_known_where_texts_are_not() -> None:
    error = RuntimeError("CUDA error: etwas anderes")
    assert broken_capture(error) is None
    error.error_code = 905
    assert "905" in broken_capture(error).reason.why


@pytest.mark.parametrize(
    "error",
    [
        KeyError("stream is capturing"),
        RuntimeError("shapes do not match"),
        torch.OutOfMemoryError("CUDA out of memory (graph capture)"),
        UsageError("this thread is capturing already: stream is capturing"),
        KeyboardInterrupt(),
    ],
)
def test_the_programs_own_errors_are_left_alone(error: BaseException) -> None:
    assert broken_capture(raised(error)) is None


def test_both_devices_are_named() -> None:
    failure = worked_elsewhere(0, [1, 3])
    assert "capture is of cuda:0" in str(failure) and "tensors of cuda:1, cuda:3" in str(failure)
