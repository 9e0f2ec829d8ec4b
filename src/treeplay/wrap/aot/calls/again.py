"""Gradients that are computed from the inputs again, made when they are first asked for: a backward that autograd can go on
from, and one under autocast.

    torch.autograd.grad(program(x), x, create_graph=True)
      └─ node's backward, gradients on ─▶ Again ─▶ the wrapped form of
             (inputs, gradients of results) ─▶ program(inputs) ─▶ torch.autograd.grad ─▶ gradients of inputs

The compiled backward takes what the forward saved as constants, so nothing leads on from it. Here the program is traced once
more, with its gradients as results, and wrapped like any other: forward and backward of that run operator by operator. The
backward of that has a backward of its own in the same way, and so on. First derivatives stay compiled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.errors import InternalError, Refusal, TreeplayError
from treeplay.locks import shared_lock
from treeplay.sandbox.boundary import Boundary
from treeplay.torch_seam import flags, fx
from treeplay.torch_seam.aot import Traced, is_base_kept
from treeplay.torch_seam.flags import AutocastDtypes
from treeplay.torch_seam.operators import CHECKS
from treeplay.trace.restore.surroundings import autocast_cache_apart
from treeplay.values.refusal import Reason
from treeplay.wrap.aot.calls.kept import inputs_again
from treeplay.wrap.aot.calls.opening import plain_gradient
from treeplay.wrap.aot.calls.redrawn import drawn_again, has_own_generators, is_drawn_late
from treeplay.wrap.aot.compilers import Compilers
from treeplay.wrap.aot.plan.arrange import Arrangement, RunNotes
from treeplay.wrap.aot.plan.facts import KeptInputs, NodePlan, Tangent, WrappedTangent
from treeplay.wrap.aot.tracing.capture import captured

Flat = Callable[..., Sequence[Any]]
Repeat = Callable[[Sequence[Any]], contextlib.AbstractContextManager[Flat]]
"""Gives the flat function once more, for a block, to be traced with tensors like these in the place of its own."""

WrapFlat = Callable[..., Callable[[list[Any]], list[Any]]]
_making = shared_lock()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a differentiable value is found after a run of the function: an input that was written, a result, or what a result
    is a view of."""

    written: int | None = None
    result: int | None = None
    is_base: bool = False

    def value(self, inputs: Sequence[Any], results: Sequence[Any]) -> torch.Tensor:
        """The value itself."""
        if self.written is not None:
            return inputs[self.written]  # type: ignore[no-any-return]
        found: torch.Tensor = results[self.result]  # type: ignore[index]
        return found._base if self.is_base and found._base is not None else found


def origins_of(facts: Any, values: Sequence[int]) -> tuple[Origin, ...]:
    """Where the values that torch's joint graph takes gradients for come from."""
    written = list(facts.mutated_inp_runtime_indices)
    count = len(written) + len(facts.output_info)
    bases = {info.base_idx: k for k, info in enumerate(facts.output_info) if is_base_kept(info)}
    found = []
    for value in values:
        if value < len(written):
            found.append(Origin(written=written[value]))
        elif value < count:
            found.append(Origin(result=value - len(written)))
        else:
            found.append(Origin(result=bases[value - count], is_base=True))
    return tuple(found)


_MOST_COPIED_BYTES = 2**24
"""What each call may copy of what it overwrites, should its backward be differentiated."""


def why_not_recomputed(traced: Traced, node: NodePlan, forward: torch.fx.GraphModule, kept: KeptInputs) -> str | None:
    """What keeps a function's gradients from being computed from its inputs again; None if nothing does."""
    if traced.subclasses is not None:
        return "it takes or returns tensors made of other tensors"
    if node.late:
        return "its backward writes to tensors"
    if node.tokens or node.generators or (traced.facts.tokens and not _only_checks(traced.graph)):
        return "it has side effects, or keeps random generators for its backward"
    if is_drawn_late(traced.graph):
        return "its backward draws random numbers"
    if has_own_generators(forward):
        return "it draws random numbers from a generator of its own, or inside of its control flow"
    given = forward.graph.find_nodes(op="placeholder")
    if sum(given[k].meta["val"].nbytes for k in kept.copied) > _MOST_COPIED_BYTES:
        return f"it overwrites arguments of more than {_MOST_COPIED_BYTES >> 20} MiB that its gradients depend on"
    return None


