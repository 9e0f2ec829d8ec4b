"""`CallPlan` → source of the function that a call runs, and of the node's forward and backward.

    def call(args):
        x, y = args                        arguments by the user's names, if anything needs them later
        args.clear()
        value0, value1 = apply(x, y)       the graph, or the node around it
        x.copy_(value0)                    writes, in argument order
        return [value1, apply_views(x, view1)]

Pure: text and names come out, nothing runs. Steps that a plan does not need leave no line.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch

from treeplay.codegen import Source, Writer, list_of, tuple_of
from treeplay.codegen.idioms import Switch, note_writes, switched, view_of
from treeplay.errors import PatternChanged, TreeplayError
from treeplay.torch_seam import fakes, flags, modes
from treeplay.torch_seam import tensors as torch_tensors
from treeplay.values.output import Fresh, Result, SameAsInput, SameAsOutput, View, inputs_used, values_used
from treeplay.wrap.aot import checks, surroundings
from treeplay.wrap.aot import emit_subclasses as subclasses
from treeplay.wrap.aot import node as helpers
from treeplay.wrap.aot.compilers import DirectCall
from treeplay.wrap.aot.emit_text import count_values, run_graph, tokens
from treeplay.wrap.aot.plan import (
    CallPlan,
    NodePlan,
    NoOverlap,
)

_WITHOUT_GRADIENTS = Switch("mode", torch.is_grad_enabled, flags.set_grad_enabled, False)
_WITH_GRADIENTS = (
    Switch("mode", torch.is_grad_enabled, flags.set_grad_enabled, True),
    Switch("replay", flags.is_view_replay_enabled, flags.set_view_replay, True),
)
_FEW = 4  # results that are named one by one, which takes less time than a copy of the list
_MAX_PAIRS = 8
"""Up to so many pairs are tested one by one; more are tested by address, all at once."""


def emit_call(
    plan: CallPlan, run: Callable[..., Any], *, is_boxed: bool = True, direct: DirectCall | None = None
) -> Source:
    """The call function. `run` is the graph's callable, which takes one list if it `is_boxed`, or `apply` of the plan's
    autograd function."""
    return _PlanEmitter(plan, run, is_boxed=is_boxed, direct=direct).written()


class _PlanEmitter(Writer):
    """Checks, the graph, writes, views."""

    def __init__(self, plan: CallPlan, run: Callable[..., Any], *, is_boxed: bool, direct: DirectCall | None) -> None:
        super().__init__()
        self.plan = plan
        self.is_boxed = is_boxed
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
        is_for_every_call = self.plan.fits_every_call and not direct.frozen
        if not is_for_every_call:
            self.use("PatternChanged", PatternChanged)
            with self.block(f"for other_pattern in {self.use('other_patterns', direct.others)}:"):  # none, mostly
                self.add("try: return other_pattern(*given)", "except PatternChanged: pass")
        with self.block("try:"):
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
        self.checks()
        self.copies()
        subclasses.check_arguments(self, self.plan)
        self.bases()
        self.apart()
        self.versions()
        if self.plan.node is None:
            self.keep()
            self.inference()
        else:
            self.training(self.plan.node)
        self.writes()
        self.results()

    def named(self, argument: int) -> str:
        return self.plan.name(argument)

    def checks(self) -> None:
        for argument in self.plan.awaited:
            self.use("waited", fakes.waited)
            self.add(f"args[{argument}] = waited(args[{argument}])")
        for argument, offset in self.plan.begins:
            self.use("begins_elsewhere", checks.begins_elsewhere)
            self.add(
                f"if args[{argument}].storage_offset() != {offset}: raise begins_elsewhere({self.told(argument)!r})"
            )
        if self.plan.checks:
            self.use("check_arguments", checks.check_arguments)
            self.use("expected", self.plan.checks)
            self.add(f"check_arguments(args, expected, {self.plan.arguments!r})")

    def copies(self) -> None:
        for later, earlier in self.plan.copies:
            self.use("check_copy", checks.check_copy)
            told = (self.told(earlier), self.told(later))
            self.add(f"check_copy(args[{earlier}], args[{later}], {told!r})")
        for later in sorted((later for later, _ in self.plan.copies), reverse=True):
            self.add(f"del args[{later}]")

    def bases(self) -> None:
        """Members of a common base are taken off the list, and the base is put in front."""
        dropped = sorted(later for later, _ in self.plan.copies)
        place = {k: k - sum(later < k for later in dropped) for k in range(len(self.plan.arguments))}
        for k, base in enumerate(self.plan.bases):
            name = self.named(len(self.plan.arguments) + k)
            spec = self.use(f"{name}spec", base)
            for member in base.members:
                self.add(f"{self.named(member.argument)} = args[{place[member.argument]}]")
            members = tuple_of(self.named(member.argument) for member in base.members)
            self.use("common_base", checks.common_base)
            told = tuple(self.told(member.argument) for member in base.members)
            self.add(f"{name} = common_base({spec}, {members}, {told!r})")
            for argument in base.moved:
                note_writes(self, [self.named(argument)])
        if self.plan.bases:
            count = len(self.plan.arguments)
            texts = [self.named(k) if k >= count else f"args[{place[k]}]" for k in self.plan.inputs]
            self.add(f"args[:] = {list_of(texts)}")

    def at(self, argument: int) -> int:
        """Where an argument stands once the copies are dropped and the bases made."""
        return self.plan.inputs.index(argument)

    def apart(self) -> None:
        apart = self.plan.apart
        if apart is None:
            return
        for one, other in apart.distinct:
            self.use("one_object", checks.one_object)
            both = (self.told(one), self.told(other))
            self.add(f"if args[{self.at(one)}] is args[{self.at(other)}]: raise one_object({both!r})")
        if len(apart.written) * (len(apart.written) + len(apart.others)) > _MAX_PAIRS:
            self.all_apart(apart)
            return
        self.use("check_apart", checks.check_apart)
        lengths = dict(zip((*apart.written, *apart.others), apart.lengths, strict=True))
        for k in (k for k, length in lengths.items() if length):
            self.add(f"at{k} = args[{self.at(k)}].data_ptr()")
        for one, other in apart.pairs():
            first, second = lengths[one], lengths[other]
            if first is not None and second is not None:
                if first and second:  # not only one storage: tensors made of a NumPy array have one each
                    given = f"args[{self.at(one)}], args[{self.at(other)}], {(self.told(one), self.told(other))!r}"
                    self.add(f"if -{first} < at{one} - at{other} < {second}: check_apart({given})")
                continue
            self.use("shares_storage", torch_tensors.shares_storage)
            for left in self.tensors(one):
                for right in self.tensors(other):
                    pair = f"{left}, {right}"
                    told = self.told(one), self.told(other)
                    self.add(f"if shares_storage({pair}): check_apart({pair}, {told!r})")

    def all_apart(self, apart: NoOverlap) -> None:
        parts: dict[int, list[str]] = {k: self.tensors(k) for k in (*apart.written, *apart.others)}
        if not any(map(self.plan.wrapper, parts)):
            places, told, given = {k: [self.at(k)] for k in parts}, {self.at(k): self.told(k) for k in parts}, "args"
        else:  # each tensor inside has a place of its own
            listed = [(k, text) for k, texts in parts.items() for text in texts]
            places = {k: [at for at, (owner, _) in enumerate(listed) if owner == k] for k in parts}
            told = {at: self.told(owner) for at, (owner, _) in enumerate(listed)}
            given = list_of(text for _, text in listed)
        written, others = ([at for k in group for at in places[k]] for group in (apart.written, apart.others))
        self.use("check_all_apart", checks.AllApart(tuple(written), tuple(others), told))
        self.add(f"check_all_apart({given})")

    def tensors(self, argument: int) -> list[str]:
        """The plain tensors of an argument, in the list of arguments."""
        at, wrapper = self.at(argument), self.plan.wrapper(argument)
        return [f"args[{at}]"] if wrapper is None else wrapper.tensors(f"args[{at}]")

    def told(self, argument: int) -> str:
        """An argument as messages call it."""
        count = len(self.plan.arguments)
        if argument < count:
            return f"argument {argument} (`{self.named(argument)}`)"
        listed = [self.told(member.argument) for member in self.plan.bases[argument - count].members]
        return f"the memory of {', '.join(listed)}"

    def versions(self) -> None:
        """Layouts change before the graph as far as autograd can tell: what this call saves is not outdated by it."""
        moved = {write.argument for write in self.plan.writes if not write.has_data} | set(self.plan.touched)
        places = [f"args[{self.at(argument)}]" for argument in sorted(moved)]
        if len(places) > _FEW:
            self.add(f"{self.use('note_every_write', helpers.note_every_write)}({list_of(places)})")
            return
        for place in places:
            self.use("note_write", helpers.note_write)
            self.add(f"note_write({place})")

    def keep(self) -> None:
        """Only what the epilogue needs stays referenced; everything else may die inside the graph."""
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
        values = run_graph(self, is_boxed=self.is_boxed)
        line = f"values = {f'({values}){nothing}' if nothing else values}"
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
        passed = ", ".join(self.named(k) + (".detach()" if k in node.detached else "") for k in given)
        self.use("is_transformed", modes.is_transformed)
        self.use("transformed", surroundings.transformed)
        self.add("if is_transformed(): raise transformed('forward')")
        self.unpack(map(self.named, given), "args")
        self.add("args.clear()")
        with self.aside() as lines:
            self.unpack((f"value{k}" for k in node.returned), f"run({passed})")
        switched(self, _WITH_GRADIENTS, lines, is_short=len(lines) == 1)

    def value(self, value: int) -> str:
        return subclasses.value(self.plan, value) if self.plan.node is None else f"value{value}"

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

    def results(self) -> None:
        named: dict[int, str] = {}
        again = {result.index for result in self.plan.results if isinstance(result, SameAsOutput)}
        for k, result in enumerate(self.plan.results):
            text = named[result.index] if isinstance(result, SameAsOutput) else self.result(k, result)
            if k in again and not text.isidentifier():
                self.add(f"result{k} = {text}")
                text = f"result{k}"
            named[k] = text
        if self.plan.grad_mode_after is not None:
            self.use("set_grad_enabled", flags.set_grad_enabled)
            self.add(f"set_grad_enabled({self.plan.grad_mode_after})")
        texts = [named[k] for k in range(len(named))]
        if self.plan.layouts:
            self.add(f"results = {list_of(texts)}")
            self.layouts()
            self.add(self.returned("*results"))
            return
        is_plain = texts == [f"values[{k}]" for k in range(self.plan.values)]
        self.add(self.returned("*values" if is_plain and len(texts) > _FEW else ", ".join(texts)))

    def layouts(self) -> None:
        """Shapes of members change last: one of them may be the base that results were taken of."""
        for argument, layout in self.plan.layouts:
            name = self.named(argument)
            self.use("lay_out", helpers.lay_out)
            note_writes(self, [name])
            self.add(f"lay_out({name}, {self.use(f'layout{argument}', layout)})")

    def result(self, k: int, result: Result) -> str:
        match result:
            case Fresh(index):
                return self.value(index)
            case SameAsInput(index):
                return self.named(index)
            case View():
                return self.view(k, result)
        raise AssertionError(result)

    def view(self, k: int, view: View) -> str:
        of, layout = view.of, view.layout
        base = self.value(of.index) if isinstance(of, Fresh) else self.named(of.index)
        if view.steps is not None:
            self.use("apply_views", fakes.apply_views)
            self.use(f"view{k}", pickle.loads(view.steps))
            text = f"apply_views({base}, view{k})"
        elif view.cast is not None:
            self.use("memory_as", helpers.memory_as)
            dtype = self.use(f"dtype{k}", view.cast.dtype)
            memory = f"memory_as({base}, {dtype}, {base}.storage_offset() + {view.cast.start})"
            text = f"view_in({memory}, {self.use(f'layout_of_view{k}', layout)})"
            self.use("view_in", helpers.view_in)
        else:
            text = view_of(base, layout, is_whole=False)
        text += ".detach()" if view.is_detached else ""
        return text + (".requires_grad_()" if view.requires_grad else "")
