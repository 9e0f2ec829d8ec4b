"""Inductor's artifact for a functional graph: the options that it is compiled with, and the passes around its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.fx

from treeplay.device.turns import turns
from treeplay.errors import LoweringError
from treeplay.lower.functional import draws_often
from treeplay.lower.inductor.checked import has_unchecked_scatter
from treeplay.lower.inductor.counted_places import read_places_from_memory
from treeplay.lower.inductor.cpp_wrapper import is_worth_cpp
from treeplay.lower.inductor.last_rewrite import LAST_PASS, last_rewrite, mark_results
from treeplay.lower.inductor.layouts import ResultLayouts, has_convolutions_both_ways, put_channels_last
from treeplay.lower.inductor.memory import Groups, sharing_groups
from treeplay.lower.inductor.scaled import write_out_scales
from treeplay.observe import counters
from treeplay.observe.progress import progress
from treeplay.sandbox.generators import unmoved
from treeplay.torch_seam.context import TracingContext, tracing
from treeplay.torch_seam.fakes import FakeTensor, FakeTensorMode
from treeplay.torch_seam.flags import without_autocast
from treeplay.torch_seam.inductor import (
    GraphLowering,
    V,
    benchmarking,
    binding_sizes,
    compile_fx_inner,
    fake_tensor_prop,
    first_vector_instructions,
    inductor_config,
    joint_graph_passes,
    keeping_order,
    post_grad,
    torchs_counters,
)
from treeplay.torch_seam.inductor import compile_lock as compile_lock
from treeplay.torch_seam.inductor import force_stride_order as force_stride_order
from treeplay.torch_seam.inductor_store import key_in_store
from treeplay.values.boxed import Boxed

"""Takes its arguments in one list, which it empties."""

_OPTIONS: dict[str, Any] = {
    "triton.cudagraphs": False,
    # The call function has checked every tensor by then; in the artifact each check costs a string stream.
    "size_asserts": False,
    "alignment_asserts": False,
    # It leaves out `x + zeros`, which is not x where that is a negative zero.
    "joint_graph_constant_folding": False,
}
_HOST_OPTIONS: dict[str, Any] = {
    "cpp_wrapper": True,
    # The wrapper is compiled beside the kernels, with less optimization: a fifth less time, at the same speed.
    "cpp_wrapper_build_separate": True,
}
_GPU_OPTIONS: dict[str, Any] = {
    # The allocator does that as well, and then memory that a result lies in was the result's alone.
    "allow_buffer_reuse": False,
}
_COMPARES = "optimize_scatter_upon_const_tensor"
"""A scatter into equal elements becomes a comparison, which takes any index."""
_GRAPH_CACHES = ("fx_graph_cache", "fx_graph_remote_cache")
KEEPS_DRAWS_IN_ORDER = hasattr(post_grad, "_chain_random_ops_for_ordering")
"""Whether compiled code calls operators that draw random numbers in the graph's order. It did not before torch 2.13."""


