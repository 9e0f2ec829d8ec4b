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

from treeplay.facts.source import Source
from treeplay.wrap.aot import checks, torch_private
from treeplay.wrap.aot import node as helpers
from treeplay.wrap.aot.plan import Again, CallPlan, Flag, New, Node, Recipe, Result, Same, ViewOfArgument, ViewOfValue

_INDENT = "    "
_MAX_PAIRS = 8
"""Up to so many pairs are tested one by one; more are tested by address, all at once."""


def emit_call(plan: CallPlan, run: Callable[..., Any]) -> Source:
    """The call function. `run` is the graph's boxed callable, or `apply` of the plan's autograd function."""
    return _Call(plan, run).source()


class _Text:
    """Lines and the global names that they use."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}

    def add(self, *lines: str) -> None:
        self.lines += [_INDENT + line for line in lines]

    def use(self, name: str, value: Any) -> str:
        self.names[name] = value
        return name

    def text(self, header: str) -> str:
        return "\n".join([header, *self.lines]) + "\n"


class _Call(_Text):
    """Checks, the graph, writes, views."""

    def __init__(self, plan: CallPlan, run: Callable[..., Any]) -> None:
        super().__init__()
        self.plan = plan
        self.use("run", run)
        self.use("set_grad_enabled", torch_private.set_grad_enabled)
        self.use("is_grad_enabled", torch.is_grad_enabled)

    def source(self) -> Source:
        self.checks()
        self.copies()
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
        return Source("call", self.text("def call(args):"), self.names, entry="call")

    def name(self, argument: int) -> str:
        return self.plan.name(argument)

    def checks(self) -> None:
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
            name = self.name(len(self.plan.arguments) + k)
            spec = self.use(f"{name}spec", base)
            for member in base.members:
                self.add(f"{self.name(member.argument)} = args[{place[member.argument]}]")
            members = "".join(f"{self.name(member.argument)}, " for member in base.members)
            self.use("common_base", checks.common_base)
            self.add(f"{name} = common_base({spec}, ({members}))")
            for argument in base.moved:
                self.use("increment_version", torch.autograd.graph.increment_version)
                self.add(f"increment_version({self.name(argument)})")
        if self.plan.bases:
            count = len(self.plan.arguments)
            texts = [self.name(k) if k >= count else f"args[{place[k]}]" for k in self.plan.inputs]
            self.add(f"args[:] = [{', '.join(texts)}]")

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
            written, others = ([self.at(k) for k in group] for group in (apart.written, apart.others))
            told = {self.at(k): self.told(k) for k in (*apart.written, *apart.others)}
            self.use("check_all_apart", checks.AllApart(tuple(written), tuple(others), told))
            self.add("check_all_apart(args)")
            return
        for one, other in apart.pairs():
            self.use("shares_storage", torch_private.shares_storage)
            self.use("check_apart", checks.check_apart)
            pair = f"args[{self.at(one)}], args[{self.at(other)}]"
            self.add(f"if shares_storage({pair}): check_apart({pair}, {(self.told(one), self.told(other))!r})")

    def told(self, argument: int) -> str:
        """An argument as messages call it."""
        count = len(self.plan.arguments)
        if argument < count:
            return f"argument {argument} (`{self.name(argument)}`)"
        listed = [str(member.argument) for member in self.plan.bases[argument - count].members]
        return f"the memory of arguments {', '.join(listed)}"

    def versions(self) -> None:
        """Layouts change before the graph as far as autograd can tell: what this call saves is not outdated by it."""
        moved = {write.argument for write in self.plan.writes if not write.has_data} | set(self.plan.touched)
        for argument in sorted(moved):
            self.use("note_write", helpers.note_write)
            self.add(f"note_write(args[{self.at(argument)}])")

    def keep(self) -> None:
        """Only what the epilogue needs stays referenced; everything else may die inside the graph."""
        kept = {write.argument for write in self.plan.writes}
        kept |= {result.argument for result in self.plan.results if isinstance(result, Same | ViewOfArgument)}
        for argument in sorted(kept & set(self.plan.inputs) & set(range(len(self.plan.arguments)))):
            self.add(f"{self.name(argument)} = args[{self.at(argument)}]")

    def inference(self) -> None:
        self.use("is_any_autocast_enabled", torch_private.is_any_autocast_enabled)
        self.use("run_plainly", helpers.run_plainly)
        self.use("wrong_count", helpers.wrong_count)
        count = self.plan.values
        nothing = "" if count else " or ()"
        self.add(
            "if mode := is_grad_enabled(): set_grad_enabled(False)",
            f"try: values = (run_plainly(run, args) if is_any_autocast_enabled() else run(args)){nothing}",
            "finally:",
            "    if mode: set_grad_enabled(True)",
            "    if args: args.clear()",
            f"if len(values) != {count}: raise wrong_count({count}, values)",
        )

    def training(self, node: Node) -> None:
        given = self.plan.inputs
        names = ", ".join(self.name(k) for k in given)
        passed = ", ".join(self.name(k) + (".detach()" if k in node.detached else "") for k in given)
        returned = ", ".join(f"value{k}" for k in node.returned)
        self.add(
            f"{names}{',' if len(given) == 1 else ''} = args",
            "args.clear()",
            "if not (mode := is_grad_enabled()): set_grad_enabled(True)",
            f"try: {returned}{',' if len(node.returned) == 1 else ''} = run({passed})",
            "finally:",
            "    if not mode: set_grad_enabled(False)",
        )

    def value(self, value: int) -> str:
        return f"values[{value}]" if self.plan.node is None else f"value{value}"

    def writes(self) -> None:
        for write in self.plan.writes:
            name = self.name(write.argument)
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
        again = {result.result for result in self.plan.results if isinstance(result, Again)}
        for k, result in enumerate(self.plan.results):
            text = named[result.result] if isinstance(result, Again) else self.result(k, result)
            if k in again and not text.isidentifier():
                self.add(f"result{k} = {text}")
                text = f"result{k}"
            named[k] = text
        if self.plan.grad_mode_after is not None:
            self.add(f"set_grad_enabled({self.plan.grad_mode_after})")
        texts = [named[k] for k in range(len(named))]
        if self.plan.layouts:
            self.add(f"results = [{', '.join(texts)}]")
            self.layouts()
            self.add("return results")
            return
        is_plain = texts == [f"values[{k}]" for k in range(self.plan.values)]
        self.add("return [*values]" if is_plain else f"return [{', '.join(texts)}]")

    def layouts(self) -> None:
        """Shapes of members change last: one of them may be the base that results were taken of."""
        for argument, layout in self.plan.layouts:
            name = self.name(argument)
            self.use("lay_out", helpers.lay_out)
            self.use("increment_version", torch.autograd.graph.increment_version)
            self.add(f"increment_version({name})")
            self.add(f"lay_out({name}, {self.use(f'layout{argument}', layout)})")

    def result(self, k: int, result: Result) -> str:
        match result:
            case New():
                return self.value(result.value)
            case Same():
                return self.name(result.argument)
            case ViewOfArgument():
                return self.view(k, self.name(result.argument), result.recipe)
            case ViewOfValue():
                return self.view(k, self.value(result.value), result.recipe)
        raise AssertionError(result)

    def view(self, k: int, base: str, recipe: Recipe) -> str:
        if recipe.steps is not None:
            self.use("apply_views", torch_private.apply_views)
            self.use(f"view{k}", pickle.loads(recipe.steps))
            text = f"apply_views({base}, view{k})"
        else:
            layout = recipe.layout
            text = f"{base}.as_strided({layout.size}, {layout.stride}, {layout.offset})"
        ends = {Flag.KEEP: "", Flag.DETACH: ".detach()", Flag.REQUIRE: ".requires_grad_()"}
        return text + ends[recipe.flag]


def emit_forward(plan: CallPlan, node: Node, run: Callable[..., Any], *, is_donating: bool) -> Source:
    """The node's forward: runs the graph, saves for the backward, marks what needs no gradient."""
    text = _Text()
    text.use("run", run)
    text.use("wrong_count", helpers.wrong_count)
    text.use("is_any_autocast_enabled", torch_private.is_any_autocast_enabled)
    text.use("run_plainly", helpers.run_plainly)
    names = ", ".join(plan.name(k) for k in plan.inputs)
    count = plan.values + node.saved
    later = "".join(f"{plan.name(write.argument)}, " for write in node.late if write.argument is not None)
    if later:
        text.add(f"ctx.later = ({later})")
    text.add(
        f"args = [{names}]",
        f"del {names}",
        "try: values = run_plainly(run, args) if is_any_autocast_enabled() else run(args)",
        "finally: args.clear()",
        f"if len(values) != {count}: raise wrong_count({count}, values)",
    )
    _save(text, plan, node)
    if is_donating:  # what the user's hooks give back may be the user's own
        text.use("saving_hooks", torch_private.saving_hooks)
        text.add("ctx.is_hooked = saving_hooks(True) is not None")
    for k in node.views:
        text.add(f"view{k} = values[{k}].detach()")
    value = {k: f"view{k}" if k in node.views else f"values[{k}]" for k in node.returned}
    plain = [value[k] for k in node.returned if k not in node.differentiable]
    if plain:
        text.use("Tensor", torch.Tensor)
        marked = ", ".join(f"*(({value},) if isinstance({value}, Tensor) else ())" for value in plain)
        text.add(f"ctx.mark_non_differentiable({marked})")
    text.add("ctx.set_materialize_grads(False)")
    text.add(f"return ({''.join(f'{value[k]}, ' for k in node.returned)})")
    return Source("node forward", text.text(f"def forward(ctx, {names}):"), text.names, entry="forward")


