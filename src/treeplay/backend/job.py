"""One captured graph on its way: what is known of its arguments, and the compilers that its two directions share.

graph from the wrap stage ─▶ passes ─▶ inner compiler ─▶ facts ─▶ decide ─┬▶ no reason: recorded
                                                                          └▶ reasons: reported, runs as compiled
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.backend.account import Account, enter, next_graph_id, note
from treeplay.backend.alignment import plan_alignment, with_repair
from treeplay.backend.autograd.keeping import keep_for_backward
from treeplay.backend.autograd.partition import decompositions, splitter
from treeplay.backend.failing import acts_outside, kept_by, taken_back
from treeplay.backend.inner import GraphRoles, boxed, compile_inner, is_empty, without_views
from treeplay.backend.metadata import refresh_layout
from treeplay.backend.numbers import tensors_for_numbers
from treeplay.backend.options import Options
from treeplay.backend.passes import copy_of, run_after_autograd, run_joint
from treeplay.backend.recording import examine
from treeplay.backend.recording.compiled_graph import counting_calls
from treeplay.backend.recording.decide import reasons_to_skip
from treeplay.backend.recording.recorded import draws_random_numbers, recorded
from treeplay.backend.recording.replayed import Replayed
from treeplay.backend.recording.roles import check_saved_come_first, graph_roles, saved_roles
from treeplay.backend.surroundings import undisturbed
from treeplay.backend.timed import timed_at_first
from treeplay.errors import InternalError, TreeplayError
from treeplay.observe import counters
from treeplay.observe.internal import tell_internal
from treeplay.sandbox.boundary import Boundary
from treeplay.torch_seam import dynamo, partition
from treeplay.torch_seam.modes import without_function_modes
from treeplay.values.boxed import Boxed
from treeplay.values.captured import Direction, GraphFacts, Role
from treeplay.values.launch import LaunchFacts
from treeplay.values.refusal import Reason
from treeplay.wrap.aot import Compilers
from treeplay.wrap.aot.compilers import ARGUMENT, INNER, VISIBLE


def plain_compilers(drawing: Options | None = None) -> Compilers:
    """Compilers that run graphs as they are, unrecorded and unreported: for derivatives of a backward.

    `drawing`: what a forward is compiled under that draws random numbers, for a compiler draws numbers of its own."""
    options = Options(inner="aten", partition=partition.keep_all, record=False)
    drawing = dataclasses.replace(drawing, partition=partition.keep_all) if drawing is not None else options

    def as_it_is(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        keep_for_backward(module)
        return compile_inner(module, inputs, options)

    def forward(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        if drawing.inner == "aten" or not draws_random_numbers(module) or keep_for_backward(module):
            return as_it_is(module, inputs)
        with _alone():
            return compile_inner(module, inputs, drawing, GraphRoles("forward"))

    again = functools.partial(plain_compilers, drawing)
    return Compilers(forward, as_it_is, as_it_is, splitter(drawing), plain=again, keeps_inputs=True)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    with dynamo.compile_lock(), surrounded():
        yield


@contextlib.contextmanager
def surrounded() -> Iterator[None]:
    """Leave no mark on the caller, whose function modes see nothing."""
    with undisturbed(), without_function_modes():
        yield


class Job:
    """The compile of one captured graph. Each of its compilers works by the job's options, whenever it is called.

    Owned by the wrapped function; the backward, compiled later, finds here what became of its forward."""

    def __init__(
        self,
        options: Options,
        roles: Sequence[Role],
        names: Sequence[str],
        *,
        is_dynamic: bool = False,
        is_for_any_size: bool = False,
    ) -> None:
        self.options = options
        self.roles = dict(enumerate(roles))
        self.names = tuple(names)
        self.is_dynamic = is_dynamic
        self.is_for_any_size = is_for_any_size
        self.graph_id = next_graph_id()
        self.may_record = True
        self.can_be_taken_back = False
        self.accounts: list[Account] = []
        self.launches: dict[Direction, Replayed] = {}
        self.skipped_calls: Counter[str] = Counter()
        self.saved: dict[str, Role] = {}
        self.inner: tuple[int, int] = (0, 0)

    def compilers(self) -> Compilers:
        """What the wrap stage calls with the graphs it made."""
        return Compilers(
            forward=self.compile_forward,
            backward=self.compile_backward,
            inference=self.compile_inference,
            partition=splitter(self.options),
            decompositions=decompositions(self.options),
            is_guarded=True,
            alias_check=self.options.alias_check,
            plain=functools.partial(plain_compilers, self.options),
        )

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """For a block that compiles: one at a time in the process."""
        return _alone()

    def compile_forward(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        """Compile the forward of a graph whose backward may be needed."""
        with self.alone():
            self.inner = module.graph.output_node().meta.get(INNER, (0, 0))  # before passes make another output node
            return self._compile(module, inputs, "forward", self._visible(module), self.forward_options(module))

    def compile_inference(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        """Compile a graph that has no backward."""
        with self.alone():
            visible = self._visible(module)
            module = run_joint(module, inputs, self.options.joint)
            if self.options.inner == "inductor":
                tensors_for_numbers(module)
            return self._compile(module, inputs, "inference", visible, self.options)

    def compile_backward(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        """Compile the backward, for inputs that lie in memory as they do when it is first called."""
        with self.alone():
            spare = copy_of(module)  # what compiles it rewrites it
            try:
                with Boundary("compiling a backward", reasons=(TreeplayError,)):
                    check_saved_come_first([node.name for node in module.graph.find_nodes(op="placeholder")])
                    refresh_layout(module, inputs)
                    visible = None if self.options.keep_gradient_strides else ()
                    return self._compile(module, inputs, "backward", visible, self.options)
            except InternalError as error:
                self.broken(error)
                return boxed(without_views(spare))

    def forward_options(self, module: torch.fx.GraphModule) -> Options:
        """The options to compile a forward under; may prepare the graph."""
        return self.options

    def launch_facts(self) -> LaunchFacts | None:
        """How the forward, or the inference graph, is launched by now; None on the host."""
        account = next((item for item in self.accounts if item.direction != "backward"), None)
        if account is None or not account.facts.uses_accelerator:
            return None
        launch = self.launches.get(account.direction)
        device = str(account.facts.devices[0].device)
        if launch is None:
            skips = account.report().skips
            return LaunchFacts(device, "not recorded", why=str(skips[0]) if skips else None)
        return launch.facts() or LaunchFacts(device, "warming")

    def plain_calls(self) -> Counter[str]:
        """Calls of the forward, or the inference graph, that launched nothing though it is on a GPU, by reason."""
        replayed = (launch.plain_calls() for direction, launch in self.launches.items() if direction != "backward")
        return sum(replayed, self.skipped_calls)

    def refused(self, reason: Reason) -> None:
        """Report that the wrap stage could not take the graph. Raises if every graph has to be recorded."""
        account = Account(
            self.graph_id,
            "inference",
            GraphFacts("inference"),
            inner="as it is",
            seconds=0.0,
            must_record=self.options.record_or_fail,
        )
        self.accounts.append(account)
        enter(account)
        try:
            account.refused(reason)
        finally:
            note(account)

    def broken(self, error: InternalError) -> None:
        """Report an error of ours, for which a graph runs as it is. Raises if every graph has to be recorded."""
        tell_internal(error, "a graph of torch.compile")
        why = str(error).splitlines()[0]
        advice = "report it with its traceback, which treeplay.observe.internal_errors() gives"
        self.refused(Reason("treeplay", f"an error of its own: {why}", advice))

    def _visible(self, module: torch.fx.GraphModule) -> tuple[int, ...] | None:
        """The results whose strides are eager's; None for all. Read before passes, which may make another output node."""
        marked: tuple[int, ...] | None = module.graph.output_node().meta.get(VISIBLE)
        return marked if self.options.keep_strides else ()

    def _compile(
        self,
        module: torch.fx.GraphModule,
        inputs: Sequence[Any],
        direction: Direction,
        visible: tuple[int, ...] | None,
        options: Options,
    ) -> Boxed:
        start = time.perf_counter()
        is_inference = direction == "inference"
        module = run_after_autograd(module, inputs, options.after_autograd, is_inference=is_inference)
        nodes = module.graph.find_nodes(op="placeholder")
        roles = graph_roles(nodes, self.roles, self.saved)
        if direction == "forward":
            self.saved = saved_roles(module, roles)
        facts = self._facts(module, inputs, roles, direction)  # before a compiler rewrites the graph
        static = tuple(at for at, role in enumerate(roles) if role is Role.STATIC)
        flat = GraphRoles(direction, visible, static, self.graph_id, is_for_any_size=self.is_for_any_size)
        keep = None
        if direction != "backward":
            self.can_be_taken_back = not facts.uses_accelerator and not acts_outside(module)
            if self.can_be_taken_back:
                keep, options = kept_by(module, options)
        run = taken_back(compile_inner(module, inputs, options, flat), keep)
        counters.add("compiles", direction)
        if is_empty(module):
            return run
        written = [at for at, item in enumerate(facts.inputs) if item.is_written]
        run = with_repair(run, plan_alignment(facts.inputs), written)
        inner = options.inner if isinstance(options.inner, str) else getattr(options.inner, "__name__", "custom")
        account = Account(
            self.graph_id,
            direction,
            facts,
            inner=inner,
            seconds=time.perf_counter() - start,
            must_record=options.record_or_fail,
        )
        return self._decided(account, run, module, inputs, roles)

    def _decided(
        self,
        account: Account,
        run: Boxed,
        module: torch.fx.GraphModule,
        inputs: Sequence[Any],
        roles: tuple[Role, ...],
    ) -> Boxed:
        """Record the graph, or report why not."""
        self.accounts.append(account)
        enter(account)
        skips, compiled = reasons_to_skip(account.facts), run
        try:
            if skips:
                self.may_record = False
                account.skipped(skips)
                if account.facts.uses_accelerator and account.direction != "backward":
                    run = counting_calls(run, self.skipped_calls, "not recorded")
            else:
                run = recorded(run, module, inputs, roles, account)
                if isinstance(run, Replayed):
                    self.launches[account.direction] = run
        finally:
            note(account)
        return timed_at_first(run, compiled, account) if account.is_explained else run

    def _facts(
        self, module: torch.fx.GraphModule, inputs: Sequence[Any], roles: tuple[Role, ...], direction: Direction
    ) -> GraphFacts:
        nodes = module.graph.find_nodes(op="placeholder")
        names = [node.name if (at := node.meta.get(ARGUMENT)) is None else self.names[at] for node in nodes]
        return GraphFacts(
            direction=direction,
            inputs=examine.input_facts(nodes, inputs, roles, names),
            devices=examine.devices_of(module),
            operators=len(examine.calls_of(module)),
            obstacles=tuple(examine.obstacles_of(module)),
            marked=examine.marks_of(module),
            is_on=self.options.record,
            is_dynamic=self.is_dynamic,
            allows_dynamic=self.options.record_dynamic,
            has_caching_allocator=examine.has_caching_allocator(),
            is_forward_skipped=direction == "backward" and not self.may_record,
            inner=self.inner if direction == "forward" else (0, 0),
        )
