"""A differentiable program → a boxed function of its tensors that acts like it, autograd node and all.

trace's signature, program ─ rerun ▶ flat function ─ wrap ▶ boxed call, backward compiled when it is first needed
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.codegen import Source
from treeplay.errors import Refusal
from treeplay.guards.reads.reads import Reads
from treeplay.torch_seam import dynamo
from treeplay.trace.call import Call, home_of
from treeplay.trace.rerun import Rerun
from treeplay.trace.signature.make import has_symbol
from treeplay.values.launch import LaunchFacts
from treeplay.values.refusal import Reason
from treeplay.values.signature import Constant, Input, Number, Signature, Watch
from treeplay.wrap.ambience import Ambience
from treeplay.wrap.apart import SharingCheck
from treeplay.wrap.emit import CallParts, emit_recording_call
from treeplay.wrap.of_signature import checked_tensors, with_classes
from treeplay.wrap.take_back import TakeBack

Wrap = Callable[[Callable[..., Any], Sequence[torch.Tensor], str, Sequence[Input]], Any]
"""`wrap(flat function, sample inputs, lowering, what the inputs are)` gives a boxed callable with `.sources`, `.plan` and
`.backward`, and with `.launch_facts` and `.plain_calls` if it is compiled."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wrapped:
    """What a call runs, the text of the functions that were generated for it, and what became of its backward.

    `launch` tells how a device launches the forward, None on the host; `plain_calls`: those that launched nothing.
    """

    run: Callable[[list[Any]], list[Any]]
    sources: tuple[str, ...]
    backward: Callable[[], str]
    launch: Callable[[], LaunchFacts | None]
    plain_calls: Callable[[], Counter[str]]
    compile: Callable[[], None] | None = None  # before which nobody may call it, if there is one


def of_tensors_only(
    signature: Signature, call: Call, tensors: Sequence[torch.Tensor]
) -> tuple[Signature, tuple[torch.Tensor, ...]]:
    """The signature and the tensors of a program that is run again to be wrapped.

    It makes its constants itself; hyper-parameters that it uses are conditions, and so is being a leaf of autograd or not.
    """
    kept = [
        (dataclasses.replace(item, is_leaf=_is_leaf(tensor)), tensor)
        for item, tensor in zip(signature.inputs, tensors, strict=True)
        if not isinstance(item.source, Constant)
    ]
    unused = tuple(number for number in signature.numbers if not _is_used(number, signature))
    watches = tuple(Watch(number.place, number.value) for number in signature.numbers if number not in unused)
    inputs = tuple(item for item, _ in kept)
    signature = dataclasses.replace(
        signature, inputs=inputs, numbers=unused, guards=(), watches=(*signature.watches, *watches)
    )
    found = tuple(tensor for _, tensor in kept)
    return with_classes(signature, call, found), found


def _is_used(number: Number, signature: Signature) -> bool:
    """Whether the run has computed or branched with a number."""
    return number.is_input or any(has_symbol(guard.expression, number.name) for guard in signature.guards)


def _is_leaf(tensor: torch.Tensor) -> bool | None:
    """Whether a tensor that needs a gradient is a leaf; None where it can be nothing else."""
    return tensor.is_leaf if tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter) else None


def wrap_program(
    program: Callable[..., Any],
    call: Call,
    signature: Signature,
    tensors: Sequence[torch.Tensor],
    wrap: Wrap,
    *,
    lowering: str,
    reads: Reads | None,
) -> Wrapped:
    """Wrap `program` for calls like `call`; `tensors` are what the inputs of `signature` stand for today, `reads` what the
    trace read.

    No tensor is written. Raises `Refusal`, with a line of the user's where one is known.
    """
    rerun = Rerun(program, call, signature, tensors, reads)
    try:
        with rerun.ready(is_exact=lowering == "aten"):
            run = wrap(rerun, tensors, lowering, signature.inputs)
    except Refusal as refusal:
        if refusal.where is not None:
            raise
        raise Refusal(_at_home(refusal.reason, program)) from refusal
    launch, plain_calls = getattr(run, "launch_facts", lambda: None), getattr(run, "plain_calls", Counter)
    return Wrapped(run, run.sources, lambda: _account(run), launch, plain_calls, getattr(run, "compile", None))


def emit_around(
    signature: Signature,
    call: Call,
    tensors: Sequence[torch.Tensor],
    wrapped: Wrapped,
    *,
    name: str,
    back: TakeBack | None,
) -> Source:
    """The call function: conditions, the wrapped call, slots and results."""
    checked = checked_tensors(signature, call, tensors)
    parts = CallParts(
        run=wrapped.run,
        check=dynamo.tensor_check(checked) if checked else None,
        is_apart=SharingCheck.of(signature, tensors, is_compiled=True),
        back=back,
    )
    return emit_recording_call(signature, Ambience.now(), parts, name=f"call {name}")


def _at_home(reason: Reason, program: Callable[..., Any]) -> Reason:
    return dataclasses.replace(reason, where=home_of(program))


def _account(run: Any) -> str:
    """Whether the backward was compiled, and what it gives gradients to."""
    node = run.plan.node
    if node is None:
        return "no input needs a gradient"
    given = sum(feed is not None for feed in node.feeds)
    state = "compiled" if run.backward.is_compiled else "not asked for yet"
    return f"{state}; gradients for {given} of {len(node.feeds)} tensors, {node.saved} tensors saved"
