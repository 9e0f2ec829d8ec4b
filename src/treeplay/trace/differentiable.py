"""Differentiable programs: results carry gradients, and the caller calls backward, later, on some of them, or never.

The trace only tells what such a program is, reads and stores; the forward and the backward are made by the wrap stage,
which runs the program again (`rerun.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.torch_seam.autograd import history, hooks_on_nodes
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.layers import has_backward_hooks, has_hooks_after_accumulation
from treeplay.torch_seam.tensors import storage_of
from treeplay.trace.computed_again import why_not_again
from treeplay.trace.custom_backwards import custom_behind, nodes_behind
from treeplay.trace.run.zeros import is_cut_off
from treeplay.trace.shown import RunFacts
from treeplay.trace.signature.flat import TensorNumbers, look
from treeplay.trace.signature.references import not_plain, not_traced
from treeplay.trace.traced import TracedRun
from treeplay.values.flatten import flatten
from treeplay.values.kinds import is_leaf
from treeplay.values.location import Location
from treeplay.values.refusal import Reason


def is_differentiable(run: TracedRun, result: Any) -> bool:
    """Whether a result, or what the program stored, has a history that a later backward goes through.

    Raises `Refusal` where the program has one, and does something that cannot be repeated by a wrapper.
    """
    unfinished = next(with_history(run, result), None)
    given = run.tracer.lasting.given_history
    if given and (run.tracer.tape.fills_gradients or run.stepped):
        raise Refusal(given[0][1])
    if unfinished is None and not given:
        return False
    if unfinished is None:
        unfinished = given[0][0]
    where = run.tracer.tape.values[id(unfinished)].node.meta.get("where")
    run.unreached = _unreached(run, with_history(run, result))
    reason = (
        _why_not(run, where)
        or why_not_again(run.tracer.tape, nodes_behind(run, with_history(run, result)))
        or _why_its_own(with_history(run, result), where)
        or _why_called_in_vain(run, where)
        or _why_zeros_count(run, [*with_history(run, result)])
    )
    if reason is not None:
        raise Refusal(reason)
    return True


def flat_results(run: TracedRun, result: Any) -> tuple[RunFacts, list[torch.fx.Node]]:
    """What the traced run showed, and the nodes of its tensors."""
    flat = TensorNumbers(run.found, run.tracer.refuse, lambda tensor: _check(run, tensor))
    shown = look(flat, result, run.snapshot, run.numbers)
    return shown, [run.tracer.tape.values[id(tensor)].node for tensor in flat.tensors]


def with_history(run: TracedRun, result: Any) -> Iterator[torch.Tensor]:
    """The results, and what the program stored, that have a history which a later backward goes through."""
    given = {storage_of(seen.value.fake) for seen in run.tracer.tape.inputs}
    results, _ = flatten([result, *run.snapshot.stored()], opens=run.found.is_new)
    for leaf in results:
        value = run.tracer.tape.values.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None
        if value is None or value.is_input or leaf.grad_fn is None or run.watch.reaches_consumed(leaf):
            continue
        storage = storage_of(value.fake)
        # Under inference mode nothing has a history that the program has not left the mode for.
        is_view = storage in given and storage not in run.tracer.tape.mutated and not torch.is_inference_mode_enabled()
        # A view of an input is taken again from the input itself, unless a backward or a hook of the program's own is between.
        if not is_view or run.watch.hooked is not None or any(True for _ in custom_behind(run, [leaf])):
            yield leaf


def _why_its_own(results: Iterator[torch.Tensor], where: Location | None) -> Reason | None:
    """A result whose history begins at tensors that the program makes anew in each call cannot get one from a recording."""
    if all(_leads_outside(result.grad_fn) for result in results):
        return None
    return Reason(
        op="result",
        why="a result needs gradients because of parameters that the program makes itself, and of nothing else",
        advice="make the parameters outside of the program, or return result.detach()",
        where=where,
    )


def _leads_outside(node: Any) -> bool:
    """Whether a graph ends at a tensor that was there before the run."""
    return any(not isinstance(leaf, FakeTensor) for leaf in _leaves_behind(node))


def _leaves_behind(node: Any) -> list[torch.Tensor]:
    return [behind.variable for behind in history([node]) if hasattr(behind, "variable")]


def _unreached(run: TracedRun, results: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs that collect gradients and get none from a backward of some result alone."""
    tensors = [seen.tensor for seen in run.tracer.tape.inputs]
    leaves = {id(tensor): tensor for tensor in tensors if tensor.requires_grad and is_leaf(tensor)}
    in_all = {*leaves}
    for result in results:
        in_all &= {*map(id, _leaves_behind(result.grad_fn))}
    return [tensor for key, tensor in leaves.items() if key not in in_all]


