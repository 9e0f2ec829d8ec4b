"""Tells of the memory that an artifact allocates for buffers, and operators for their results."""

from __future__ import annotations

import contextlib
import itertools
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.fx

from treeplay.device.protocol import Births
from treeplay.lower.lifetimes import LifetimeNotes, NotedBuffer, places_in_results
from treeplay.torch_seam.allocator import unobserved
from treeplay.torch_seam.dynamo import LeavesCompiled
from treeplay.torch_seam.schemas import leaves_of
from treeplay.torch_seam.tensors import storage_of, view_in_memory_of
from treeplay.values.spec import TensorSpec

aten = torch.ops.aten


class ResultsTold(LeavesCompiled):
    """While it is entered, each result in memory of its own is told to `births`; views and what is written in place are not."""

    supports_higher_order_operators = True
    """They are seen as one operator each; what is inside of them is not looked at."""

    def __init__(self, births: Births) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._births = births

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return call_telling(self._births, func, lambda args, kwargs: func(*args, **kwargs), args, kwargs or {})


def makers_of_results(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The operators of a traced graph that may make the memory of its results: only of these is anything asked. To ask takes
    the driver the longer the more nodes there are."""
    wanted = {node.meta.get("storage") for node in graph.output_node().all_input_nodes}
    if None in wanted:
        return set(graph.nodes)
    found = set()
    for node in graph.nodes:
        if node.meta.get("storage") in wanted:
            while node.target is operator.getitem:
                node = node.args[0]
            found.add(node)
    return found


def call_telling(
    births: Births,
    func: Any,
    call: Callable[[Sequence[Any], dict[str, Any]], Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """What `call` gives for the arguments of an operator, whose results are told to `births`.

    The backward of a convolution makes the gradient of the weight after that of the input, often where the workspace for that
    lay, and then nobody can tell which kernels mean which. It computes each by itself, so it is called for each: this gives
    the same values, and each lies in memory that nothing of its own call had before.
    """
    if func is aten.convolution_backward.default and not kwargs and args[-1][0] and any(args[-1][1:]):
        *others, wanted = args
        first = call_telling(births, func, call, [*others, [True, False, False]], {})
        second = call_telling(births, func, call, [*others, [False, *wanted[1:]]], {})
        return first[0], *second[1:]
    before = births.now()
    result = call(args, kwargs)
    tell_results(births, before, (args, kwargs), result)
    return result


def tell_results(births: Births, before: int, given: Any, result: Any) -> None:
    """Tell of the results of an operator that lie in none of the tensors it was given; `before`: the time before it ran."""
    taken = {storage_of(leaf) for leaf in leaves_of(given) if isinstance(leaf, torch.Tensor)}
    for tensor in leaves_of(result):
        if isinstance(tensor, torch.Tensor) and storage_of(tensor) not in taken:
            births.born(tensor, before)


class ToldArtifact:
    """A compiled artifact that runs as it is, and while `telling` lasts tells of the memory that it allocates.

    A result usually lies where a buffer lay that was freed before. A launch exchanges the result's address, and behind that of
    the other there has to be memory (scratch). So in a capture whose addresses cost nothing, results come first, and buffers
    that are freed before a result is made lie in that result's memory, if launches seldom exchange it:

        as compiled      | a, then r | b, then s | c |     three buffers need memory
        results first    | r | s | a, then b, then c |     one does
        r is rewritten      | a, then r | s | b, then c |     one does, and a moves with r

    Which of its buffers it returns, and when others are freed, is found out in its first run; in a capture before any run they
    are made as compiled.
    """

    def __init__(self, run: Callable[..., Sequence[Any]]) -> None:
        self._run = run
        self._buffers: Sequence[NotedBuffer] | None = None  # None: not known yet

    def __call__(self, *args: Any) -> Sequence[Any]:
        return self._run(*args) if self._buffers is not None else self._first_run(*args)

    def telling(self, births: Births) -> contextlib.AbstractContextManager[None]:
        """As the function of that name does. Captures are compared, so what is known in the first one is what is known."""
        self._buffers = self._buffers or ()
        return telling(self._run, births, self._buffers if births.results_first else ())

    def _first_run(self, *args: Any) -> Sequence[Any]:
        notes = LifetimeNotes()
        with _allocating(self._run, notes.allocate):
            results = self._run(*args)
        self._buffers = notes.of_run(results)
        return results


@contextlib.contextmanager
def telling(artifact: Callable[..., Any], births: Births, buffers: Sequence[NotedBuffer] = ()) -> Iterator[None]:
    """While this lasts, the artifact tells of each buffer that its wrapper allocates, and of each result of an operator.

    Both have to be told: where one is allocated, another may have been before. Of the `buffers` that an earlier run allocated,
    those that it returned are made at once, and each is given out when it is that one's turn.
    """
    first: dict[int, torch.Tensor] = {}
    places = places_in_results(buffers, births.rewritten)
    shared = {place.outer for place in places.values()}
    count = itertools.count()
    is_as_before = True  # a place is good only if all that may lie there is allocated in the same order

    def make(allocate: Allocate, *wanted: Any) -> torch.Tensor:
        before = births.now()
        made = allocate(*wanted)
        births.born(made, before)
        return made

    def allocate_and_tell(allocate: Allocate, *wanted: Any) -> torch.Tensor:
        nonlocal is_as_before
        at = next(count)
        made, is_kind = first.pop(at, None), at < len(buffers) and buffers[at].kind == wanted
        is_as_before = is_as_before and is_kind
        if made is not None and is_kind and (is_as_before or at not in shared):
            return made
        if at in places and is_as_before:
            outer, (size, stride, dtype) = first[places[at].outer], wanted
            # A view is nobody's birth, and to ask takes the driver the longer the more nodes there are.
            with unobserved():
                return view_in_memory_of(outer, places[at].offset, TensorSpec(size, stride, dtype, outer.device))
        return make(allocate, *wanted)

    with _allocating(artifact, allocate_and_tell) as allocate:
        if allocate is not None:
            first.update({at: make(allocate, *one.kind) for at, one in enumerate(buffers) if one.is_returned})
        try:
            with ResultsTold(births):
                yield
        finally:
            first.clear()  # a body that raised has not asked for all


_ALLOCATE = "empty_strided_cuda"
_AS_COMPILED = "as_compiled"
Allocate = Callable[..., torch.Tensor]


@contextlib.contextmanager
def _allocating(artifact: Callable[..., Any], instead: Callable[..., torch.Tensor]) -> Iterator[Allocate | None]:
    """While this lasts, the artifact's wrapper allocates in this thread by `instead`, which is given the function that it would
    call; yields that function, or None where there is no such wrapper."""
    names, thread = _names_of_wrapper(artifact), threading.get_ident()
    if names is None:
        yield None
        return
    # Equal graphs share a wrapper, so another thread may have done the same to it.
    allocate: Allocate = getattr(names[_ALLOCATE], _AS_COMPILED, names[_ALLOCATE])

    def allocated(*wanted: Any) -> torch.Tensor:
        return instead(allocate, *wanted) if threading.get_ident() == thread else allocate(*wanted)

    setattr(allocated, _AS_COMPILED, allocate)
    names[_ALLOCATE] = allocated
    try:
        yield allocate
    finally:
        names[_ALLOCATE] = allocate


def _names_of_wrapper(artifact: Any) -> dict[str, Any] | None:
    """The global names of the Python wrapper that Inductor wrote, found behind what it is wrapped in."""
    waiting, seen = [artifact], set()
    while waiting:
        current = waiting.pop()
        current = getattr(current, "__func__", current)
        if not isinstance(current, FunctionType) or id(current) in seen:
            continue
        seen.add(id(current))
        if _ALLOCATE in current.__globals__:
            return current.__globals__
        waiting += [cell.cell_contents for cell in current.__closure__ or ()]
    return None
