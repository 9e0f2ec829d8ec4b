"""Inductor: its entry behind torch's layers around it, its passes, its table of lowerings. Takes seconds to import."""

from __future__ import annotations

import torch._higher_order_ops.effects
import torch._inductor.config as inductor_config
import torch._prims.rng_prims  # noqa: F401 - registers operators that graphs may hold
from torch._dynamo.convert_frame import compile_lock as compile_lock
from torch._dynamo.utils import counters as torchs_counters
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes import post_grad
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.inductor_prims import force_stride_order as force_stride_order
from torch._inductor.lowering import fallback_handler, fallbacks, lowerings, register_lowering
from torch._inductor.virtualized import V

__all__ = [
    "CustomGraphPass",
    "GraphLowering",
    "V",
    "compile_fx_inner",
    "compile_lock",
    "fallback_handler",
    "fallbacks",
    "force_stride_order",
    "get_hash_for_files",
    "inductor_config",
    "joint_graph_passes",
    "lowerings",
    "post_grad",
    "register_lowering",
    "select_decomp_table",
    "torchs_counters",
]
