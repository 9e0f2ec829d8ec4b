"""Inductor's artifact for a graph: the options that it is compiled with, and what it tells of the memory it takes."""

from __future__ import annotations

import contextlib
import keyword
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.fx

from treeplay.device.protocol import Births
from treeplay.device.turns import turns
from treeplay.errors import LoweringError
from treeplay.lower import late, masked, memory, scaled, signs
from treeplay.lower.births import ResultsTold
from treeplay.lower.checked import has_unchecked_scatter, with_checks
from treeplay.lower.functional import apart, draws_often, fresh, settled
from treeplay.lower.layouts import ResultLayouts, has_convolutions_both_ways, put_channels_last
from treeplay.lower.layouts import check_layouts as check_layouts
from treeplay.lower.memory import Groups, groups_of, keep_apart
from treeplay.lower.scaled import write_out_scales
from treeplay.lower.signs import keep_signs, with_signs
from treeplay.observe import counters
from treeplay.observe.progress import progress
from treeplay.sandbox.generators import unmoved
from treeplay.torch_seam import trees as pytree
from treeplay.torch_seam.context import TracingContext, tracing
from treeplay.torch_seam.fakes import FakeTensor, FakeTensorMode
from treeplay.torch_seam.flags import without_autocast
from treeplay.torch_seam.inductor import (
    CustomGraphPass,
    GraphLowering,
    V,
    benchmarking,
    compile_fx_inner,
    fake_tensor_prop,
    fallback_handler,
    fallbacks,
    first_vector_instructions,
    get_hash_for_files,
    inductor_config,
    joint_graph_passes,
    keeping_order,
    lowerings,
    post_grad,
    register_lowering,
    select_decomp_table,
    torchs_counters,
)
from treeplay.torch_seam.inductor import compile_lock as compile_lock
from treeplay.torch_seam.inductor import force_stride_order as force_stride_order
from treeplay.torch_seam.inductor_store import key_in_store
from treeplay.torch_seam.operators import OpOverload
from treeplay.torch_seam.schemas import is_random

ArtifactCall = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
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
_EMITS = 4  # to be raised when our own lowerings emit something else: cached artifacts are of what they emitted
_GPU_OPTIONS: dict[str, Any] = {
    # The allocator does that as well, and then memory that a result lies in was the result's alone.
    "allow_buffer_reuse": False,
}
_COMPARES = (
    "optimize_scatter_upon_const_tensor"  # a scatter into equal elements becomes a comparison, which takes any index
)
_GRAPH_CACHES = ("fx_graph_cache", "fx_graph_remote_cache")
_PYTHON_ONLY = frozenset(
    (
        torch.ops.higher_order.run_and_save_rng_state,  # of checkpoints
        torch.ops.higher_order.run_with_rng_state,
        torch.ops.higher_order.with_effects,
    )
)
"""What Inductor's C++ wrapper cannot call."""
KEEPS_DRAWS_IN_ORDER = hasattr(post_grad, "_chain_random_ops_for_ordering")
"""Whether compiled code calls operators that draw random numbers in the graph's order. It did not before torch 2.13."""


def decompositions(*, eager_random: bool) -> dict[Any, Any]:
    """Operators that Inductor wants taken apart before it sees them; where their kernels check values, the parts do. Where
    they are to draw eager's random numbers, those that draw any stay whole: in parts they would draw others."""
    table = with_checks(with_signs(select_decomp_table()))
    return {op: parts for op, parts in table.items() if not (eager_random and _draws_whole(op))}


def _draws_whole(op: Any) -> bool:
    # `random.from` cannot stand in a graph's code; taken apart it draws as `randint` does, and so as itself.
    return isinstance(op, OpOverload) and is_random(op) and not keyword.iskeyword(op._overloadname)


@register_lowering(settled, type_promotion_kind=None)
def _settled(value: Any) -> Any:
    # A number that each element of a loop would compute anew (a power, say) is computed once and stored.
    value.realize()
    return value


@register_lowering(fresh, type_promotion_kind=None)
def _fresh(value: Any) -> Any:
    made = lowerings[torch.ops.aten.clone.default](value)
    made.realize()
    return made


@register_lowering(apart, type_promotion_kind=None)
def _apart(value: Any) -> Any:
    return fallback_handler(torch.ops.aten.clone.default, add_to_fallback_set=False)(value)


class _LastRewrite(CustomGraphPass):
    """Runs behind Inductor's own passes, the last of which leave out no-ops; and behind the user's."""

    def __init__(self, others: Sequence[Any]) -> None:
        self._others = others

    def __call__(self, graph: torch.fx.Graph) -> None:
        for other in self._others:
            other(graph)
        keep_signs(graph)
        groups = graph.output_node().meta.get(_GROUPS)
        if groups is not None:  # else it is a child graph, which writes nothing
            keep_apart(graph, groups)

    def uuid(self) -> Any:
        """What Inductor's cache knows it by; None if it cannot know the user's."""
        told = [other.uuid() if isinstance(other, CustomGraphPass) else None for other in self._others]
        return (
            None
            if None in told
            else (get_hash_for_files(tuple(part.__file__ for part in (memory, late, masked, scaled, signs))), *told)
        )


_GROUPS = "treeplay_groups"
_LAST_PASS = "post_grad_custom_post_pass"


