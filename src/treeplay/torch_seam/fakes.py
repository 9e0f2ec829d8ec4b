"""Tensors without data: fakes, functional tensors and the views they remember."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException
from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.fake_tensor import UnsupportedOperatorException as UnsupportedOperatorException
from torch._subclasses.fake_tensor import in_kernel_invocation_manager
from torch._subclasses.functional_tensor import FunctionalTensor, disable_functional_mode
from torch.utils._python_dispatch import _disable_current_modes

from treeplay.torch_seam.modes import is_wrapper
from treeplay.torch_seam.schemas import leaves_of

_is_quiet = ContextVar("rules fail quietly", default=False)
fake_tensor.log.addFilter(lambda _: not _is_quiet.get())


@functools.cache
def hold_device_guard() -> None:
    """Have torch's stand-in for the devices of a CUDA build without a device live as long as the process.

    The first fake mode that is entered makes it, an object of the thread that enters, and all threads use it from then on.
    After the end of that thread, the next mode reads memory that is freed, and the process dies. So a thread that does not end
    makes it.
    """
    make = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if make is None or not torch.backends.cuda.is_built() or torch.cuda.is_available():
        return
    if threading.current_thread() is threading.main_thread():
        make()
        return
    is_made = threading.Event()
    errors: list[BaseException] = []

    def hold() -> None:
        try:
            make()
        except BaseException as error:
            errors.append(error)
            return
        finally:
            is_made.set()
        threading.Event().wait()

    threading.Thread(target=hold, name="treeplay holds a device guard", daemon=True).start()
    is_made.wait()
    if errors:
        raise errors[0]


def fake_mode_of(values: Sequence[Any]) -> FakeTensorMode | None:
    """The fake mode that some of `values` are fakes of, or that is active."""
    found: FakeTensorMode | None = detect_fake_mode(list(values))
    return found


def new_fake_mode(**options: Any) -> FakeTensorMode:
    """A fake mode for sizes that are known, with `options` of its shape environment. Inductor's cache passes by graphs whose
    mode has none."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # which imports sympy: half a second

    return FakeTensorMode(shape_env=ShapeEnv(**options))


@contextlib.contextmanager
def rule_of(mode: FakeTensorMode, args: Any, kwargs: Any) -> Iterator[None]:
    """The block in which torch's rule for an operator on fakes is asked: an error of the rule comes out, and is not logged as
    well. What the rule gave before is looked up by the arguments, among which scripted objects cannot be compared."""
    kept: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if any(isinstance(leaf, torch.ScriptObject) for leaf in leaves_of((args, kwargs))):
        kept = fake_tensor.disable_fake_tensor_cache(mode)
    with kept, mode, rules_fail_quietly():
        yield


def ask_rules_anew(mode: FakeTensorMode | None) -> None:
    """From here on, no rule's answer to a question like one before is taken for an answer: what it is taken by tells shapes and
    the like, and not whether a tensor is zeros without memory."""
    if mode is not None:
        mode.cache_enabled = False


@contextlib.contextmanager
def rules_fail_quietly() -> Iterator[None]:
    """The block, in this thread, in which torch logs no traceback where a rule for operators on fakes raises."""
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)


def attributes_given_to(tensor: torch.Tensor) -> list[str]:
    """The names of what somebody has put on a tensor, which may be a fake; but for what only tells Dynamo something."""
    own = _names_of_fakes() if isinstance(tensor, FakeTensor) else ()
    return [name for name in vars(tensor) if name not in own and not name.startswith("_dynamo_")]


@functools.cache
def _names_of_fakes() -> frozenset[str]:
    """What a fake has by itself."""
    return frozenset(vars(new_fake(FakeTensorMode(), (1,), (1,), torch.float32, torch.device("cpu"))))


def memory_like(tensor: torch.Tensor) -> torch.Tensor:
    """As much memory without data as the storage of `tensor` has, of the same dtype: for `fake_over`."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return torch.empty(
            tensor.untyped_storage().nbytes() // tensor.dtype.itemsize, dtype=tensor.dtype, device="meta"
        )


def fake_over(memory: torch.Tensor, mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A fake that lies in `memory` as `tensor` lies in its storage. Made by hand: through the mode, each of a step's thousand
    would take several times as long."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        view = torch.as_strided(memory, tensor.shape, tensor.stride(), tensor.storage_offset())
        return FakeTensor(mode, view, tensor.device)


def new_fake(
    mode: FakeTensorMode, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A fake in memory of its own, made by hand as well."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        memory = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        return FakeTensor(mode, memory, device)


def view_fake(mode: FakeTensorMode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operator of `PLAIN_VIEWS` gives for a fake: a view, or several. Their kernels look at no data, and are the same
    for all devices."""
    device = device_of(args[0])
    with in_kernel_invocation_manager(mode), torch._C.DisableTorchFunction():
        out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            return FakeTensor(mode, out, device)
        return type(out)([FakeTensor(mode, view, device) for view in out])