def _only_checks(joint: torch.fx.GraphModule) -> bool:
    """Whether what a graph does in order, by tokens, is to raise where values are wrong; which it did not."""
    ordered = joint.graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects)
    return all(node.args[1] in CHECKS for node in ordered)


def fingerprint(traced: Traced) -> int:
    """What two traces of a function that does the same have in common."""
    return hash(str(traced.graph.graph))


class HigherDerivatives:
    """The gradients of one wrapped function as functions that can be differentiated: one for each set of gradients that come.

    Owned by the function's node class, like its backward. `mark` is the fingerprint of the function's trace; unless it
    `is_fixed`, it may have changed since."""

    def __init__(
        self,
        repeat: Repeat,
        wrap: WrapFlat,
        compilers: Compilers,
        arrangement: Arrangement,
        *,
        mark: int,
        is_fixed: bool,
    ):
        self._repeat, self._wrap, self._compilers = repeat, wrap, compilers
        self._arrangement, self._mark, self._is_fixed = arrangement, mark, is_fixed
        self._autocast, self._kept = flags.autocast_dtypes(), fx.kept_now()  # of the call
        self._made: dict[Any, Any] = {}

    def __call__(
        self, node: NodePlan, origins: Sequence[Origin], inputs: Sequence[Any], gradients: Sequence[Any]
    ) -> list[Any]:
        """The gradients of the inputs, with a history where gradients are on; raises `Refusal`."""
        needs = tuple(None if gradient is None else gradient.requires_grad for gradient in gradients)
        key = (needs, torch.is_grad_enabled(), flags.autocast_dtypes())
        with _making:
            made = self._made.get(key)
            if made is None:
                made = self._made[key] = self._make(node, origins, inputs, gradients)
        if isinstance(made, Reason):  # a refusal would keep the frames that it was raised in, with all that is in them
            raise Refusal(made)
        given = [gradient for gradient in gradients if gradient is not None]
        # Behind the gradients come the results, where the call draws: they are there to be drawn.
        return made([*inputs, *given])[: len(inputs)]  # type: ignore[no-any-return]

    def _make(self, node: NodePlan, origins: Sequence[Origin], inputs: Sequence[Any], gradients: Sequence[Any]) -> Any:
        came = [k for k, gradient in enumerate(gradients) if gradient is not None]
        count = len(inputs)
        needs = [isinstance(value, torch.Tensor) and value.requires_grad for value in inputs]
        is_onward = torch.is_grad_enabled()

        @contextlib.contextmanager
        def repeat(given: Sequence[Any]) -> Iterator[Flat]:
            with self._repeat(given[:count]) as function:
                adapted = self._arrangement.adapted(function, RunNotes())
                yield _gradients_of(adapted, node, [origins[k] for k in came], needs, self._autocast, is_onward)

        try:
            with self._tracing():
                if not self._is_fixed and not self._is_same(inputs, in_backward=()):
                    why = "the program would not do the same again as in the call that is differentiated"
                    raise Refusal.of("create_graph", why, "change what it depends on after the backward", None)
                samples = [*inputs, *(gradients[k] for k in came)]
                with repeat(samples) as function:
                    made: Any = self._wrap(function, samples, self._compilers, repeat=repeat)
            # Gradients that depend on nothing that needs one, as those of a sum, lead nowhere: no node, and nothing drawn.
            if made.draws != node.draws:
                why = "its gradients draw other random numbers than its results"
                raise Refusal.of("create_graph", why, "differentiate all results of the call together", None)
            return made
        except InternalError as error:
            return Reason("create_graph", f"of an error of treeplay's own: {error}", "report it")
        except Refusal as refusal:
            return refusal.reason

    def is_unchanged_by(self, autocast: AutocastDtypes, inputs: Sequence[Any]) -> bool | None:
        """Whether the backward of a call like this does nothing else under autocast; None where that cannot be told."""
        try:
            with _making, self._tracing():
                return self._is_same(inputs, in_backward=autocast)
        except TreeplayError:
            return None

    @contextlib.contextmanager
    def _tracing(self) -> Iterator[None]:
        boundary = Boundary("making a backward of a backward", reasons=(TreeplayError,))
        with boundary, autocast_cache_apart(), fx.kept_operators(self._kept):
            yield

    def _is_same(self, inputs: Sequence[Any], *, in_backward: AutocastDtypes) -> bool:
        """Whether the program would do by now what it did in the call: a flag may have changed since."""
        with torch.enable_grad(), flags.under_autocast(self._autocast), self._repeat(inputs) as function:
            adapted, decompositions = self._arrangement.adapted(function, RunNotes()), self._compilers.decompositions
            with captured(adapted, inputs, decompositions, in_backward=in_backward) as (traced, _):
                return fingerprint(traced) == self._mark


