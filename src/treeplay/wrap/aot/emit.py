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
from treeplay.wrap.aot import emit_subclasses as subclasses
from treeplay.wrap.aot import node as helpers
from treeplay.wrap.aot import opening, surroundings, torch_private
from treeplay.wrap.aot.plan import (
    Again,
    CallPlan,
    Flag,
    New,
    Node,
    Recipe,
    Result,
    Same,
    Tangent,
    ViewOfArgument,
    ViewOfValue,
    WrappedTangent,
)
from treeplay.wrap.aot.random_states import Generators, draw_seeds

_INDENT = "    "


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
        self.copies()
        subclasses.check_arguments(self, self.plan)
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
        return self.plan.arguments[argument]

    def copies(self) -> None:
        for later, earlier in self.plan.copies:
            self.use("check_copy", helpers.check_copy)
            self.add(f"check_copy(args[{earlier}], args[{later}], ({earlier}, {later}))")
        for later in sorted((later for later, _ in self.plan.copies), reverse=True):
            self.add(f"del args[{later}]")

    def at(self, argument: int) -> int:
        """Where an argument stands once the copies are dropped."""
        return argument - sum(later < argument for later, _ in self.plan.copies)

    def apart(self) -> None:
        for one, other in self.plan.apart:
            self.use("shares_storage", torch_private.shares_storage)
            self.use("check_apart", helpers.check_apart)
            for left in self.tensors(one):
                for right in self.tensors(other):
                    pair = f"{left}, {right}"
                    self.add(f"if shares_storage({pair}): check_apart({pair}, ({one}, {other}))")

    def tensors(self, argument: int) -> list[str]:
        """The plain tensors of an argument, in the list of arguments."""
        at = self.at(argument)
        wrapper = self.plan.opened.arguments[at] if self.plan.opened is not None else None
        return [f"args[{at}]"] if wrapper is None else wrapper.tensors(f"args[{at}]")

    def versions(self) -> None:
        """Layouts change before the graph as far as autograd can tell: what this call saves is not outdated by it."""
        moved = {write.argument for write in self.plan.writes if not write.has_data} | set(self.plan.touched)
        for argument in sorted(moved):
            self.use("increment_version", torch.autograd.graph.increment_version)
            self.add(f"increment_version(args[{self.at(argument)}])")

    def keep(self) -> None:
        """Only what the epilogue needs stays referenced; everything else may die inside the graph."""
        kept = {write.argument for write in self.plan.writes}
        kept |= {result.argument for result in self.plan.results if isinstance(result, Same | ViewOfArgument)}
        for argument in sorted(kept):
            self.add(f"{self.name(argument)} = args[{self.at(argument)}]")

    def inference(self) -> None:
        self.use("is_any_autocast_enabled", torch_private.is_any_autocast_enabled)
        self.use("run_plainly", helpers.run_plainly)
        self.use("wrong_count", helpers.wrong_count)
        count = self.plan.returned_values
        given = [f"args[{k}]" for k in range(len(self.plan.arguments) - len(self.plan.copies))]
        opened = subclasses.open_arguments(self.plan, given)
        if opened is not None:
            self.add(f"args[:] = {opened}")
        if self.plan.tokens:
            self.add(f"args[:0] = {_tokens(self.plan.tokens)}")
        _random_values(self, self.plan)
        self.add(
            "mode = is_grad_enabled()",
            "set_grad_enabled(False)",
            "try: values = (run_plainly(run, args) if is_any_autocast_enabled() else run(args)) or ()",
            "finally: set_grad_enabled(mode), args.clear()",
            f"if len(values) != {count}: raise wrong_count({count}, values)",
        )
        if self.plan.tokens:
            self.add(f"values = values[{self.plan.tokens}:]")
        if self.plan.has_functional_random:
            at = self.plan.flat_values
            self.add(f"set_random_offset(values[{at}])", f"values = values[:{at}]")
        subclasses.rebuild_values(self, self.plan, self.needed())

    def needed(self) -> list[int]:
        """The values that a write or a result uses."""
        used = [write.value for write in self.plan.writes if write.has_data]
        return used + [result.value for result in self.plan.results if isinstance(result, New | ViewOfValue)]

    def training(self, node: Node) -> None:
        dropped = {later for later, _ in self.plan.copies}
        given = [k for k in range(len(self.plan.arguments)) if k not in dropped]
        names = ", ".join(self.name(k) for k in given)
        passed = ", ".join(self.name(k) + (".detach()" if k in node.detached else "") for k in given)
        returned = ", ".join(f"value{k}" for k in node.returned)
        self.use("set_view_replay", torch_private.set_view_replay)
        self.use("is_view_replay_enabled", torch_private.is_view_replay_enabled)
        self.use("is_transformed", torch_private.is_transformed)
        self.use("transformed", surroundings.transformed)
        self.add(
            "if is_transformed(): raise transformed('forward')",
            f"{names}{',' if len(given) == 1 else ''} = args",
            "args.clear()",
            "mode, replay = is_grad_enabled(), is_view_replay_enabled()",
            "set_grad_enabled(True), set_view_replay(True)",
            f"try: {returned}{',' if len(node.returned) == 1 else ''} = run({passed})",
            "finally: set_grad_enabled(mode), set_view_replay(replay)",
        )

    def value(self, value: int) -> str:
        return subclasses.value(self.plan, value) if self.plan.node is None else f"value{value}"

    def writes(self) -> None:
        for write in self.plan.writes:
            name = self.name(write.argument)
            if write.layout is not None:
                self.use("lay_out", helpers.lay_out)
                self.add(f"lay_out({name}, {self.use(f'layout{write.argument}', write.layout)})")
            if write.has_data and write.is_tracked:
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
        is_plain = texts == [f"values[{k}]" for k in range(self.plan.values)]
        self.add("return [*values]" if is_plain else f"return [{', '.join(texts)}]")

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


