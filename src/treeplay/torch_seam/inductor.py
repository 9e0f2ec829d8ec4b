"""Inductor: its entry behind torch's layers around it, its passes, its table of lowerings. Takes seconds to import."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch._higher_order_ops.effects
import torch._inductor.config as inductor_config
import torch._prims.rng_prims
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.utils import counters as torchs_counters
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.compile_fx import compile_fx_inner, fake_tensor_prop
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.dependencies import StarDep, WeakDep
from torch._inductor.fx_passes import post_grad
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.inductor_prims import force_stride_order
from torch._inductor.ir import InplaceBernoulliFallback
from torch._inductor.loop_body import InterpreterShim
from torch._inductor.lowering import fallback_handler, fallbacks, lowerings, register_lowering
from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from treeplay.torch_seam.patched import Shared
from treeplay.torch_seam.vector_isa import first_vector_instructions

__all__ = [
    "CustomGraphPass",
    "GraphLowering",
    "InplaceBernoulliFallback",
    "V",
    "benchmarking",
    "binding_sizes",
    "compile_fx_inner",
    "compile_lock",
    "fake_tensor_prop",
    "fallback_handler",
    "fallbacks",
    "first_vector_instructions",
    "force_stride_order",
    "get_hash_for_files",
    "inductor_config",
    "joint_graph_passes",
    "keeping_order",
    "lowerings",
    "post_grad",
    "register_lowering",
    "select_decomp_table",
    "torchs_counters",
]


def _recompute(original: Callable[..., None], is_wanted: Callable[[], bool]) -> Callable[..., None]:
    def recompute_size_and_body(node: Any, *args: Any, **kwargs: Any) -> None:
        order = OrderedSet(dep for dep in node.read_writes.reads if isinstance(dep, (WeakDep, StarDep)))
        original(node, *args, **kwargs)
        if is_wanted():
            node.set_read_writes(node.read_writes.with_read(order).rename(node.mutation_renames))

    return recompute_size_and_body


keeping_order = Shared(SchedulerNode, "recompute_size_and_body", _recompute).wanted
"""A context in which a kernel that gets other loops, to become part of another, keeps its place behind those that read what it
overwrites. In torch 2.11 it comes to stand anywhere, since its dependencies are then read off its body alone."""


def _measuring_apart(original: Callable[..., Any], value: Callable[[], Any]) -> Callable[..., Any]:
    def benchmark_gpu(*args: Any, **kwargs: Any) -> Any:
        with (value() or nullcontext)():
            return original(*args, **kwargs)

    return benchmark_gpu


benchmarking = Shared(type(benchmarker), "benchmark_gpu", _measuring_apart).wanted
"""For a block, whatever this thread's compile measures on a GPU, it measures inside of the context that a function gives."""


def _binding(original: Callable[..., None], is_wanted: Callable[[], bool]) -> Callable[..., None]:
    def codegen_inputs(wrapper: Any) -> None:
        with inductor_config.patch(size_asserts=True) if is_wanted() else nullcontext():
            original(wrapper)

    return codegen_inputs


binding_sizes = Shared(PythonWrapperCodegen, "codegen_inputs", _binding).wanted
"""A context in which compiled code reads each size that it names off the tensors that it is given. From torch 2.14 on, it does
so only where it compares sizes too, and raises a NameError otherwise."""


def _identity() -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    graph.output(graph.placeholder("x"))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


if hasattr(InterpreterShim, "_dummy_gm"):
    # Inductor traces this module symbolically, once in a process. For as long as that takes, any module that another thread
    # calls counts as part of the trace, and raises a NameError.
    InterpreterShim._dummy_gm = staticmethod(cache(_identity))  # type: ignore[method-assign, assignment]
