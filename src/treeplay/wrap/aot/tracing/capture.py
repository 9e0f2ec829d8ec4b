"""Flat function → traced graphs and the facts that torch found, or a refusal with the user's line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from treeplay.errors import Refusal
from treeplay.observe.lines import failed_call, is_users, location_in, user_location
from treeplay.torch_seam import aot, fakes, flags
from treeplay.torch_seam.aot import Traced
from treeplay.torch_seam.autograd import history, was_taken_with_gradients
from treeplay.torch_seam.flags import AutocastDtypes
from treeplay.torch_seam.modes import flags_of_modes_kept
from treeplay.torch_seam.symbols import divided_as_known, floats_divided
from treeplay.trace.run.apart import TakesApart
from treeplay.wrap.aot.tracing.custom_backwards import CustomBackwards
from treeplay.wrap.aot.tracing.dropout import dropout_as_eager
from treeplay.wrap.aot.tracing.findings import TakenView, TraceFindings, is_differentiable_leaf, refusal_to_wrap
from treeplay.wrap.aot.tracing.line_watch import LineWatch

_REQUEST = re.compile(
    r"[^.\n]*\b(?:file an? |report (?:a |this )|open an? (?:issue|github))[^.\n]*(?:\.(?=\s|$)|$)", re.IGNORECASE
)
"""Where torch asks for a report: it is the user's program that it cannot trace."""
_KEEP = "return the tensor and read it after the call, or keep the computation in tensors (torch.where)"


def _history(value: Any) -> Any:
    return value.grad_fn if isinstance(value, torch.Tensor) else None


class _SameView(torch.autograd.Function):
    """The same memory once more, with the history of what it is taken from."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _with_own_history(result: Any, histories: Sequence[Any]) -> Any:
    """A result; a view of what a custom function has given, in a form that torch does not take for a view of an argument, which
    is taken again outside of the graph, where no backward of that function belongs to it. Torch looks at its last node only."""
    is_view = isinstance(result, torch.Tensor) and result.requires_grad and result._is_view()
    if not is_view or isinstance(result.grad_fn, BackwardCFunction):
        return result
    is_of_custom = any(isinstance(node, BackwardCFunction) for node in history([result.grad_fn], histories))
    return _SameView.apply(result) if is_of_custom else result  # type: ignore[no-untyped-call]


def _taken(tensor: torch.Tensor) -> TakenView:
    return TakenView(tuple(tensor.size()), fakes.view_steps(tensor))


class _WatchedFunction(torch.nn.Module):
    """A flat function in the form that torch traces, under watch. Modes are afterwards what they were."""

    def __init__(
        self,
        function: Callable[..., Any],
        seen: TraceFindings,
        leaves: Sequence[bool],
        names: Sequence[str] | None = None,
        *,
        is_exact: bool = False,
    ) -> None:
        super().__init__()
        self.is_exact = is_exact
        self.leaves = leaves
        object.__setattr__(self, "function", function)  # as a child module its parameters would be lifted by the trace
        self.seen = seen
        self.names = names if names is not None else [f"arg{k}" for k in range(len(leaves))]
        self.mode = torch.is_grad_enabled()

    def __call__(self, *inputs: Any) -> list[Any]:
        """Without hooks on all modules: it is none of the user's."""
        return self.forward(*inputs)

    def forward(self, *inputs: Any) -> list[Any]:
        # Torch may run it more than once: the last run counts.
        self.seen.writes.clear()
        self.seen.touched.clear()
        self.seen.versioned.clear()
        self.seen.reshaped_then_written = None
        is_as_called = torch.is_grad_enabled() == self.mode  # it runs again with gradients off, where none are needed
        histories, custom = [_history(value) for value in inputs], CustomBackwards(inputs)
        watching = LineWatch(self.seen, inputs, self.leaves, self.names, is_exact=self.is_exact)
        with watching as watch, _autocast_kept(), self._grad_mode_noted():
            function: Any = self.function
            results = [_with_own_history(result, histories) for result in function(*inputs)]
            watch.refuse_leaves(results)
        has_custom = custom.watch(results)
        self.seen.leads_to = custom.leads_to
        # What a custom function keeps for its backward, nobody tells.
        self.seen.own_versions = set() if has_custom else watch.data.own_versions(results)
        self.seen.rebased |= {k for k, value in enumerate(inputs) if _history(value) is not histories[k]}
        if is_as_called:
            modes = {k: was_taken_with_gradients(r) for k, r in enumerate(results) if isinstance(r, torch.Tensor)}
            self.seen.grad_modes = {k: mode for k, mode in modes.items() if mode is not None and mode != self.mode}
        self.seen.reshaped = {k: _taken(value) for k, value in enumerate(inputs) if fakes.is_reshaped(value)}
        self.seen.results = [
            _taken(result) if isinstance(result, torch.Tensor) and self.seen.reshaped else None for result in results
        ]
        places = {id(value): k for k, value in enumerate(inputs) if isinstance(value, torch.Tensor)}
        self.seen.own = {k: places[id(result)] for k, result in enumerate(results) if id(result) in places}
        first: dict[int, int] = {}
        self.seen.again = {
            k: first[id(result)]
            for k, result in enumerate(results)
            if isinstance(result, torch.Tensor) and first.setdefault(id(result), k) != k
        }
        return results

    @contextlib.contextmanager
    def _grad_mode_noted(self) -> Iterator[None]:
        before = torch.is_grad_enabled()
        try:
            yield
            if before == self.mode:  # torch runs a function again with gradients off, where none are needed
                after = torch.is_grad_enabled()
                self.seen.grad_mode_after = after if after != before else None
        finally:
            flags.set_grad_enabled(before)