def compile_artifact(
    module: torch.fx.GraphModule,
    fakes: Sequence[torch.Tensor],
    *,
    device: torch.device,
    eager_random: bool,
    is_small: bool,
    is_inference: bool = True,
    is_backward: bool = False,
    visible: Sequence[int] | None = None,
    strides: list[Any] | None = None,
    groups: Groups | None = None,
    stored: list[tuple[str, dict[str, Any]]] | None = None,
) -> Boxed:
    """Inductor's artifact for a functional graph, without the layers that torch puts around it.

    The results at `visible` (None: all) get the strides noted in the graph, others the strides that Inductor likes best.
    `groups` says which results may share memory; without it, those that do in the graph.
    A step of training, whole, is no inference. An empty list `strides` is filled with what each result has; None for one
    that is no tensor. An empty list `stored` is given the key and the options by which Inductor finds the artifact again, if it
    does.
    """
    if eager_random and not KEEPS_DRAWS_IN_ORDER and draws_often(module.graph):
        raise LoweringError("this release of Inductor changes the order in which random numbers are drawn")
    in_cpp = device.type == "cpu" and is_worth_cpp(module.graph)
    options = {"fallback_random": eager_random, **({"cpp.threads": 1} if is_small else {})}
    options |= _options(module.graph, fakes, device, in_cpp=in_cpp, is_backward=is_backward)
    mode = next((fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)), None) or FakeTensorMode()
    context = TracingContext(mode)
    context.output_strides = strides
    # So torch tells the strides as symbols, where it would tell those of the example alone. There is no first call in here.
    context.fakify_first_call = any(map(_is_symbolic, fakes))
    with (
        unmoved(),  # padding and tuning are measured on random inputs
        keeping_order(),
        binding_sizes(),
        benchmarking(turns.taken_last),  # it waits for the device, which breaks a capture that another thread has begun
        first_vector_instructions(),
        inductor_config.patch({**options, LAST_PASS: last_rewrite()}),
        V.set_fake_mode(mode),
        tracing(context),
        without_autocast(),
        torch.no_grad(),
    ):
        groups = groups or sharing_groups(module)
        write_out_scales(module.graph)
        if device.type == "cpu":
            read_places_from_memory(module.graph)
        layouts = ResultLayouts(module, visible)
        module = joint_graph_passes(module)
        layouts.restore(module, partial(fake_tensor_prop, module, fakes))
        if _wants_channels_last(module, is_inference):
            put_channels_last(module, force_stride_order)
        mark_results(module, visible, groups)
        operators = sum(node.op == "call_function" for node in module.graph.nodes)
        with _counting_cache(), progress(f"Inductor compiles {operators} operators"):
            compiled = compile_fx_inner(
                module, fakes, cpp_wrapper=in_cpp, is_inference=is_inference, is_backward=is_backward
            )
    call: Boxed | None = getattr(compiled, "current_callable", None)
    key = key_in_store(compiled)
    if stored is not None and call is not None and key is not None:
        stored.append((key, options))
    return call or _emptying(compiled)


def _options(
    graph: torch.fx.Graph, fakes: Sequence[Any], device: torch.device, *, in_cpp: bool, is_backward: bool
) -> dict[str, Any]:
    """What is asked of Inductor for a graph, as far as this torch can be asked."""
    wanted = dict(_OPTIONS)
    if device.type != "cpu":
        wanted |= _GPU_OPTIONS
    elif in_cpp:
        wanted |= _HOST_OPTIONS
    if any(map(_is_symbolic, fakes)) and not any(isinstance(fake, torch.SymInt) for fake in fakes):
        # The cache of graphs compares, and asks again, what was asked of numbers among the inputs: of sizes it would not.
        wanted |= dict.fromkeys(_GRAPH_CACHES, False)
    if device.type == "cpu" and not is_backward and has_unchecked_scatter(graph):
        wanted[_COMPARES] = False
    known = inductor_config.get_config_copy()  # releases of torch differ in what can be set
    return {name: value for name, value in wanted.items() if name in known}


def _is_symbolic(fake: Any) -> bool:
    sizes = fake.size() if isinstance(fake, torch.Tensor) else (fake,)
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _emptying(run: Boxed) -> Boxed:
    """What Inductor gives for a graph of which its passes have left nothing, which does not empty the list of its arguments."""

    def call(args: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        results = run(args)
        args.clear()
        return results

    return call


@contextlib.contextmanager
def _counting_cache() -> Iterator[None]:
    """Count what Inductor's cache of compiled graphs has to say of a compile."""
    told = torchs_counters["inductor"]
    before = {what: told[f"fxgraph_cache_{what}"] for what in ("hit", "miss", "bypass")}
    yield
    for what, count in before.items():
        if told[f"fxgraph_cache_{what}"] > count:
            counters.add("inductor cache", what, told[f"fxgraph_cache_{what}"] - count)


def _wants_channels_last(module: torch.fx.GraphModule, is_inference: bool) -> bool:
    return (
        not is_inference
        and has_convolutions_both_ways(module)
        and bool(GraphLowering.decide_layout_opt(module, is_inference=False))
    )
