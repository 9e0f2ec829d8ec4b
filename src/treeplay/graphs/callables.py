"""`make_graphed_callables`: modules and functions that replay forward and backward instead of running.

    callables, samples ─ check ─▶ requests ─ place ─▶ bodies ─ warm up ─ record ─▶ recordings ─ commit ─▶ graphed callables

Until the last step nothing that the caller can see has changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.device.turns import turns
from treeplay.errors import CaptureFailed, TreeplayError, UsageError
from treeplay.graphs.body import Body, CallableModes
from treeplay.graphs.buffers import Claims, claim, own_copy
from treeplay.graphs.contract import Contract, Keywords, take_keywords
from treeplay.graphs.order import order_of
from treeplay.graphs.original import KeyState, Original
from treeplay.graphs.pools import checked_pool, graph_pool_handle
from treeplay.graphs.preflight import (
    Request,
    check_autocast,
    check_choice,
    check_count,
    check_request,
    common_device,
    take_requests,
)
from treeplay.graphs.record import EagerBody, Manner, record_all
from treeplay.graphs.recorded import GradientsGiven, Outputs, RecordedBody
from treeplay.graphs.roster import Roster
from treeplay.graphs.warmup import warm_up
from treeplay.graphs.wrapped import GraphedCallable, OnMismatch, original_of, own_forward
from treeplay.sandbox.boundary import Boundary
from treeplay.settings import settings
from treeplay.values.flatten import flatten
from treeplay.values.unflatten import unflatten


@dataclass(frozen=True, slots=True)
class CallableOptions:
    """How the caller wants it."""

    warmup: int
    allow_unused: bool
    pool: Any
    outputs: Outputs
    gradients: GradientsGiven
    on_mismatch: OnMismatch

    def check(self) -> None:
        """Raise for a value that does not exist."""
        checked_pool(self.pool)
        check_count("num_warmup_iters", self.warmup)
        check_choice("outputs", self.outputs, ("copy", "alias", "guard"))
        check_choice("gradients", self.gradients, ("copy", "alias"))
        check_choice("on_mismatch", self.on_mismatch, ("raise", "eager"))


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Any = None,
    *,
    sample_kwargs: Any = None,
    outputs: Outputs = "copy",
    gradients: GradientsGiven = "copy",
    on_mismatch: OnMismatch = "raise",
) -> Any:
    """Record one callable, or a tuple of them, and return what replays it in its place.

    Drop-in for `torch.cuda.make_graphed_callables`, on CPU too. A module is changed in place and returned; a function gives a
    new callable. Each sample is a tuple of tensors, possibly nested; it sets structure, shapes, dtypes and `requires_grad` of
    later arguments and is itself their static buffer. A call with other keyword constants is recorded when it first comes.

    `outputs`: "copy" gives results memory of their own; "alias" gives the static memory, which the next call overwrites;
    "guard" does too, and raises `StaleOutput` on use after that. `gradients="alias"` hands out static gradients: unsafe,
    because the next backward may overwrite a `.grad`. `on_mismatch="eager"` runs the original where a call does not fit.

    Where treeplay is switched off (`settings.enabled`), the callables are returned as they are.

    Raises `UsageError` and its kin before any effect for what cannot be recorded, what the callables raise as it is, and
    `InternalError` for an error of ours.
    """
    options = CallableOptions(num_warmup_iters, allow_unused_input, pool, outputs, gradients, on_mismatch)
    options.check()
    if not settings.enabled:
        return callables
    if turns.is_mine:
        raise UsageError(
            "callables were to be recorded inside of a capture, and captures do not nest: wrap them before it"
        )
    requests = take_requests(callables, sample_args, sample_kwargs)
    for request in requests:
        check_request(request)
    device = common_device(requests)
    check_autocast(device)
    with Boundary("recording callables", reasons=(TreeplayError,)):
        made = _make(requests, device, options)
    return tuple(made) if isinstance(callables, tuple) else made[0]


def _make(requests: Sequence[Request], device: torch.device, options: CallableOptions) -> list[Any]:
    modes = CallableModes.now(device)
    with torch.inference_mode(False), torch.set_grad_enabled(modes.has_gradients):
        originals = [_original(request, modes) for request in requests]
        claims = Claims(tensor for original in originals for tensor in original.roster.tensors)
        bodies = [
            _body(request, original, claims, options) for request, original in zip(requests, originals, strict=True)
        ]
        entries = _record(bodies, [_contract(request) for request in requests], device, options)
    graphed = [_graphed(original, options) for original in originals]
    for item, (keywords, _), entry in zip(graphed, map(_contract, requests), entries, strict=True):
        item.adopt(keywords.key, entry)
    return [_commit(request, item) for request, item in zip(requests, graphed, strict=True)]


def _original(request: Request, modes: CallableModes) -> Original:
    module, modules = request.module, request.modules
    # The graphed callable becomes an attribute of the module, so it must not keep it.
    seen: list[Any] = [weakref.proxy(part) if part is module else part for part in modules]
    return Original(
        label=request.label,
        function=original_of(request.function) if module is None else own_forward(module),
        module_of=weakref.ref(module) if module is not None else None,
        roster=Roster(seen),
        is_training=[part.training for part in modules],
        modes=modes,
    )


def _contract(request: Request) -> tuple[Keywords, Contract]:
    keywords = take_keywords(request.kwargs)
    return keywords, Contract.of(request.args, keywords)


def _body(request: Request, original: Original, claims: Claims, options: CallableOptions) -> Body:
    keywords, contract = _contract(request)
    samples = [*flatten(request.args)[0], *keywords.tensors]
    return _body_over(original, claims.place(samples), contract, request.args, request.kwargs, options)


def _body_over(
    original: Original,
    inputs: Sequence[torch.Tensor],
    contract: Contract,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CallableOptions,
) -> Body:
    module = original.module
    return Body(
        label=original.label,
        function=original.function,
        arguments=_arranger(args, kwargs),
        inputs=tuple(inputs),
        paths=tuple(item.path for item in contract.expected),
        parameters=tuple(module.named_parameters()) if module is not None else (),
        roster=original.roster,
        modes=original.modes,
        allow_unused=options.allow_unused,
    )


def _arranger(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Sequence[torch.Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]:
    """Puts tensors where those of `args` and `kwargs` stand; constants stay."""
    leaves, structure = flatten((args, {name: kwargs[name] for name in sorted(kwargs)}))
    constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def arrange(tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        filled = list(constants)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        arranged: tuple[tuple[Any, ...], dict[str, Any]] = unflatten(structure, filled)
        return arranged

    return arrange


def _record(
    bodies: Sequence[Body],
    contracts: Sequence[tuple[Keywords, Contract]],
    device: torch.device,
    options: CallableOptions,
) -> list[KeyState]:
    warm_up(bodies, options.warmup, device)
    made = record_all(bodies, _manner(device, options))
    return [
        KeyState(contract, _roster_of(body, recorded), recorded)
        for body, (_, contract), recorded in zip(bodies, contracts, made, strict=True)
    ]


def _manner(device: torch.device, options: CallableOptions) -> Manner:
    pool = options.pool if options.pool is not None else graph_pool_handle(device)
    order = order_of(pool, device)
    return Manner(device, pool, order, options.outputs, options.gradients)


def _roster_of(body: Body, recorded: RecordedBody | EagerBody) -> Roster:
    """The body's state, with the tensors that only its history told of."""
    if isinstance(recorded, EagerBody):
        return body.roster
    claim(recorded.forward.inputs)
    known = {id(tensor) for tensor in body.roster.tensors}
    found = recorded.backward.parameters if recorded.backward is not None else ()
    further = {
        f"a tensor of shape {tuple(item.shape)} ({index})": item
        for index, item in enumerate(found)
        if id(item) not in known
    }
    return body.roster.with_tensors(further) if further else body.roster


def _graphed(original: Original, options: CallableOptions) -> GraphedCallable:
    def record(args: tuple[Any, ...], keywords: Keywords, kwargs: dict[str, Any], *, may_fail: bool) -> KeyState:
        contract = Contract.of(args, keywords)
        samples = [*flatten(args)[0], *keywords.tensors]
        with torch.inference_mode(False), torch.set_grad_enabled(original.modes.has_gradients):
            inputs = [own_copy(sample) for sample in samples]
            body = _body_over(original, inputs, contract, args, kwargs, options)
            try:
                return _record([body], [(keywords, contract)], original.modes.device, options)[0]
            except CaptureFailed as error:
                if not may_fail:
                    raise
                return KeyState(contract, original.roster, EagerBody(str(error)))

    return GraphedCallable(original, record, outputs=options.outputs, on_mismatch=options.on_mismatch)


def _commit(request: Request, graphed: GraphedCallable) -> Any:
    if request.module is None:
        return graphed
    request.module.forward = graphed
    return request.module