def _save(text: _Text, plan: CallPlan, node: Node) -> None:
    text.use("saved_view", helpers.saved_view)
    places = [f"values[{plan.values + k}]" for k in range(node.saved)]
    saved = [f"{place}.clone()" if k in node.copied else f"saved_view({place})" for k, place in enumerate(places)]
    checked = saved[: len(saved) - node.unchecked]
    unchecked = saved[len(saved) - node.unchecked :]
    if checked:
        text.add(f"ctx.save_for_backward({', '.join(checked)})")
    if unchecked:
        text.add(f"ctx.unchecked = [{', '.join(unchecked)}]")


def emit_backward(plan: CallPlan, node: Node, run: Callable[..., Any], run_last: Callable[..., Any] | None) -> Source:
    """The node's backward: gradients in the expected layout, the graph, and a gradient only where eager has one.

    `run_last` may overwrite saved values: it runs where the graph is not kept for another backward."""
    text = _Text()
    text.use("run", run)
    text.use("is_grad_enabled", torch.is_grad_enabled)
    text.use("differentiated", helpers.differentiated)
    text.use("is_any_autocast_enabled", torch_private.is_any_autocast_enabled)
    text.use("run_plainly", helpers.run_plainly)
    arriving = {tangent.value: f"grad{k}" for k, tangent in enumerate(node.tangents)}
    names = [arriving.get(value, f"unused{value}") for value in node.returned]
    # Autograd's own reference to each gradient must go too, so that it can die inside the graph.
    text.add(f"{''.join(f'{name}, ' for name in names)} = grads" if len(names) > 1 else f"{names[0]}, = grads")
    text.add("grads.clear()" if torch_private.GRADIENTS_COME_IN_A_LIST else "del grads")
    _refuse_late(text, node)
    for k, tangent in enumerate(node.tangents):
        if tangent.value not in node.returned:
            text.add(f"grad{k} = None")
        if any(write.tangent == k for write in node.late):
            text.add(f"given{k} = grad{k}")
        _tangent(text, node, k)
    saved = [_saved(text, node)] if node.saved > node.unchecked else []
    saved += ["*ctx.unchecked"] if node.unchecked else []
    later = ["*ctx.later"] if any(write.argument is not None for write in node.late) else []
    text.add(f"args = [{', '.join([*saved, *arriving.values(), *later])}]")
    text.add(f"del {', '.join(dict.fromkeys([*names, *arriving.values()]))}")
    chosen = _release(text, node, run_last)
    text.add(
        f"grads = differentiated(run, args) if is_grad_enabled() else "
        f"run_plainly({chosen}, args) if is_any_autocast_enabled() else {chosen}(args)"
    )
    _late(text, node)
    if node.late:
        fed = [_fed(k, feed, len(node.tangents)) for k, feed in enumerate(node.feeds)]
    else:
        fed = ["None" if feed is None else f"grads[{k}]" for k, feed in enumerate(node.feeds)]
    text.add(f"return ({''.join(f'{item}, ' for item in fed)})")
    header = "def backward(ctx, grads):" if torch_private.GRADIENTS_COME_IN_A_LIST else "def backward(ctx, *grads):"
    return Source("node backward", text.text(header), text.names, entry="backward")