_aten = torch.ops.aten
PLAIN_VIEWS = frozenset(
    (
        _aten.view.default,
        _aten._unsafe_view.default,
        _aten.t.default,
        _aten.transpose.int,
        _aten.permute.default,
        _aten.expand.default,
        _aten.detach.default,
        _aten.alias.default,
        _aten.unsqueeze.default,
        _aten.squeeze.dim,
        _aten.slice.Tensor,
        _aten.select.int,
        _aten.split.Tensor,
        _aten.split_with_sizes.default,
        _aten.unbind.int,
    )
)


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device of a tensor. To ask a fake for it takes as long as an operator does."""
    return tensor.fake_device if type(tensor) is FakeTensor else tensor.device


def is_real(value: Any) -> bool:
    """Whether a value is a tensor with data."""
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)


CLASSES_WITHOUT_DATA = (FakeTensor, FunctionalTensor)


def is_without_data(value: Any) -> bool:
    """Whether a value is a fake, or a traced tensor that holds one."""
    return isinstance(value, CLASSES_WITHOUT_DATA)


def mode_of_fake(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """While this lasts, what is made is as fake as `tensor`; for a tensor with data, nothing changes."""
    return tensor.fake_mode if isinstance(tensor, FakeTensor) else contextlib.nullcontext()


def is_reshaped(value: Any) -> bool:
    """Whether the shape of a traced tensor, or of one that it is made of, was ever changed in place."""
    if is_wrapper(value):
        return any(is_reshaped(getattr(value, name)) for name in value.__tensor_flatten__()[0])
    return isinstance(value, FunctionalTensor) and bool(torch._functionalize_has_metadata_mutation(value.elem))


def is_outgrown(value: Any) -> bool:
    """Whether a traced tensor, or one of several, still shows the size that it had before an operator resized it."""
    values = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(item, FunctionalTensor) and item.size() != item.elem.size() for item in values)


def view_steps(value: Any) -> list[Any] | None:
    """The steps by which a traced tensor is taken from the argument or the new tensor that it lies in."""
    if not isinstance(value, FunctionalTensor):
        return None
    steps: list[Any] = torch._C._functionalization.get_view_meta_sequence(value.elem)
    return steps


apply_views = torch._C._functionalization.apply_view_meta_sequence


def waited(value: Any) -> Any:
    """A tensor that is still on its way from other processes is waited for."""
    collectives = sys.modules.get("torch.distributed._functional_collectives")
    if collectives is not None and isinstance(value, collectives.AsyncCollectiveTensor):
        return value.trigger_wait()
    return value


def traced_stride(target: Any) -> tuple[int, ...] | None:
    """The strides of what a traced tensor stands for now; None for another tensor."""
    if not isinstance(target, FunctionalTensor):
        return None
    with disable_functional_mode():
        found: Any = target
        return tuple(found.from_functional().stride())


def lay_traced(target: Any, stride: Sequence[int]) -> None:
    """Let a traced tensor lie with these strides from here on; what it holds stays."""
    with torch.no_grad():
        laid: Any = torch.empty_strided(target.size(), stride, dtype=target.dtype, device=target.device).copy_(target)
    with disable_functional_mode():
        target.replace_(laid.from_functional())
        target.commit_update()
        target.sync()


@contextlib.contextmanager
def without_data(values: Sequence[Any]) -> Iterator[list[Any]]:
    """Tensors that are like `values` and of which nothing is traced, for the time of a block; other values as they are."""

    def like(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")

    with _disable_current_modes(), torch.no_grad():
        yield list(map(like, values))


def has_data(tensor: torch.Tensor) -> bool:
    """Whether a tensor has elements that lie at an address."""
    is_made_up = isinstance(tensor, FakeTensor | FunctionalTensor) or tensor.is_meta
    return not is_made_up and tensor.layout is torch.strided and tensor.numel() > 0
