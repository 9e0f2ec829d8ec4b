"""Tells of the memory that an artifact allocates for buffers, and operators for their results."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
import torch.fx

from treeplay.device.protocol import Births
from treeplay.torch_seam.modes import TorchDispatchMode
from treeplay.torch_seam.schemas import leaves_of
from treeplay.torch_seam.tensors import storage_of


class ResultsTold(TorchDispatchMode):
    """While it is entered, each result in memory of its own is told to `births`; views and what is written in place are not."""

    supports_higher_order_operators = True
    """They are seen as one operator each; what is inside of them is not looked at."""

    def __init__(self, births: Births) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._births = births

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Compiled functions inside stay compiled."""
        return True

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = self._births.now()
        result = func(*args, **(kwargs or {}))
        tell_results(self._births, before, (args, kwargs or {}), result)
        return result


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


def tell_results(births: Births, before: int, given: Any, result: Any) -> None:
    """Tell of the results of an operator that lie in none of the tensors it was given; `before`: the time before it ran."""
    taken = {storage_of(leaf) for leaf in leaves_of(given) if isinstance(leaf, torch.Tensor)}
    for tensor in leaves_of(result):
        if isinstance(tensor, torch.Tensor) and storage_of(tensor) not in taken:
            births.born(tensor, before)


@contextlib.contextmanager
def telling(artifact: Callable[..., Any], births: Births) -> Iterator[None]:
    """While this lasts, the artifact tells of each buffer that its wrapper allocates, and of each result of an operator.

    Both have to be told: where one is allocated, another may have been before."""
    names = _names_of_wrapper(artifact)
    if names is None:
        with ResultsTold(births):
            yield
        return
    allocate = names[_ALLOCATE]

    def allocate_and_tell(*args: Any) -> torch.Tensor:
        before = births.now()
        made: torch.Tensor = allocate(*args)
        births.born(made, before)
        return made

    names[_ALLOCATE] = allocate_and_tell
    try:
        with ResultsTold(births):
            yield
    finally:
        names[_ALLOCATE] = allocate


_ALLOCATE = "empty_strided_cuda"


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