def _why_called_in_vain(run: TracedRun, where: Location | None) -> Reason | None:
    """Torch calls the hooks of what a node gives no gradient to, and those that come after the accumulation are not told: an
    optimizer in such a hook would step with an old gradient. The results of a call hang on one node."""
    if not any(map(has_hooks_after_accumulation, run.unreached)):
        return None
    return Reason(
        op="register_post_accumulate_grad_hook",
        why="a backward of this result gives no gradient to a parameter with such a hook, which would be called",
        advice="call backward inside of the program, return one result that uses each such parameter, or remove the hooks",
        where=where,
    )


def _why_zeros_count(run: TracedRun, results: list[torch.Tensor]) -> Reason | None:
    """A backward of some results leaves the gradients of what only others depend on alone, and eager's brings zeros there."""
    if len(results) < 2 or not run.tracer.known_zeros.were_met:
        return None
    cut_off = next((result for result in results if is_cut_off(run.tracer.tape, result)), None)
    if cut_off is None:
        return None
    return Reason(
        op="jvp",
        why="a tangent is differentiated by the caller, beside other results, and depends on something by no more than a "
        "product with a tangent that is not there: eager's backward gives zeros there, and the recorded one would give None",
        advice="call backward inside of the program, or return the tangent alone or as one result with the others",
        where=run.tracer.tape.values[id(cut_off)].node.meta.get("where"),
    )


def _why_not(run: TracedRun, where: Location | None) -> Reason | None:
    """What keeps a program with differentiable results from being recorded, or None."""
    if torch.is_inference_mode_enabled():
        return Reason(
            op="inference_mode",
            why="a result needs gradients since the program leaves the inference mode that is around the call",
            advice="call the program under torch.no_grad(), or return result.detach()",
            where=where,
        )
    if run.tracer.tape.fills_gradients or run.stepped:
        return Reason(
            op="result",
            why="a result needs gradients and the program does not call backward on it itself, while it calls backward "
            "or an optimizer's step for another part",
            advice="call backward on all of it inside the program, return result.detach(), or jit the two parts apart",
            where=where,
        )
    for _, _, line in run.tracer.lasting.switched.values():
        return Reason(
            op="requires_grad = ...",
            why="sets `requires_grad` of a tensor that outlives the call, and back, and its results are differentiated by the "
            "caller: the run that is recorded forward and backward would not",
            advice="leave tensors out by detach() or torch.no_grad(), or call backward inside of the program",
            where=line,
        )
    if run.watch.hooked is not None:
        return _of_hook("puts a hook on a tensor that the program makes", *run.watch.hooked)
    if run.watch.repacked is not None:
        name, line = run.watch.repacked
        return Reason(
            op=name,
            why="puts hooks on what is saved for a backward that the caller runs, which a recorded one would not see",
            advice="put the hooks around the call: then it is the plain program",
            where=line,
        )
    if run.watch.replaced is not None:
        name, line = run.watch.replaced
        return Reason(
            op=name,
            why="was replaced, and torch would run what is there now for the operator that goes by this name",
            advice="subclass torch.Tensor, or replace the function that your code calls",
            where=line,
        )
    if has_backward_hooks(run.called.values()):
        return Reason(
            op="backward hook",
            why="a module that the program calls has backward hooks, which would have to run in each backward",
            advice="remove the hooks, or put hooks on the parameters instead",
            where=where,
        )
    if hooks_on_nodes(run.reads.code or {}):
        return _of_hook("puts a hook on a node of the graph that the program makes", "register_hook", where)
    return None


def _of_hook(what: str, name: str, where: Location | None) -> Reason:
    return Reason(
        op=name,
        why=f"{what}, and its results are differentiated by the caller: the hook would have to run in each backward",
        advice="put the hook on the result, after the call, or on a parameter, outside of the program",
        where=where,
    )


def _check(run: TracedRun, tensor: torch.Tensor) -> None:
    """Refuse a result that the trace does not know, or that is no plain tensor."""
    tracer = run.tracer
    known = tracer.tape.values.get(id(tensor))
    if tensor.requires_grad and tensor.grad_fn is None and known is not None and not known.is_input:
        raise tracer.refuse(
            "result",
            "returns or stores a new leaf that needs a gradient, beside results that are differentiated",
            "make the leaf outside of the program and pass it as an argument",
            known.node.meta.get("where"),
        )
    if id(tensor) not in tracer.tape.values:
        if not tracer.is_known(tensor):
            raise not_traced(tracer.refuse)
        tracer.tape.add_input(tensor)
    fake = tracer.tape.values[id(tensor)].fake
    if fake.layout is not torch.strided or fake.is_conj() or fake.is_neg():
        raise not_plain(tracer.refuse, tracer.tape.values[id(tensor)].node.meta.get("where"))
