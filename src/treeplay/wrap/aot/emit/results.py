"""The part of a call function that comes last: results made of the graph's values, of arguments, and of views of either."""

from __future__ import annotations

import pickle
from collections.abc import Callable

from treeplay.codegen import list_of
from treeplay.codegen.idioms import GRAD_MODES, note_writes, switched, view_expression
from treeplay.torch_seam import fakes, flags
from treeplay.values.output import Fresh, Result, SameAsInput, SameAsOutput, View
from treeplay.wrap.aot.calls import node as helpers
from treeplay.wrap.aot.emit.plan_text import PlanText

_FEW = 4  # results that are named one by one, which takes less time than a copy of the list


def write_result_lines(text: PlanText, returned: Callable[[str], str]) -> None:
    """Lines from the graph's values to the results; `returned` gives the last of them."""
    named: dict[int, str] = {}
    again = {result.index for result in text.plan.results if isinstance(result, SameAsOutput)}
    for k, result in enumerate(text.plan.results):
        made = named[result.index] if isinstance(result, SameAsOutput) else _result(text, k, result)
        # An expression that stood in two places would make two tensors.
        if k in again and not made.isidentifier():
            text.add(f"result{k} = {made}")
            made = f"result{k}"
        named[k] = made
    if text.plan.grad_mode_after is not None:
        text.use("set_grad_enabled", flags.set_grad_enabled)
        text.add(f"set_grad_enabled({text.plan.grad_mode_after})")
    texts = [named[k] for k in range(len(named))]
    if text.plan.layouts:
        text.add(f"results = {list_of(texts)}")
        _layouts(text)
        text.add(returned("*results"))
        return
    is_plain = texts == [f"values[{k}]" for k in range(text.plan.values)]
    text.add(returned("*values" if is_plain and len(texts) > _FEW else ", ".join(texts)))


def _layouts(text: PlanText) -> None:
    """Shapes of members change last: one of them may be the base that results were taken of."""
    for argument, layout in text.plan.layouts:
        name = text.named(argument)
        text.use("lay_out", helpers.lay_out)
        note_writes(text, [name])
        text.add(f"lay_out({name}, {text.use(f'layout{argument}', layout)})")


def _result(text: PlanText, k: int, result: Result) -> str:
    match result:
        case Fresh(index):
            return text.value(index)
        case SameAsInput(index):
            return text.named(index)
        case View(with_gradients=bool(mode)):
            switched(text, [GRAD_MODES[mode]], [f"result{k} = {_view(text, k, result)}"], is_short=True)
            return f"result{k}"
        case View():
            return _view(text, k, result)
    raise AssertionError(result)


def _view(text: PlanText, k: int, view: View) -> str:
    of, layout = view.of, view.layout
    assert not isinstance(of, View)
    base = text.value(of.index) if isinstance(of, Fresh) else text.named(of.index)
    if view.steps is not None:
        text.use("apply_views", fakes.apply_views)
        text.use(f"view{k}", pickle.loads(view.steps))
        made = f"apply_views({base}, view{k})"
    elif view.cast is not None:
        text.use("memory_as", helpers.memory_as)
        dtype = text.use(f"dtype{k}", view.cast.dtype)
        memory = f"memory_as({base}, {dtype}, {base}.storage_offset() + {view.cast.start})"
        made = f"view_in({memory}, {text.use(f'layout_of_view{k}', layout)})"
        text.use("view_in", helpers.view_in)
    else:
        made = view_expression(base, layout, is_whole=False)
    made += "" if not view.is_detached else ".data" if view.has_own_version else ".detach()"
    return made + (".requires_grad_()" if view.requires_grad else "")
