"""Graphs with symbolic sizes that are not compiled for all sizes: compiled for those of a call, when a call brings them.

compile ─▶ nothing yet        call with sizes A ─▶ compile for A, run        call with sizes A again ─▶ run

Three sets of sizes are compiled as they come. After them, compiling takes at most `settings.compile_budget` of the time. Calls
with sizes beyond that, and those that come while another thread compiles, run the graph's operators as they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch

from treeplay.backend.numbers import KnownNumbers
from treeplay.locks import shared_lock
from treeplay.observe import counters
from treeplay.observe.once import warn_here
from treeplay.settings import FREE_KINDS, CompileTime, settings
from treeplay.torch_seam import dynamo, fakes, modes, tensors
from treeplay.torch_seam.symbols import has_symbols

Function = Callable[..., Any]
CompileFor = Callable[[Sequence[Any]], Function]


def with_known_sizes(
    inputs: Sequence[Any],
    compile_next: Callable[[Sequence[Any], Mapping[int, float]], Function],
    plain: Function,
    numbers: KnownNumbers,
    *,
    most: int,
    changing: Sequence[frozenset[int]],
) -> Function:
    """Compile through `compile_next`, which is given inputs without symbolic numbers, and the values of those that are read as
    numbers; what it compiles is for the values of `numbers` that are known afterwards. A call that brings sizes which are
    symbols itself, as fake tensors may have, is for `plain`: the program as it is.

    `changing` are the dimensions of each result whose sizes change with the inputs': they are noted at the results, for a
    following graph of Dynamo's to expect the same.

    Callables for at most as many sets of sizes are kept as a program may have recordings; the one unused for longest goes
    first. Above `most` sets, or where the budget for compiling is spent, one warning suggests to pad."""
    if not has_symbols(inputs):
        return compile_next(inputs, {})
    symbolic = tuple(at for at, value in enumerate(inputs) if has_symbols([value]))
    known: OrderedDict[tuple[Any, ...], Function] = OrderedDict()
    seen: set[tuple[Any, ...]] = set()
    lock, budget = shared_lock(), _SizeBudget()

    def key_of(args: Sequence[Any]) -> tuple[Any, ...]:
        return *[_sizes(args[at]) for at in symbolic], *numbers.key(args)

    def compile_for(key: tuple[Any, ...], args: Sequence[Any]) -> Function:
        # Nobody waits while another thread compiles: meanwhile the program runs as it is.
        if not lock.acquire(blocking=False):
            counters.add("sizes", "another thread compiles")
            return plain
        try:
            if key in known:  # another thread was faster
                return known[key]
            if not budget.allows():
                counters.add("sizes", "over the compile budget")
                _tell_of_budget(budget, key)
                return plain
            _count(seen, key, most)
            while len(known) >= settings.max_recordings_per_program:
                known.popitem(last=False)
                counters.add("sizes", "dropped")
            with budget.spending():
                compiled = compile_next(fakes_of(args), numbers.values(args))
            known[key_of(args)] = compiled
            return compiled
        finally:
            lock.release()

    def call(*args: Any) -> Any:
        try:
            key = key_of(args)
            compiled = known.get(key)
        except TypeError:  # symbols have no hash
            return plain(*args)
        if compiled is None:
            compiled = compile_for(key, args)
        elif len(known) >= settings.max_recordings_per_program:  # the order matters only where one may be dropped
            with lock:
                # Once more: another thread may have dropped it since it was looked up, and then it could not be moved.
                known[key] = compiled
                known.move_to_end(key)
        return compiled(*args)

    return with_marks(call, changing)


def with_marks(compiled: Function, changing: Sequence[frozenset[int]]) -> Function:
    """`compiled`, with the dimensions of each result whose sizes change noted at the results."""
    marked = [(at, dimensions) for at, dimensions in enumerate(changing) if dimensions]
    if not marked:
        return compiled

    def call(*args: Any) -> Any:
        results = compiled(*args)
        for at, dimensions in marked:
            if isinstance(results[at], torch.Tensor):
                dynamo.note_changing_sizes(results[at], dimensions)
        return results

    return call


class _SizeBudget(CompileTime):
    """Which sets of sizes of one graph are compiled. For a thread that holds its lock."""

    def __init__(self) -> None:
        super().__init__()
        self.is_told = False
        self._compiled = 0

    def allows(self) -> bool:
        """Whether another set may be compiled."""
        return self._compiled < FREE_KINDS or self.is_left()

    @contextmanager
    def spending(self) -> Iterator[None]:
        """For a block that compiles."""
        start = perf_counter()
        try:
            yield
        finally:
            self._compiled += 1
            if self._compiled <= FREE_KINDS:
                self.begin()
            else:
                self.add(perf_counter() - start)


def changing_sizes(program: Any) -> tuple[frozenset[int], ...]:
    """For each result of a captured graph, the dimensions whose sizes the capture did not know."""
    if not isinstance(program, torch.fx.GraphModule):
        return ()
    results = program.graph.output_node().args[0]
    return tuple(map(_changing, results)) if isinstance(results, (list, tuple)) else ()


def _changing(node: Any) -> frozenset[int]:
    known = node.meta if isinstance(node, torch.fx.Node) else {}
    value = known.get("example_value", known.get("val"))
    if not isinstance(value, torch.Tensor) or modes.is_wrapper(value):
        return frozenset()
    return frozenset(k for k, size in enumerate(value.size()) if isinstance(size, torch.SymInt) and _is_unknown(size))


def _is_unknown(size: torch.SymInt) -> bool:
    """Whether no number is known for a symbolic size, as it is for one that was specialised."""
    return size.node.maybe_as_int() is None


def _count(seen: set[tuple[Any, ...]], key: tuple[Any, ...], most: int) -> None:
    """Count a compile for a set of sizes; warn at the first above `most` different ones."""
    counters.add("sizes", "compiled")
    if len(seen) > most:
        return
    seen.add(key)
    if len(seen) > most:
        warn_here(
            f"a graph of torch.compile was compiled for more than {most} sets of sizes, the newest {_shown(key)}; "
            "each costs a compile. Fix: pad to a few sizes, or raise options['most_sizes']"
        )


def _tell_of_budget(budget: _SizeBudget, key: tuple[Any, ...]) -> None:
    if not budget.is_told:
        budget.is_told = True
        warn_here(
            f"a graph of torch.compile runs as it is for sizes such as {_shown(key)}: compiling them too would take more than "
            f"{settings.compile_budget:.0%} of the time. Fix: pad to a few sizes, or raise treeplay.settings.compile_budget"
        )


def _shown(key: tuple[Any, ...]) -> str:
    return ", ".join(str(list(part[0])) if isinstance(part[0], torch.Size) else str(part[1]) for part in key)


def _sizes(value: Any) -> Any:
    if modes.is_wrapper(value):  # its own sizes may be symbols that stand for the sizes inside
        names, _ = value.__tensor_flatten__()
        return type(value), tuple(_sizes(getattr(value, name)) for name in names)
    if isinstance(value, torch.Tensor):
        return value.size(), value.stride(), value.storage_offset()
    return type(value), value


def fakes_of(args: Sequence[Any]) -> list[Any]:
    """Fakes of one mode, so that nothing is compiled for an address or a value; one tensor stays one."""
    mode = fakes.fake_mode_of(args) or fakes.new_fake_mode()
    alone: dict[int, torch.Tensor] = {}

    def fake(arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor) or arg.is_mkldnn:  # of which a fake would be a plain tensor
            return arg
        if tensors.is_view_elsewhere(arg):  # its fake would lie in its base's memory
            arg = alone.setdefault(id(arg), arg.detach())
        return mode.from_tensor(arg, static_shapes=True)

    return list(map(fake, args))
