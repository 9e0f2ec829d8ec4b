"""Wplus14: a node whose functions lack a line, or hand out their values in another order, does not pass for eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from treeplay.torch_seam import aot
from wrap.aot.oracle import Make, compare, grown, numbers, wrapped
from wrap.aot.pairs import nested
from wrap.aot.tracing.test_later import Counted, Greedy

UNTRIED = {
    "if len(": "counts what a graph returned, which no graph of these gets wrong",
    "if type(": "takes a lone value for one",
    "if is_transformed": "refuses transforms",
    "if is_deterministic": "refuses another mode",
    "if is_cast": "computes gradients again in another mode",
    "del ": "lets arguments go",
    "finally: ": "lets arguments go",
    "grads.clear()": "lets gradients go",
    "is_last": "lets saved tensors go",
    "if is_last": "lets saved tensors go",
    "if is_grad_enabled()": "keeps a history of the gradients",
}
"""Lines with tests of their own, by what they do: here every call fits, and nobody looks at memory."""


UNTRIED_PARTS = ("as_tangent(", ".stride() !=")
"""Classes of gradients are checked, and their layouts set, in lines with tests of their own too."""


def results(x: Any, w: Any) -> Any:
    w.mul_(2)
    y = (x * w).sin()
    return [y, y.view(-1, 1), w.t(), (x * 3).detach(), (x * 5).t(), x.argmax()]


def late(x: Any, buffer: Any) -> Any:
    return [Greedy.apply(Counted.apply(x, buffer) * buffer)]


def as_eager(function: Any, call: Any, make: Make) -> None:
    """Twice, and with gradients that lie in an odd way and, in turn, do not come."""
    for _ in range(2):
        torch.manual_seed(3)
        compare(function, call, make)
    needy = [k for k, item in enumerate(call(make())) if isinstance(item, torch.Tensor) and item.requires_grad]
    for chosen in [*((k,) for k in needy), needy]:
        told = []
        for run in (lambda args: function(*args), call):
            args = make()
            given = list(args)
            found = run(given)
            gradients = [(torch.ones_like(found[k]) * (k + 2)).t().contiguous().t() for k in chosen]
            torch.autograd.backward([found[k] for k in chosen], gradients)
            told.append([*gradients, *(arg.grad for arg in args if arg.is_leaf), *args])
        for eager, ours in zip(*told, strict=True):
            assert (eager is None) == (ours is None), "a gradient that eager does not have"
            if eager is not None:
                torch.testing.assert_close(ours, eager)


CASES: dict[str, tuple[Callable[..., Any], Make, tuple[str, ...]]] = {
    "results": (results, lambda: [numbers(2, 3, grad=True), grown(2, 3)], ()),
    # Where there is one result, its gradient comes.
    "late": (late, lambda: [numbers(2, 3, grad=True), numbers(2, 3)], ("ctx.set_materialize", "if grad0 is None")),
    "wrappers": (lambda x, y: [x * y, x.sin()], lambda: [nested(2, 3, grad=True), numbers(2, 3, grad=True)], ()),
    "groups": (
        lambda x, y: [(x * 2).sin(), (y + 1).cos()],
        lambda: [numbers(2, 3, grad=True), numbers(2, 3, grad=True)],
        (),
    ),
}


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """The text of a function with one line left out, and with its values in another order."""
    lines = text.splitlines()
    for k, line in enumerate(lines[1:], start=1):
        step = line.strip()
        if step.startswith(tuple(UNTRIED)) or step == "else:" or any(part in step for part in UNTRIED_PARTS):
            continue
        if step.startswith("return (") and step.count(",") > 1:
            values = step.removeprefix("return (").removesuffix(")").rstrip(", ").split(", ")
            if len(set(values)) > 1:
                yield f"reversed {step}", "\n".join([*lines[:k], f"    return ({', '.join(reversed(values))},)"])
        indent = line[: len(line) - len(line.lstrip())]
        instead = f"{indent}try: values = ()" if step.startswith("try:") else f"{indent}pass"
        if step.endswith(":"):  # a block: it never runs
            instead = f"{indent}if False:"
        yield step, "\n".join([*lines[:k], instead, *lines[k + 1 :]])


def with_node(call: Any, texts: dict[str, str]) -> Any:
    """The call around a node made of these texts."""
    node = call.__globals__["run"].__self__
    members = {}
    for name, text in texts.items():
        scope = dict(getattr(node, name).__globals__)
        exec(text, scope)
        members[name] = staticmethod(scope[name])
    scope = dict(call.__globals__)
    scope["run"] = aot.apply_of(type("Mutant", (aot.GeneratedFunction,), members))
    exec(call.source, scope)
    return scope["call"]


@pytest.mark.parametrize("name", CASES)
def test_Wplus14_no_line_of_a_node_can_be_left_out(name: str) -> None:
    function, make, unreached = CASES[name]
    call = wrapped(function, make)
    texts = dict(zip(("forward", "backward"), call.sources[1:], strict=True))
    as_eager(function, with_node(call, texts), make)
    tried, passed = 0, []
    for direction, text in texts.items():
        for step, mutant in mutants(text):
            if step.startswith(unreached):
                continue
            tried += 1
            try:
                as_eager(function, with_node(call, texts | {direction: mutant}), make)
            except Exception:  # any failure tells
                continue
            passed.append(f"{direction}: {step}")
    assert tried >= 8 and passed == [], "\n".join([*texts.values(), *passed])
