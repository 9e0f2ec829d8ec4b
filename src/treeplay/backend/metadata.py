"""What each node of a graph yields, found by running it without data: shapes and dtypes, derived anew after a rewrite."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.torch_seam import fakes as torch_fakes
from treeplay.torch_seam import trees as pytree
from treeplay.torch_seam.fakes import FakeTensorMode
from treeplay.torch_seam.fx import views_as_reshapes
from treeplay.torch_seam.symbols import example_of
from treeplay.values.spec import TensorSpec
from treeplay.wrap.aot.compilers import LIES_ANEW


def refresh(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> FakeTensorMode:
    """Run `module` on fakes of `inputs` and note at each node that yields a tensor what it is (`meta["val"]`).

    The mode that the inputs are fakes of is used and returned, or else a new one that takes real tensors too."""
    mode = mode_of(inputs)
    with taking_real_tensors(mode), mode, torch.no_grad():
        _Noting(module).run(*data_as_fakes(mode, inputs))
    return mode


def refresh_layout(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Note anew what a graph yields where an input, or what a sum was before, lies otherwise than when it was traced.

    A view that was possible then may now need a copy, so views become reshapes, which know."""
    nodes = module.graph.find_nodes(op="placeholder")
    lie_alike = all(_lie_alike(node.meta.get("val"), value) for node, value in zip(nodes, inputs, strict=True))
    if lie_alike and LIES_ANEW not in module.graph.output_node().meta:
        return
    views_as_reshapes(module.graph)
    module.recompile()
    refresh(module, inputs)


def _lie_alike(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return True
    return one.stride() == other.stride() and one.storage_offset() == other.storage_offset()


def values_of(
    module: torch.fx.GraphModule, inputs: Sequence[Any], nodes: Sequence[torch.fx.Node]
) -> dict[torch.fx.Node, Any]:
    """What some nodes of `module` yield for `inputs`, as fakes. The graph's own notes are left as they are."""
    if not nodes:
        return {}
    mode = mode_of(inputs)
    collecting = _Collecting(module, frozenset(nodes))
    with taking_real_tensors(mode), mode, torch.no_grad():
        collecting.run(*data_as_fakes(mode, inputs))
    return collecting.found


def mode_of(inputs: Sequence[Any]) -> FakeTensorMode:
    """The fake mode of `inputs`, or a new one that takes real tensors too."""
    torch_fakes.hold_device_guard()
    return torch_fakes.fake_mode_of(pytree.tree_leaves(list(inputs))) or FakeTensorMode(allow_non_fake_inputs=True)


@contextlib.contextmanager
def taking_real_tensors(mode: FakeTensorMode) -> Iterator[None]:
    """While this lasts, `mode` takes real tensors too: parameters and constants of a graph are real."""
    before = mode.allow_non_fake_inputs
    mode.allow_non_fake_inputs = True
    try:
        yield
    finally:
        mode.allow_non_fake_inputs = before


def data_as_fakes(mode: FakeTensorMode, inputs: Sequence[Any]) -> list[Any]:
    """The inputs, those with data as fakes."""

    def fake(value: Any) -> Any:
        return mode.from_tensor(value, static_shapes=True) if torch_fakes.is_real(value) else value

    fakes: list[Any] = pytree.tree_map(fake, list(inputs))
    return fakes


def example_spec(value: torch.Tensor) -> TensorSpec:
    """What is known of a tensor, with what its symbolic sizes were in the call that its graph was captured with."""
    shape, stride = (tuple(map(example_of, numbers)) for numbers in (value.size(), value.stride()))
    return TensorSpec(shape, stride, value.dtype, value.device, value.requires_grad)


class _WithoutData(torch.fx.Interpreter):
    """Runs a graph on fakes. A number that is read from a tensor is the symbol that it was when the graph was traced."""

    def run_node(self, n: torch.fx.Node) -> Any:
        is_symbol = n.target is torch.ops.aten._local_scalar_dense.default and "val" in n.meta
        return n.meta["val"] if is_symbol else super().run_node(n)


class _Noting(_WithoutData):
    """Notes at each node what it yields, if that is a tensor or a container of tensors."""

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value)):
            n.meta["val"] = value
        return value


class _Collecting(_WithoutData):
    """Collects what some nodes yield."""

    def __init__(self, module: torch.fx.GraphModule, wanted: frozenset[torch.fx.Node]) -> None:
        super().__init__(module)
        self.wanted = wanted
        self.found: dict[torch.fx.Node, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if n in self.wanted:
            self.found[n] = value
        return value
