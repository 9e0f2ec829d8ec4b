"""One flat graph becomes a boxed callable: passed through if it computes nothing, else given to the inner compiler."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from treeplay.backend.metadata import data_as_fakes, mode_of
from treeplay.backend.options import Options
from treeplay.backend.strides import check_symbolic_strides, noted_strides, visible_strides, with_strides
from treeplay.codegen.compiler import find_compiler, find_gpu_compiler
from treeplay.errors import InternalError, LoweringError, UsageError
from treeplay.graph_check import check_module
from treeplay.observe import counters, warn_once
from treeplay.sandbox.boundary import users_own
from treeplay.torch_seam import context as torch_context
from treeplay.torch_seam import flags, fx
from treeplay.torch_seam import trees as pytree
from treeplay.torch_seam.operators import HigherOrderOperator
from treeplay.values.boxed import Boxed
from treeplay.values.captured import Direction

_NOT_CALLS = ("placeholder", "get_attr", "output")


@dataclass(frozen=True, slots=True)
class GraphRoles:
    """What an inner compiler may want to know of a graph beside its inputs.

    `visible`: positions of the results whose strides are eager's; None for all. `static`: inputs that stay where they are.
    `is_for_any_size`: where Inductor cannot compile it, that is an error, and the graph is compiled for known sizes.
    """

    direction: Direction = "inference"
    visible: tuple[int, ...] | None = None
    static: tuple[int, ...] = ()
    graph_id: int = 0
    is_for_any_size: bool = False

    def as_keywords(self) -> dict[str, Any]:
        """As a user's own inner compiler is told."""
        return {
            "static": self.static,
            "visible": self.visible,
            "is_backward": self.direction == "backward",
            "is_inference": self.direction == "inference",
            "graph_id": self.graph_id,
        }


def compile_inner(
    module: torch.fx.GraphModule, inputs: Sequence[Any], options: Options, flat: GraphRoles | None = None
) -> Boxed:
    """Compile a flat graph under `options`. Its results may be tensors, None and numbers, and stay in their places.

    Where the tracing context asks for the strides of the results, they are reported there."""
    check_module(module, "the passes")
    check_result(module)
    if is_empty(module):
        return boxed(module)
    flat = flat or GraphRoles()
    strides = noted_strides(module)
    with flags.without_autocast():  # its casts are written out, and must not be made twice
        if callable(options.inner):
            with users_own():
                run: Boxed = _emptying(options.inner(module, inputs, **_asked_for(options.inner, flat)))
        elif options.inner == "aten":
            run = boxed(without_views(module))
        else:
            run, strides = _inductor(module, inputs, options, flat, strides)
    _report(strides)
    return run


def _report(strides: Sequence[Any]) -> None:
    """Tell whoever asks the strides of each result of what was compiled; None for no tensor."""
    asked = torch_context.strides_asked_for()
    if asked is None:
        return
    if asked:
        raise InternalError(f"strides were reported already: {asked}")
    asked.extend(stride if stride is None else tuple(stride) for stride in strides)


def is_empty(module: torch.fx.GraphModule) -> bool:
    """Whether a graph calls nothing: it returns inputs, constants, or nothing at all."""
    return all(node.op in _NOT_CALLS for node in module.graph.nodes)


def check_result(module: torch.fx.GraphModule) -> None:
    """Raise unless the graph's result is a list or tuple."""
    result = module.graph.output_node().args[0]
    if not isinstance(result, (list, tuple)):
        raise LoweringError(
            f"the inner compiler takes graphs whose result is a list or tuple, found {type(result).__name__} in\n"
            f"{module.graph}"
        )


def without_views(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with its views as reshapes: torch's rules for tensors without data make some results contiguous that an
    operator leaves transposed, and no view of such a result is possible. Nothing writes to a view: the graph is functional.

    A result that is made as a tensor of its own stays one: autograd lets nobody write to a view that comes out of a node. It
    still counts what is written to it together with what it lies in, which may be saved."""
    for node in module.graph.output_node().all_input_nodes:
        if node.target is torch.ops.aten._unsafe_view.default:
            with module.graph.inserting_after(node):
                apart = module.graph.call_function(torch.ops.aten.detach.default, (node,))
            apart.meta = dict(node.meta)
            module.graph.output_node().replace_input_with(node, apart)
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            fx.views_as_reshapes(part.graph)
            part.recompile()
    return module


def boxed(module: torch.fx.GraphModule) -> Boxed:
    """Run a graph as it is; the arguments come in one list, which is emptied, so that each can die at its last use."""
    graph = copy.deepcopy(module.graph)
    graph.set_codegen(BoxedCode())
    fx.name_by_functions(graph)
    twin = torch.fx.GraphModule(module, graph)
    run: Boxed = twin.forward

    def call(args: list[Any]) -> Sequence[Any]:
        return run(args)

    # By this torch knows a callable that takes one list.
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _emptying(run: Boxed) -> Boxed:
    """What a user's own compiler gave, which has to empty the list of its arguments so that each can die at its last use."""

    def call(args: list[Any]) -> Sequence[Any]:
        results = run(args)
        if args:
            raise UsageError(
                f"the option `inner`: what the compiler gave left {len(args)} values in the list of its arguments, which it "
                "has to empty; fix: `args.clear()` once it has taken them"
            )
        return results

    return call


class BoxedCode(torch.fx.graph.CodeGen):
    """Writes a graph's function so that it takes its arguments in one list and empties it before it computes."""

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **_: Any) -> str:
        """The head of the function, and the lines that take the arguments out."""
        # What torch.fx gives are parameters of a `def`: with annotations and defaults.
        names = [name.split(":")[0].split("=")[0].strip() for name in free_vars if name != "self"]
        taken = f"\n    {', '.join(names)}, = args_list" if names else ""
        return f"def {self._func_name}(self, args_list){maybe_return_annotation}:{taken}\n    args_list.clear()"