def _release(text: _Text, node: Node, run_last: Callable[..., Any] | None) -> str:
    """Let go of saved tensors that no other backward will read; the name of what runs the graph."""
    if node.saved == node.unchecked:
        return "run"
    text.use("keeps_graph", torch_private.keeps_graph)
    text.add("is_last = not keeps_graph()", "if is_last: ctx.maybe_clear_saved_tensors()")
    if run_last is None:
        return "run"
    text.use("run_last", run_last)
    text.add("chosen = run_last if is_last and not ctx.is_hooked else run")
    return "chosen"


def _saved(text: _Text, node: Node) -> str:
    """What reads the saved tensors; where results have graphs of their own in eager, a backward frees only its own."""
    if not node.groups:
        return "*ctx.saved_tensors"
    text.use("saved_of", helpers.saved_of)
    text.use("groups", node.groups)
    came = ", ".join(f"grad{k} is not None" for k in range(len(node.tangents)))
    return f"*saved_of(ctx, groups, ({came},))"


def _tangent(text: _Text, node: Node, k: int) -> None:
    tangent = node.tangents[k]
    layout = text.use(f"layout{k}", tangent.layout)
    text.use("laid_out", helpers.laid_out)
    text.use("strided", torch.strided)
    if node.late:
        text.use("missing", helpers.missing)
        text.use(f"dtype{k}", getattr(torch, tangent.dtype.removeprefix("torch.")))
        text.use(f"device{k}", torch.device(tangent.device))
        text.add(f"came{k} = grad{k} is not None")
        text.add(f"if grad{k} is None: grad{k} = missing({layout}, dtype{k}, device{k})")
    text.add(
        f"if grad{k} is not None and (grad{k}.layout is not strided or grad{k}.stride() != {tangent.layout.stride}): "
        f"grad{k} = laid_out(grad{k}, {layout})"
    )


def _refuse_late(text: _Text, node: Node) -> None:
    """Under create_graph a write to what needs a gradient would lack its history."""
    if any(write.needs_grad for write in node.late):
        text.use("late_write", helpers.late_write)
        text.add("if is_grad_enabled(): raise late_write()")


def _late(text: _Text, node: Node) -> None:
    """The backward's own writes, unseen by autograd."""
    place = 0
    for k, write in enumerate(node.late, start=len(node.feeds)):
        if write.tangent is None:
            text.add(f"ctx.later[{place}].detach().copy_(grads[{k}].detach())")
            place += 1
        else:
            given = f"given{write.tangent}"
            text.add(f"if {given} is not None: {given}.detach().copy_(grads[{k}].detach())")


def _fed(k: int, feed: tuple[int, ...] | None, tangents: int) -> str:
    if feed is None:
        return "None"
    if len(feed) in (0, tangents):
        return f"grads[{k}]"
    return f"grads[{k}] if {' or '.join(f'came{tangent}' for tangent in feed)} else None"