def _last_rewrite() -> _LastRewrite:
    found: Any = inductor_config.post_grad_custom_post_pass
    return _LastRewrite(found if isinstance(found, (list, tuple)) else [found] if found is not None else [])


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
    groups: Groups | None = None,
    stored: list[tuple[str, dict[str, Any]]] | None = None,
) -> ArtifactCall:
    """Inductor's artifact for a functional graph, without the layers that torch puts around it.

    The results at `visible` (None: all) get the strides noted in the graph, others the strides that Inductor likes best.
    `groups` says which results may share memory; without it, those that do in the graph.
    A step of training, whole, is no inference. An empty list `strides` is filled with what each result has; None for one
    that is no tensor. An empty list `stored` is given the key and the options by which Inductor finds the artifact again, if it
    does.
    """
    if eager_random and not KEEPS_DRAWS_IN_ORDER and draws_often(module.graph):
        raise LoweringError("this release of Inductor changes the order in which random numbers are drawn")
    known = inductor_config.get_config_copy()  # releases of torch differ in what can be set
    in_cpp = device.type == "cpu" and is_worth_cpp(module.graph)
    wanted = _OPTIONS | (_HOST_OPTIONS if in_cpp else {} if device.type == "cpu" else _GPU_OPTIONS)
    options = {name: value for name, value in wanted.items() if name in known}
    if any(map(_is_symbolic, fakes)) and not any(isinstance(fake, torch.SymInt) for fake in fakes):
        # The cache of graphs compares, and asks again, what was asked of numbers among the inputs: of sizes it would not.
        options |= {name: False for name in _GRAPH_CACHES if name in known}
    options["fallback_random"] = eager_random
    options[_LAST_PASS] = _last_rewrite()
    if is_small:
        options["cpp.threads"] = 1
    if device.type == "cpu" and not is_backward and has_unchecked_scatter(module.graph):
        options |= {name: False for name in (_COMPARES,) if name in known}
    mode = next((fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)), None) or FakeTensorMode()
    context = TracingContext(mode)
    context.output_strides = strides
    # So torch tells the strides as symbols, where it would tell those of the example alone. There is no first call in here.
    context.fakify_first_call = any(map(_is_symbolic, fakes))
    with (
        unmoved(),  # padding and tuning are measured on random inputs
        keeping_order(),
        benchmarking(turns.taken_last),  # it waits for the device, which breaks a capture that another thread has begun
        first_vector_instructions(),
        inductor_config.patch(options),
        V.set_fake_mode(mode),
        tracing(context),
        without_autocast(),
        torch.no_grad(),
    ):
        groups = groups or groups_of(module)
        write_out_scales(module.graph)
        layouts = ResultLayouts(module, visible)
        module = joint_graph_passes(module)
        layouts.restore(module, partial(fake_tensor_prop, module, fakes))
        if _wants_channels_last(module, is_inference):
            put_channels_last(module, force_stride_order)
        _mark_results(module, visible, groups)
        operators = sum(node.op == "call_function" for node in module.graph.nodes)
        with _counting_cache(), progress(f"Inductor compiles {operators} operators"):
            compiled = compile_fx_inner(
                module, fakes, cpp_wrapper=in_cpp, is_inference=is_inference, is_backward=is_backward
            )
    call: ArtifactCall | None = getattr(compiled, "current_callable", None)
    key = key_in_store(compiled)
    if stored is not None and call is not None and key is not None:
        stored.append((key, {name: options[name] for name in options if name != _LAST_PASS}))
    return call or _emptying(compiled)


def _is_symbolic(fake: Any) -> bool:
    sizes = fake.size() if isinstance(fake, torch.Tensor) else (fake,)
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _emptying(run: ArtifactCall) -> ArtifactCall:
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


def is_worth_cpp(graph: torch.fx.Graph) -> bool:
    """Whether a wrapper in C++ can be written, and saves more than it takes to compile (a quarter of a minute, at worst).

    It saves what Python takes between kernels. Where each operator is one that Inductor hands on to torch, there are none.
    """
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    return not any(map(_is_python_only, nodes)) and not all(map(_is_handed_on, nodes))


def _is_python_only(node: torch.fx.Node) -> bool:
    """Whether the C++ wrapper cannot call an operator, or would take the list that it gives for a tensor."""
    target = node.target
    if target in _PYTHON_ONLY:
        return True
    if not isinstance(target, OpOverload) or not _is_handed_on(node):
        return False
    # Views are no calls, but for those of complex tensors.
    is_called = not target.is_view or _is_of_complex(node)
    return is_called and any(str(item.type) != "Tensor" for item in target._schema.returns)


def _is_handed_on(node: torch.fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload):
        return target is operator.getitem
    return target.is_view or target not in lowerings or target in fallbacks or _is_of_complex(node)


def _is_of_complex(node: torch.fx.Node) -> bool:
    return any(map(_is_complex, (*node.args, node)))


def _is_complex(argument: Any) -> bool:
    # Inductor has no kernels for complex numbers.
    nodes = pytree.arg_tree_leaves(argument)
    values = [
        leaf for node in nodes if isinstance(node, torch.fx.Node) for leaf in pytree.tree_leaves(node.meta.get("val"))
    ]
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)


def _wants_channels_last(module: torch.fx.GraphModule, is_inference: bool) -> bool:
    return (
        not is_inference
        and has_convolutions_both_ways(module)
        and bool(GraphLowering.decide_layout_opt(module, is_inference=False))
    )


def _mark_results(module: torch.fx.GraphModule, visible: Sequence[int] | None, groups: Groups) -> None:
    output = module.graph.output_node()
    results: Any = output.args[0]
    chosen = [
        at for at in (range(len(results)) if visible is None else visible) if isinstance(results[at], torch.fx.Node)
    ]
    output.meta["user_visible_output_idxs"] = chosen
    output.meta[_GROUPS] = groups
    module.meta["treeplay"] = (_EMITS, groups, *chosen)  # Inductor's cache looks at this, and not at the node's


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