def _gradients_of(
    function: Flat,
    node: NodePlan,
    origins: Sequence[Origin],
    needs: Sequence[bool],
    autocast: AutocastDtypes,
    is_onward: bool,
) -> Flat:
    """The flat function of inputs and gradients of results that gives the gradients of the inputs. `needs`: which inputs need
    one. `autocast` is that of the function. `is_onward`: they have a history."""
    count = len(needs)
    overwritten = node.inputs.overwritten if node.inputs is not None else ()
    wanted = [k for k, feed in enumerate(node.feeds) if feed is not None]

    def gradients(*given: Any) -> list[Any]:
        found: list[Any] = [None] * count
        if not is_onward:
            leaves = zip(given[:count], needs, strict=True)
            given = (
                *(value.detach().requires_grad_() if is_needed else value for value, is_needed in leaves),
                *given[count:],
            )
        with torch.enable_grad():
            # The function would overwrite what it is given once more.
            inputs = [value.clone() if k in overwritten else value for k, value in enumerate(given[:count])]
            with flags.under_autocast(autocast):
                results = function(*inputs)
            values = [origin.value(inputs, results) for origin in origins]
            ends = [given[k] for k in wanted]
            made = torch.autograd.grad(values, ends, given[count:], create_graph=is_onward, allow_unused=True)
        for k, gradient in zip(wanted, made, strict=True):
            found[k] = gradient
        if not node.draws:
            return found
        # All that the call drew is drawn again, though these gradients may not need it.
        return [*found, *(value.detach().clone() for value in results if isinstance(value, torch.Tensor))]

    return gradients


def _plain(gradient: Any, tangent: Tangent | WrappedTangent, place: int) -> Any:
    """A gradient as the backward takes it."""
    if gradient is None or isinstance(tangent, WrappedTangent):
        return gradient
    return plain_gradient(gradient, tangent.layout, (place, "", tangent.where))


class Onward:
    """What a node's backward does under create_graph: gradients that lead on, or None with the reason in `ctx.why`. Without it,
    gradients as they are under the modes of the caller."""

    def __init__(
        self, again: HigherDerivatives | None, why: str | None, node: NodePlan, origins: Sequence[Origin]
    ) -> None:
        self._again, self._why, self._node, self._origins = again, why, node, tuple(origins)
        self._places = [
            node.returned.index(tangent.value) if tangent.value in node.returned else None for tangent in node.tangents
        ]

    def is_unchanged_by(self, autocast: AutocastDtypes, ctx: Any) -> bool | None:
        """Whether the backward of a call does nothing else under autocast; None where that cannot be told, with the reason in
        `ctx.why`."""
        if self._again is None:
            ctx.why = self._why
            return None
        try:
            inputs = self._inputs(ctx, may_differ=True)
        except Refusal as refusal:
            ctx.why = refusal.reason.why
            return None
        return self._again.is_unchanged_by(autocast, inputs)

    def __call__(self, ctx: Any, gradients: Sequence[Any]) -> tuple[Any, ...] | None:
        if self._again is None:
            ctx.why = self._why
            return None
        came = [None if at is None else gradients[at] for at in self._places]
        try:
            given = [
                _plain(gradient, tangent, k)
                for k, (gradient, tangent) in enumerate(zip(came, self._node.tangents, strict=True))
            ]
            inputs = self._inputs(ctx)
            if not self._node.draws:
                return tuple(self._again(self._node, self._origins, inputs, given))
            if ctx.states is None:
                ctx.why = "it was called where the state of a random generator cannot be read, as in a capture"
                return None
            with drawn_again(ctx.states):
                return tuple(self._again(self._node, self._origins, inputs, given))
        except Refusal as refusal:
            ctx.why = refusal.reason.why
            return None

    def _inputs(self, ctx: Any, *, may_differ: bool = False) -> list[Any]:
        inputs = inputs_again(ctx, self._node.inputs, may_differ=may_differ)  # type: ignore[arg-type]
        for k in self._node.detached:  # the function was traced with what needs a gradient
            inputs[k] = inputs[k].detach().requires_grad_()
        return inputs