def emit_forward(plan: CallPlan, node: Node, run: Callable[..., Any]) -> Source:
    """The node's forward: runs the graph, saves for the backward, marks what needs no gradient."""
    text = _Text()
    text.use("run", run)
    text.use("wrong_count", helpers.wrong_count)
    text.use("is_any_autocast_enabled", torch_private.is_any_autocast_enabled)
    text.use("run_plainly", helpers.run_plainly)
    dropped = {later for later, _ in plan.copies}
    names = ", ".join(name for k, name in enumerate(plan.arguments) if k not in dropped)
    count = plan.returned_values + node.saved
    if plan.has_functional_random:
        text.use("random_values", torch_private.random_values)
        text.use("set_random_offset", torch_private.set_random_offset)
    given = names.split(", ")
    text.add(
        f"args = {subclasses.open_arguments(plan, given) or f'[{names}]'}",
        f"del {names}",
        *([f"args[:0] = {_tokens(plan.tokens)}"] if plan.tokens else []),
        *(["args += random_values()"] if plan.has_functional_random else []),
        *_random_states(text, node),
        "try: values = run_plainly(run, args) if is_any_autocast_enabled() else run(args)",
        "finally: args.clear()",
        f"if len(values) != {count}: raise wrong_count({count}, values)",
    )
    if plan.tokens:
        text.add(f"values = values[{plan.tokens}:]")
    if plan.has_functional_random:
        text.add(f"set_random_offset(values[{plan.flat_values}])")
    _save(text, plan, node)
    subclasses.rebuild_values(text, plan, node.returned)
    plain = [subclasses.value(plan, k) for k in node.returned if k not in node.differentiable]
    if plain:
        text.use("Tensor", torch.Tensor)
        marked = ", ".join(f"*(({value},) if isinstance({value}, Tensor) else ())" for value in plain)
        text.add(f"ctx.mark_non_differentiable({marked})")
    text.add("ctx.set_materialize_grads(False)")
    text.add(f"return ({''.join(f'{subclasses.value(plan, k)}, ' for k in node.returned)})")
    return Source("node forward", text.text(f"def forward(ctx, {names}):"), text.names, entry="forward")


def _tokens(count: int) -> str:
    """What stands for tokens: they are there for the order in the graph only."""
    return f"[{', '.join(['None'] * count)}]"


def _random_values(text: _Text, plan: CallPlan) -> None:
    if plan.has_functional_random:
        text.use("random_values", torch_private.random_values)
        text.use("set_random_offset", torch_private.set_random_offset)
        text.add("args += random_values()")


def _random_states(text: _Text, node: Node) -> list[str]:
    if not node.generators:
        return []
    text.use("generators", Generators(node.generators))
    text.use("draw_seeds", draw_seeds)
    return [f"ctx.seeds = draw_seeds({len(node.generators)})", "args += generators.seeded(ctx.seeds)"]