@contextlib.contextmanager
def _autocast_kept() -> Iterator[None]:
    """Refuse a function that leaves another autocast state than it found, and put that back."""
    before = flags.autocast_state()
    try:
        yield
        if flags.autocast_state() != before:
            raise refusal_to_wrap(
                "autocast", "the function leaves another autocast state than it found", user_location()
            )
    finally:
        flags.set_autocast_state(before)


def _divides_by_no_elements(error: Exception) -> str | None:
    """The operator of torch's that failed, where tensors without data have no elements; with data, it would give NaN."""
    end = error.__traceback__
    while end is not None and end.tb_next is not None:
        end = end.tb_next
    if not isinstance(error, ZeroDivisionError) or end is None or is_users(end.tb_frame.f_code.co_filename):
        return None
    return end.tb_frame.f_code.co_name


@contextlib.contextmanager
def captured(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    decompositions: dict[Any, Any] | None,
    *,
    writes_inside: bool | None = None,
    names: Sequence[str] | None = None,
    in_backward: AutocastDtypes = (),
) -> Iterator[tuple[Traced, TraceFindings]]:
    """The traced function. With `writes_inside` its graph does what writes it can itself. `in_backward`: the autocast of what
    calls its backward.

    What cannot be traced is a `Refusal`; what the caller's block raises passes through."""
    seen = TraceFindings()
    with contextlib.ExitStack() as stack:
        try:
            is_exact = decompositions is None  # else some operators are taken apart in any case
            module = _WatchedFunction(
                function, seen, [is_differentiable_leaf(value) for value in inputs], names, is_exact=is_exact
            )
            stack.enter_context(flags_of_modes_kept())  # the modes of the trace end after this one
            with floats_divided(divided_as_known), dropout_as_eager(), TakesApart():  # what the backward calls, too
                traced = stack.enter_context(
                    aot.traced(module, inputs, decompositions, writes_inside=writes_inside, in_backward=in_backward)
                )
        except Refusal:
            raise
        except Exception as error:
            where = failed_call(error.__traceback__).where or location_in(str(error)) or seen.line()
            if isinstance(error, fakes.DataDependentOutputException):
                raise refusal_to_wrap(
                    "item", "reads a tensor's value on the host, which a compiled graph cannot", where, _KEEP
                ) from None
            if (operator := _divides_by_no_elements(error)) is not None:
                why = f"`{operator}` divides by a number of elements that is 0, in Python while it is traced"
                raise refusal_to_wrap(
                    "trace", why, where, "call it without treeplay for a batch of no elements"
                ) from error
            what, _, _ = str(error).partition("\n\nWhile executing ")  # where a graph was run node by node
            raise refusal_to_wrap(
                "trace", f"{type(error).__name__}: {_REQUEST.sub('', what).strip()}", where
            ) from error
        yield traced, seen