def _asked_for(inner: Callable[..., Any], flat: GraphRoles) -> dict[str, Any]:
    """What a user's inner compiler has keywords for."""
    known = flat.as_keywords()
    try:
        parameters = inspect.signature(inner).parameters.values()
    # What is written in C may have no signature.
    except (TypeError, ValueError):
        return {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return known
    names = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    return {name: value for name, value in known.items() if name in names}


def _inductor(
    module: torch.fx.GraphModule, inputs: Sequence[Any], options: Options, flat: GraphRoles, noted: list[Any]
) -> tuple[Boxed, list[Any]]:
    """Inductor's artifact and the strides of its results; where Inductor cannot be had, the graph as it is."""
    device = _device_of(module, inputs)
    if (
        _shows_negatives(module, inputs)
        or (find_compiler() if device.type == "cpu" else find_gpu_compiler()).path is None
    ):
        return boxed(module), noted
    from treeplay.lower.inductor import artifact
    from treeplay.lower.inductor.layouts import check_layouts

    mode = mode_of(inputs)
    fakes = data_as_fakes(mode, inputs)
    # Inductor rewrites what it is given, and others still ask the graph.
    spare = fx.lazy_module(module, copy.deepcopy(module.graph))
    for node in spare.graph.find_nodes(op="call_function", target=torch.ops.aten._neg_view.default):
        node.target = torch.ops.aten.neg.default  # kernels do not look at the bit that makes it a view
    _note_numbers(spare)
    strides: list[Any] = []
    try:
        check_layouts(module.graph)
        run = artifact.compile_artifact(
            spare,
            fakes,
            device=device,
            eager_random=options.eager_random,
            is_small=False,
            is_inference=flat.direction == "inference",
            is_backward=flat.direction == "backward",
            visible=flat.visible,
            strides=strides,
        )
        if flat.is_for_any_size:
            check_symbolic_strides(strides, noted, flat.visible)
    except Exception as error:  # Inductor raises anything
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if flat.is_for_any_size:
            raise LoweringError(why) from error  # for known sizes it may do better
        counters.add("lowering failed", "inductor")
        warn_once(f"treeplay runs a graph of torch.compile's uncompiled, operator by operator: Inductor raised {why}")
        return boxed(module), noted
    wanted = visible_strides(noted, flat.visible)
    wrong = [(at, stride) for at, stride in wanted if at >= len(strides) or strides[at] != stride]
    return with_strides(run, wrong), [dict(wanted).get(at, stride) for at, stride in enumerate(strides)] or noted


def _note_numbers(module: torch.fx.GraphModule) -> None:
    """Note at the placeholders of child graphs the numbers that they are given: a trace notes none of those that are known, and
    Inductor compares what is noted with what is given."""
    for part in filter(lambda each: isinstance(each, torch.fx.GraphModule), list(module.modules())):
        for node in part.graph.nodes:  # type: ignore[union-attr]
            if not isinstance(node.target, HigherOrderOperator):
                continue
            given = [leaf for operands in node.args if isinstance(operands, (list, tuple)) for leaf in operands]
            functions = [getattr(part, str(source.target), None) for source in node.args if _is_function(source)]
            for child in functions:
                places = child.graph.find_nodes(op="placeholder") if isinstance(child, torch.fx.GraphModule) else ()
                for place, value in zip(places, given, strict=False):
                    if isinstance(value, int):
                        place.meta.setdefault("val", value)


def _is_function(source: Any) -> bool:
    return isinstance(source, torch.fx.Node) and source.op == "get_attr"


def _shows_negatives(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether an input or result shows the negatives of what lies in its memory, which compiled code would read or give."""
    values = [*inputs, *(getattr(part, "meta", {}).get("val") for part in pytree.tree_leaves(_result(module)))]
    return any(isinstance(value, torch.Tensor) and value.layout is torch.strided and value.is_neg() for value in values)


def _result(module: torch.fx.GraphModule) -> Any:
    return module.graph.output_node().args[0]


def _device_of(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.device:
    """The accelerator that the graph runs on, else the CPU."""
    values = [*inputs, *(node.meta.get("val") for node in module.graph.nodes)]
    devices = [leaf.device for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
