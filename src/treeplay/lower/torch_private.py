"""The private parts of torch that lowering uses, in one place, each covered by a test that it exists and behaves."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
import torch._higher_order_ops.effects
import torch._inductor.config as inductor_config
import torch._prims.rng_prims
import torch.fx
from torch._dynamo.convert_frame import compile_lock as compile_lock
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.inductor_prims import force_stride_order
from torch._inductor.lowering import fallbacks, lowerings, register_lowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from treeplay.device.protocol import Births
from treeplay.lower.births import ResultsTold
from treeplay.lower.functional import settled
from treeplay.lower.layouts import check_layouts as check_layouts
from treeplay.lower.layouts import has_convolutions_both_ways, put_channels_last

_OPTIONS: dict[str, Any] = {
    "triton.cudagraphs": False,
    # The call function has checked every tensor by then; in the artifact each check costs a string stream.
    "size_asserts": False,
    "alignment_asserts": False,
}
_HOST_OPTIONS: dict[str, Any] = {
    "cpp_wrapper": True,
    # The wrapper is compiled beside the kernels, with less optimization: a fifth less time, at the same speed.
    "cpp_wrapper_build_separate": True,
}
_EMITS = 1  # to be raised when our own lowerings emit something else: cached artifacts are of what they emitted
_GPU_OPTIONS: dict[str, Any] = {
    # The allocator does that as well, and then memory that a result lies in was the result's alone.
    "allow_buffer_reuse": False,
}
_PYTHON_ONLY = frozenset(
    (
        torch.ops.higher_order.run_and_save_rng_state,  # of checkpoints
        torch.ops.higher_order.run_with_rng_state,
        torch.ops.higher_order.with_effects,
    )
)
"""What Inductor's C++ wrapper cannot call."""


def decompositions() -> dict[Any, Any]:
    """Operators that Inductor wants taken apart before it sees them."""
    return dict(select_decomp_table())


@register_lowering(settled, type_promotion_kind=None)
def _settled(value: Any) -> Any:
    # A number that each element of a loop would compute anew (a power, say) is computed once and stored.
    value.realize()
    return value


def compile_graph(
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
) -> Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]:
    """Inductor's artifact for a functional graph, without the layers that torch puts around it.

    The results at `visible` (None: all) get the strides noted in the graph, others the strides that Inductor likes best.
    A step of training, whole, is no inference. An empty list `strides` is filled with what each result has; None for one
    that is no tensor.
    """
    known = inductor_config.get_config_copy()  # releases of torch differ in what can be set
    in_cpp = device.type == "cpu" and is_worth_cpp(module.graph)
    wanted = _OPTIONS | (_HOST_OPTIONS if in_cpp else {} if device.type == "cpu" else _GPU_OPTIONS)
    options = {name: value for name, value in wanted.items() if name in known}
    options["fallback_random"] = eager_random
    if is_small:
        options["cpp.threads"] = 1
    mode = next((fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)), None) or FakeTensorMode()
    context = torch._guards.TracingContext(mode)
    context.output_strides = strides
    with (
        inductor_config.patch(options),
        V.set_fake_mode(mode),
        torch._guards.tracing(context),
        torch._C._DisableAutocast(),
        torch.no_grad(),
    ):
        module = joint_graph_passes(module)
        if _wants_channels_last(module, is_inference):
            put_channels_last(module, force_stride_order)
        _mark_visible(module, visible)
        compiled = compile_fx_inner(
            module, fakes, cpp_wrapper=in_cpp, is_inference=is_inference, is_backward=is_backward
        )
    call: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]] | None = getattr(compiled, "current_callable", None)
    return call or compiled


def is_worth_cpp(graph: torch.fx.Graph) -> bool:
    """Whether a wrapper in C++ can be written, and saves more than it takes to compile (a quarter of a minute, at worst).

    It saves what Python takes between kernels. Where each operator is one that Inductor hands on to torch, there are none.
    """
    targets = [node.target for node in graph.nodes if node.op == "call_function"]
    return not any(target in _PYTHON_ONLY for target in targets) and not all(map(_is_handed_on, targets))


def _is_handed_on(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem
    return target.is_view or target not in lowerings or target in fallbacks


def _wants_channels_last(module: torch.fx.GraphModule, is_inference: bool) -> bool:
    return (
        not is_inference
        and has_convolutions_both_ways(module)
        and bool(GraphLowering.decide_layout_opt(module, is_inference=False))
    )


def _mark_visible(module: torch.fx.GraphModule, visible: Sequence[int] | None) -> None:
    results: Any = module.graph.output_node().args[0]
    chosen = [
        at for at in (range(len(results)) if visible is None else visible) if isinstance(results[at], torch.fx.Node)
    ]
    module.graph.output_node().meta["user_visible_output_idxs"] = chosen
    module.meta["treeplay"] = (_EMITS, *chosen)  # Inductor's cache looks at this, and not at the node's


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