def _save(text: _Text, plan: CallPlan, node: Node) -> None:
    text.use("saved_view", helpers.saved_view)
    saved = [f"saved_view(values[{plan.returned_values - plan.tokens + k}])" for k in range(node.saved)]
    checked = saved[: len(saved) - node.unchecked]
    unchecked = saved[len(saved) - node.unchecked :]
    if checked:
        text.add(f"ctx.save_for_backward({', '.join(checked)})")
    if unchecked:
        text.add(f"ctx.unchecked = [{', '.join(unchecked)}]")


def emit_backward(plan: CallPlan, node: Node, run: Callable[..., Any]) -> Source:
    """The node's backward: gradients in the expected layout, the graph, and a gradient only where eager has one."""
    text = _Text()
    text.use("run", run)
    text.use("is_grad_enabled", torch.is_grad_enabled)
    text.use("differentiated", helpers.differentiated)
    text.use("is_any_autocast_enabled", torch_private.is_any_autocast_enabled)
    text.use("run_plainly", helpers.run_plainly)
    arriving = {tangent.value: f"grad{k}" for k, tangent in enumerate(node.tangents)}
    names = [arriving.get(value, f"unused{value}") for value in node.returned]
    text.use("is_transformed", torch_private.is_transformed)
    text.use("transformed", surroundings.transformed)
    text.add("if is_transformed(): raise transformed('backward')")
    if not node.is_deterministic:
        text.use("is_deterministic", torch_private.is_deterministic)
        text.use("became_deterministic", surroundings.became_deterministic)
        text.add("if is_deterministic(): raise became_deterministic()")
    if plan.opened is not None:
        text.use("differentiated_again", helpers.differentiated_again)
        text.add(f"if is_grad_enabled(): return differentiated_again(backward, ctx, [{', '.join(names)}])")
    parts: list[str] = []
    for k, tangent in enumerate(node.tangents):
        if tangent.value not in node.returned:
            text.add(f"grad{k} = None")
        if len(node.tangents) > 1:
            text.add(f"came{k} = grad{k} is not None")
        if isinstance(tangent, WrappedTangent):
            parts += subclasses.open_tangent(text, tangent, k)
        else:
            _tangent(text, tangent, k)
            parts.append(f"grad{k}")
    saved = ["*ctx.saved_tensors"] if node.saved > node.unchecked else []
    saved += ["*ctx.unchecked"] if node.unchecked else []
    text.add(f"args = [{', '.join([*saved, *parts])}]")
    if node.tokens:
        text.add(f"args += {_tokens(node.tokens)}")
    _random_values(text, plan)
    if node.generators:
        text.use("generators", Generators(node.generators))
        text.add("args += generators.seeded(ctx.seeds)")
    opened = [part for part in parts if part not in names]
    text.add(f"del {', '.join([*names, *opened])}")
    again = "differentiated(run, args) if is_grad_enabled() else " if plan.opened is None else ""
    text.add(f"grads = {again}run_plainly(run, args) if is_any_autocast_enabled() else run(args)")
    if plan.has_functional_random:
        text.add(f"set_random_offset(grads[{len(node.feeds)}])")
    fed = [
        "None" if feed is None else _fed(subclasses.gradient(text, plan, k), feed, len(node.tangents))
        for k, feed in enumerate(node.feeds)
    ]
    text.add(f"return ({''.join(f'{item}, ' for item in fed)})")
    return Source("node backward", text.text(f"def backward(ctx, {', '.join(names)}):"), text.names, entry="backward")


def _tangent(text: _Text, tangent: Tangent, k: int) -> None:
    layout = text.use(f"layout{k}", tangent.layout)
    text.use("missing", helpers.missing)
    text.use("plain_gradient", opening.plain_gradient)
    text.use(f"dtype{k}", getattr(torch, tangent.dtype.removeprefix("torch.")))
    text.use(f"device{k}", torch.device(tangent.device))
    text.add(
        f"if grad{k} is None: grad{k} = missing({layout}, dtype{k}, device{k})",
        f"elif type(grad{k}) is not Tensor or grad{k}.layout is not strided or grad{k}.stride() != {tangent.layout.stride}: "
        f"grad{k} = plain_gradient(grad{k}, {layout}, {k})",
    )
    text.use("Tensor", torch.Tensor)
    text.use("strided", torch.strided)


def _fed(gradient: str, feed: tuple[int, ...], tangents: int) -> str:
    if len(feed) in (0, tangents):
        return gradient
    return f"{gradient} if {' or '.join(f'came{tangent}' for tangent in feed)} else None"
