"""Checks before anything is warmed up or recorded: a refusal here has no effect at all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.errors import ArgumentError, ArgumentTypeError, UsageError
from treeplay.graphs.roster import check_memory
from treeplay.torch_seam.layers import MODULE_HOOKS
from treeplay.torch_seam.modes import is_traceable_wrapper_subclass
from treeplay.values.flatten import flatten
from treeplay.values.structure import paths


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One callable with its samples; `path` is where in the caller's arguments the samples stand."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    path: str

    @property
    def module(self) -> torch.nn.Module | None:
        """The callable if it is a module."""
        return self.function if isinstance(self.function, torch.nn.Module) else None

    @property
    def label(self) -> str:
        """A name for messages."""
        if self.module is not None:
            return type(self.module).__name__
        return getattr(self.function, "__qualname__", None) or type(self.function).__name__

    @property
    def samples(self) -> list[torch.Tensor]:
        """The sample tensors, those of keywords last."""
        return [leaf for leaf in [*flatten(self.args)[0], *flatten(self.kwargs)[0]] if isinstance(leaf, torch.Tensor)]

    @property
    def modules(self) -> list[torch.nn.Module]:
        """The modules that the callable is, belongs to or closes over."""
        return list(dict.fromkeys(_modules_of(self.function)))


def take_requests(callables: Any, sample_args: Any, sample_kwargs: Any) -> list[Request]:
    """One request per callable. Raises for a number of samples or a type that does not fit."""
    if not isinstance(callables, tuple):
        return [_request(callables, sample_args, sample_kwargs, "")]
    if not isinstance(sample_args, tuple) or not isinstance(sample_kwargs, (tuple, type(None))):
        raise ArgumentTypeError("sample_args, sample_kwargs: expected a tuple with an item for each of the callables")
    given_kwargs = (None,) * len(callables) if sample_kwargs is None else sample_kwargs
    for name, given in (("sample_args", sample_args), ("sample_kwargs", given_kwargs)):
        if len(given) != len(callables):
            raise ArgumentError(f"{name}: expected one item for each of {len(callables)} callables, found {len(given)}")
    triples = zip(callables, sample_args, given_kwargs, strict=True)
    requests = [_request(*triple, f"[{index}]") for index, triple in enumerate(triples)]
    _check_distinct(requests)
    return requests


def check_request(request: Request) -> None:
    """Raise for a callable or samples that cannot be recorded as they are."""
    _check_leaves(request)
    if request.module is not None:
        _check_module(request.module, request.label)
    check_memory(request.modules)


def check_autocast(device: torch.device) -> None:
    """Raise `UsageError` if autocast would cache casts, which a recording must not share with eager code."""
    if torch.is_autocast_enabled(device.type) and torch.is_autocast_cache_enabled():
        raise UsageError(
            "autocast is on with its cache of weights: a cast made before the recording would be missing from it. Switch the "
            f"cache off: torch.autocast({device.type!r}, cache_enabled=False)"
        )


def check_choice(name: str, value: Any, allowed: Sequence[str]) -> None:
    """`ArgumentError` for anything but one of the allowed words."""
    if value not in allowed:
        raise ArgumentError(f"{name}: expected one of {', '.join(map(repr, allowed))}, found {value!r}")


def check_count(name: str, value: Any) -> None:
    """Raise for anything but a whole number that is not negative."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentTypeError(f"{name}: expected an int, found {type(value).__name__}")
    if value < 0:
        raise ArgumentError(f"{name}: expected at least 0, found {value}")


def common_device(requests: Sequence[Request]) -> torch.device:
    """The device of all samples and of the state that the callables reach."""
    found: dict[torch.device, str] = {}
    for request in requests:
        for sample in request.samples:
            found.setdefault(sample.device, f"a sample of {request.label}")
        for module in request.modules:
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                found.setdefault(tensor.device, f"{name} of {request.label}")
    if len(found) > 1:
        parts = ", ".join(f"{what} on {device}" for device, what in found.items())
        raise UsageError(f"a recording is of one device, found {parts}: wrap the parts on each device by themselves")
    device = next(iter(found), torch.get_default_device())
    if device.type not in ("cpu", "cuda"):
        raise ArgumentError(f"recordings are made on cpu and cuda, found tensors on {device}")
    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


def _request(function: Any, args: Any, kwargs: Any, index: str) -> Request:
    if not callable(function):
        raise ArgumentTypeError(f"callables{index}: expected a module or a function, found {type(function).__name__}")
    if not isinstance(args, tuple):
        raise ArgumentTypeError(f"sample_args{index}: expected a tuple of arguments, found {type(args).__name__}")
    if not isinstance(kwargs, (dict, type(None))):
        raise ArgumentTypeError(f"sample_kwargs{index}: expected a dict of arguments, found {type(kwargs).__name__}")
    return Request(function, args, dict(kwargs or {}), f"sample_args{index}")


def _check_distinct(requests: Sequence[Request]) -> None:
    seen: dict[int, int] = {}
    for index, request in enumerate(requests):
        if request.module is None:
            continue
        first = seen.setdefault(id(request.module), index)
        if first != index:
            raise ArgumentError(
                f"callables[{index}]: the module of callables[{first}] again; a module has one forward. Wrap a function that "
                "calls it for other samples"
            )


def _check_leaves(request: Request) -> None:
    leaves, structure = flatten(request.args)
    for path, leaf in zip(paths(structure, request.path), leaves, strict=True):
        if not isinstance(leaf, torch.Tensor):
            raise ArgumentTypeError(
                f"{path}: expected a tensor, found {leaf!r:.60} ({type(leaf).__name__}); give constants by keyword"
            )
    for sample in request.samples:
        if sample.layout is not torch.strided:
            raise ArgumentTypeError(f"{request.path}: a recording reads strided memory, found layout {sample.layout}")
        if is_traceable_wrapper_subclass(sample):
            raise ArgumentTypeError(
                f"{request.path}: a {type(sample).__name__} has no memory of its own to be read from"
            )


def _check_module(module: torch.nn.Module, label: str) -> None:
    hooks = [name.removeprefix("_") for name in MODULE_HOOKS if getattr(module, name, None)]
    if hooks:
        raise UsageError(
            f"{label} has {', '.join(hooks)}: a replay would not run them. Remove them, or register them after wrapping: then "
            "they run on each call, around the replay"
        )
    needy = [name for name, buffer in module.named_buffers() if buffer.requires_grad]
    if needy:
        raise UsageError(
            f"{label} has buffers that require a gradient ({', '.join(needy)}), and only parameters and arguments get one: "
            "make them parameters, or switch requires_grad off"
        )


def _modules_of(function: Any) -> Iterator[torch.nn.Module]:
    if isinstance(function, torch.nn.Module):
        yield function
    elif isinstance(function, functools.partial):
        for part in (function.func, *function.args, *function.keywords.values()):
            yield from _modules_of(part)
    elif callable(function):
        yield from _modules_around(function)


def _modules_around(function: Any) -> Iterator[torch.nn.Module]:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        yield owner
    for cell in getattr(function, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not yet filled
            continue
        if isinstance(content, torch.nn.Module):
            yield content
