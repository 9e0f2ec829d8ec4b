"""A jitted program compiled once for all sizes: the flat function of a traced one, with symbols for the sizes that change.

    Rerun ─ same operators? ─ captured ▶ graph with symbols ─ compile, in whichever thread ▶ boxed callable
                                                        └ asked ▶ what has to hold of the sizes of a call

What the program and the compiler ask of the symbols is ours to guard: the symbols belong to this one compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.backend.acting import kept
from treeplay.backend.job import Job
from treeplay.backend.options import Options
from treeplay.backend.shapes.any_size import why_not_plain
from treeplay.backend.surroundings import undisturbed
from treeplay.settings import settings
from treeplay.torch_seam import flags
from treeplay.torch_seam.context import TracingContext, tracing
from treeplay.torch_seam.dynamo import compile_lock
from treeplay.torch_seam.sizes import SymbolicSizes, shown_as_numbers
from treeplay.torch_seam.symbols import divided_as_known, example_of, floats_divided, numpy_asks
from treeplay.trace.any_size import (
    Changing,
    check_passed,
    check_same_operators,
    layouts_of_results,
    meets_numpy,
    not_for_any_size,
    signature_for_any_size,
)
from treeplay.trace.call import Call
from treeplay.trace.log import LoggedCall, takes_large_layers
from treeplay.trace.rerun import Rerun
from treeplay.values.boxed import Boxed
from treeplay.values.captured import Role
from treeplay.values.layout import Layout
from treeplay.values.signature import Argument, Input, Signature
from treeplay.values.sizes import AskedOfSizes, SizeOf
from treeplay.values.spec import TensorSpec
from treeplay.values.structure import as_written
from treeplay.wrap.aot.tracing.capture import captured


@dataclass(frozen=True, slots=True)
class ProgramForAnySize:
    """What is compiled: it holds no tensor of the call, and nothing of the program."""

    signature: Signature
    operators: int
    compile: Callable[[], tuple[Boxed, AskedOfSizes]]
    """For any thread, once; raises `LoweringError`, or `Refusal` where sizes turn out to be fixed."""


def trace_for_any_size(
    program: Callable[..., Any],
    call: Call,
    signature: Signature,
    tensors: Sequence[torch.Tensor],
    changing: Changing,
    acting: frozenset[Any],
    log: Sequence[LoggedCall],
    made: Sequence[TensorSpec],
) -> ProgramForAnySize:
    """The program with symbols for the sizes in `changing`. `signature` and `tensors` are those of the ordinary trace of
    `call`, without its constants; `acting` and `log` are its operators that act, and all; `made` what its graph gives. Raises
    `Refusal`."""
    plain = signature_for_any_size(signature, call, changing)
    given = (call.leaves[item.source.index] for item in plain.inputs[len(tensors) :])  # type: ignore[union-attr]
    tensors = [*tensors, *given]
    check_passed(plain, tensors, changing)
    sizes, names = SymbolicSizes(), [as_written(item.name) for item in plain.inputs]
    rerun = Rerun(program, call, plain, tensors, keeps_sizes=True)
    job = Job(
        Options(eager_random=settings.eager_random),
        [Role.ORDINARY if isinstance(item.source, Argument) else Role.STATIC for item in plain.inputs],
        [str(item) for item in plain.inputs],
        is_dynamic=True,
        is_for_any_size=True,
    )
    with ExitStack() as stack:
        stack.enter_context(compile_lock())
        stack.enter_context(undisturbed())
        stack.enter_context(kept(acting, draws=job.options.draws_as_eager))
        stack.enter_context(_without_inference_mode())
        stack.enter_context(shown_as_numbers())
        stack.enter_context(rerun.ready(is_exact=takes_large_layers(log)))
        stack.enter_context(numpy_asks(meets_numpy))  # with the turn, as in any other trace
        stack.enter_context(floats_divided(divided_as_known))
        fakes = [
            sizes.fake_of(tensor, f"t{at}", _changing(item, changing))
            for at, (item, tensor) in enumerate(zip(plain.inputs, tensors, strict=True))
        ]
        check_same_operators(rerun, tensors, sizes, fakes, log)
        _check_symbols(sizes, names)
        stack.enter_context(tracing(TracingContext(sizes.mode)))
        traced, seen = stack.enter_context(captured(rerun, fakes, job.compilers().decompositions, names=job.names))
        why = why_not_plain(traced, seen)
        if why is not None:
            raise not_for_any_size(why)
        _check_symbols(sizes, names)
        _check_layouts(traced.graph, layouts_of_results(signature, made))
        graph, inputs = traced.graph, list(traced.inputs)

    def compile_it() -> tuple[Boxed, AskedOfSizes]:
        with kept(acting), torch.no_grad(), flags.without_autocast():
            run = job.compilers().inference(graph, inputs)
        _check_symbols(sizes, names)
        return run, _asked(sizes)

    operators = sum(node.op == "call_function" for node in graph.graph.nodes)
    return ProgramForAnySize(plain, operators, compile_it)


def import_ahead() -> None:
    """Trace something small, so that all is imported that the first trace takes: seconds, for any thread."""
    global is_warm
    sizes = SymbolicSizes()
    fake = sizes.fake_of(torch.empty(3, 2), "t0", {0})
    job = Job(Options(), [Role.ORDINARY], ["x"], is_dynamic=True, is_for_any_size=True)
    decompositions = job.compilers().decompositions
    with (
        compile_lock(),
        undisturbed(),
        tracing(TracingContext(sizes.mode)),
        torch.no_grad(),
        captured(lambda x: [(x * x.shape[0]).sum(0)], [fake], decompositions, names=job.names),
    ):
        is_warm = True


is_warm = False


def _changing(item: Input, changing: Changing) -> frozenset[int]:
    return changing.get(item.source.index, frozenset()) if isinstance(item.source, Argument) else frozenset()


@contextmanager
def _without_inference_mode() -> Iterator[None]:
    """Tensors without data are not made in inference mode: outside of it, with gradients off, the operators are the same."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def _check_layouts(module: torch.fx.GraphModule, results: Sequence[Layout | TensorSpec]) -> None:
    """Refuse a program whose results would lie otherwise than in the ordinary trace: a layer that took one large operator there
    takes smaller ones under the trace with symbols."""
    made: Any = module.graph.output_node().args[0]
    for node, wanted in zip(made, results, strict=True):
        now = tuple(map(example_of, node.meta["val"].stride()))
        if any(size > 1 and was != is_now for size, was, is_now in zip(wanted.shape, wanted.stride, now, strict=True)):
            raise not_for_any_size(f"a result would lie in memory with strides {now}, and eager's with {wanted.stride}")


def _check_symbols(sizes: SymbolicSizes, names: Sequence[str]) -> None:
    fixed = sizes.fixed()
    if fixed:
        name, dimension = fixed[0]
        raise not_for_any_size(
            f"the program or the compiler needs size {dimension} of {names[int(name[1:])]} while it runs"
        )


def _asked(sizes: SymbolicSizes) -> AskedOfSizes:
    asked = sizes.asked()
    if asked is None:
        raise not_for_any_size("something is asked of the sizes that depends on more than them")
    questions, names = asked
    changing = tuple(f"{name}_size_{dimension}" for name, dimension in sizes.changing())
    numbers = tuple(
        SizeOf(name, int(tensor[1:]), what, dimension if dimension >= 0 else None)
        for name, (tensor, what, dimension) in names.items()
        if name in changing or any(name in question for question in questions)
    )
    return AskedOfSizes(numbers, tuple(questions), changing)
