"""`CallPlan` → source of the function that a call runs; the node's are in `forward` and `backward`.

    def call(args):
        arg0, arg1 = args                  the arguments, if anything needs them later
        args.clear()
        value0, value1 = run(arg0, arg1)   the graph, or the node around it
        arg0.copy_(value0)                 writes, in argument order
        return [value1, apply_views(arg0, view1)]

What comes before the graph is written by `arguments`, what comes last by `results`. Pure: text and names come out,
nothing runs. Steps that a plan does not need leave no line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from treeplay.codegen import Source
from treeplay.codegen.idioms import Switch, switched
from treeplay.errors import PatternChanged, TreeplayError
from treeplay.torch_seam import flags, modes
from treeplay.values.output import inputs_used, values_used
from treeplay.wrap.aot.calls import checks, surroundings
from treeplay.wrap.aot.calls import node as helpers
from treeplay.wrap.aot.compilers import DirectCall
from treeplay.wrap.aot.emit import subclasses
from treeplay.wrap.aot.emit.arguments import write_arguments
from treeplay.wrap.aot.emit.plan_text import PlanText
from treeplay.wrap.aot.emit.results import write_result_lines
from treeplay.wrap.aot.emit.text import count_values, run_graph, tokens
from treeplay.wrap.aot.plan.facts import CallPlan, NodePlan

_WITHOUT_GRADIENTS = Switch("mode", torch.is_grad_enabled, flags.set_grad_enabled, False)
_WITH_GRADIENTS = (
    Switch("mode", torch.is_grad_enabled, flags.set_grad_enabled, True),
    Switch("replay", flags.is_view_replay_enabled, flags.set_view_replay, True),
)


def emit_wrapper_call(plan: CallPlan, run: Callable[..., Any], *, direct: DirectCall | None) -> Source:
    """The call function. `run` is the graph's callable, which takes one list, or `apply` of the plan's autograd function."""
    return _PlanEmitter(plan, run, direct=direct).written()


class _PlanEmitter(PlanText):
    """Checks, the graph, writes, views."""

    def __init__(self, plan: CallPlan, run: Callable[..., Any], *, direct: DirectCall | None) -> None:
        super().__init__(plan)
        self.direct = direct
        self.use("run", run)

    def written(self) -> Source:
        """The whole function."""
        if self.direct is None:
            with self.block("def call(args):"):
                self.body()
        else:
            with self.block("def call(*given):"):
                self.direct_body(self.direct)
        return self.source("call", entry="call")

    def direct_body(self, direct: DirectCall) -> None:
        """The body for arguments that come one by one, and what follows a failure, in one function: each frame costs."""
        is_for_every_call = self.plan.fits_every_call and direct.fits_every_call
        if not is_for_every_call:
            self.use("PatternChanged", PatternChanged)
            with self.block(f"for other_pattern in {self.use('other_patterns', direct.others)}:"):  # none, mostly
                self.add("try: return other_pattern(*given)", "except PatternChanged: pass")
        with self.block("try:"):
            self.modes(direct)
            self.frozen(direct)
            held = f"*{self.use('held_values', direct.held)}, " if direct.held else ""
            self.add(f"args = [{held}*given]")
            self.body()
        if not is_for_every_call:
            with self.block("except PatternChanged:"):  # nothing has run yet
                self.add(f"if not {self.use('for_others', direct.for_others)}: raise", "go_on = for_others[0]")
        self.use("TreeplayError", TreeplayError)
        self.add("except TreeplayError: raise")
        with self.block("except Exception:"):
            self.add(f"if not {self.use('may_run_again', direct.may_run_again)}(): raise")
            self.add(f"go_on = {self.use('as_it_is', direct.as_it_is)}")
        self.add("return tuple(go_on(*given))")

    def modes(self, direct: DirectCall) -> None:
        """Lines that ask for the modes that nobody else compares."""
        if not direct.modes:
            return
        for name, value in (item for _, names in direct.modes for item in names.items()):
            self.use(name, value)
        self.use("other_kernels", checks.other_kernels)
        self.add(f"if not ({' and '.join(text for text, _ in direct.modes)}): raise other_kernels()")

    def frozen(self, direct: DirectCall) -> None:
        """Lines that ask whether what was frozen still is."""
        if not direct.frozen:
            return
        told = {at: self.told(len(direct.held) + at) for at in direct.frozen}
        self.use("needs_gradient", checks.needs_gradient)
        asked = " or ".join(f"given[{at}].requires_grad" for at in direct.frozen)
        self.add(f"if {asked}: raise needs_gradient(given, {self.use('frozen_arguments', told)})")

    def returned(self, items: str) -> str:
        """What gives these results back."""
        if self.direct is None:
            return f"return [{items}]"
        return f"return ({items},)" if items else "return ()"

    def body(self) -> None:
        write_arguments(self)
        if self.plan.node is None:
            self.keep()
            self.inference()
        else:
            self.training(self.plan.node)
        self.writes()
        write_result_lines(self, self.returned)

    def keep(self) -> None:
        """Keep references to what the epilogue needs; everything else may die inside the graph."""
        kept = {write.argument for write in self.plan.writes}
        kept |= set(inputs_used(self.plan.results))
        for argument in sorted(kept & set(self.plan.inputs) & set(range(len(self.plan.arguments)))):
            self.add(f"{self.named(argument)} = args[{self.at(argument)}]")

    def inference(self) -> None:
        count = self.plan.returned_values
        nothing = "" if count else " or ()"
        opened = subclasses.open_arguments(self.plan, [f"args[{k}]" for k in range(len(self.plan.inputs))])
        if opened is not None:
            self.add(f"args[:] = {opened}")
        if self.plan.tokens:
            self.add(f"args[:0] = {tokens(self.plan.tokens)}")
        values = run_graph(self)
        line = f"values = {f'({values}){nothing}' if nothing else values}"
        # What raises may leave the list full, which would keep each argument alive.
        switched(self, [_WITHOUT_GRADIENTS], [line], ["args and args.clear()"], is_short=True)
        count_values(self, count)
        if self.plan.tokens:
            self.add(f"values = values[{self.plan.tokens}:]")
        subclasses.rebuild_values(self, self.plan, self.needed())

    def needed(self) -> list[int]:
        """The values that a write or a result uses."""
        used = [write.value for write in self.plan.writes if write.has_data]
        return [*used, *values_used(self.plan.results)]

    def training(self, node: NodePlan) -> None:
        given = self.plan.inputs
        passed = ", ".join(self.named(k) + (".detach()" if at in node.detached else "") for at, k in enumerate(given))
        self.use("is_transformed", modes.is_transformed)
        self.use("transformed", surroundings.transformed)
        self.add("if is_transformed(): raise transformed('forward')")
        self.unpack(map(self.named, given), "args")
        self.add("args.clear()")
        with self.aside() as lines:
            self.unpack((f"value{k}" for k in node.returned), f"run({passed})")
        switched(self, _WITH_GRADIENTS, lines, is_short=len(lines) == 1)

    def writes(self) -> None:
        for write in self.plan.writes:
            name = self.named(write.argument)
            if write.layout is not None:
                self.use("lay_out", helpers.lay_out)
                self.add(f"lay_out({name}, {self.use(f'layout{write.argument}', write.layout)})")
            if write.has_data and not write.is_versioned:
                self.use("write_unnoticed", helpers.write_unnoticed)
                self.add(f"write_unnoticed({name}, {self.value(write.value)})")
            elif write.has_data and write.is_tracked:
                self.add(f"{name}.copy_({self.value(write.value)})")
            elif write.has_data:
                self.add(f"{name}.detach().copy_({self.value(write.value)}.detach())")
