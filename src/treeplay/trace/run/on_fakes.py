"""Operators on fake tensors: what they give has a shape and no data; what cannot run so is refused.

    operator ─┬ the first run tells how its results lie, and torch's rule was right before ─▶ they are made so
              └ else ─▶ torch's rule ─▶ laid out as in the first run ─▶ was the rule right?
                  └ raises, where the operator did not ─▶ they are made so

torch's rules are written in Python. They take a hundred times as long as the operator itself, and for a list of a model's
parameters a thousand times: most of a trace. Each is asked once in a trace, since it may refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.torch_seam.fakes import (
    PLAIN_VIEWS,
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
    device_of,
    new_fake,
    rule_of,
    view_fake,
)
from treeplay.torch_seam.schemas import depends_on_data, is_elementwise, is_foreach, is_random, leaves_of, with_leaves
from treeplay.trace.raised import of_rule
from treeplay.trace.run.layouts import Answer, Question, answer, laid_out, numbers_not_asked, question
from treeplay.trace.run.outgrown import outgrow, outgrown, outs_of
from treeplay.trace.run.recurrent import asked_of
from treeplay.trace.run.tape import KEEP_ON_DEVICE, TraceTape, spoken_name
from treeplay.values.location import Location

aten = torch.ops.aten


class OnFakes:
    """Runs the operators of a trace. `answers`: how their results lay when the program ran eagerly."""

    def __init__(self, tape: TraceTape, answers: Mapping[Question, Answer]) -> None:
        self._tape = tape
        self._answers = answers
        self._is_right: set[Any] = set()  # operators of which torch's rule agreed with the first run

    def foretold(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Answer | None:
        """How the results of an operator with these arguments lay in the first run, if it is known."""
        asked = question(func, asked_of(func, args), kwargs) if self._answers else None
        return self._answers.get(asked) if asked is not None else None

    def run(
        self, func: Any, args: Any, kwargs: Any, told: Answer | None, where: Location | None, *, by_rule: bool = False
    ) -> Any:
        """The results of an operator on fakes; `told` is how they lay in the first run, if that is known. `by_rule`: as torch's
        rule makes them, which knows of what else they are than shapes."""
        if by_rule:
            return run_on_fakes(self._tape, func, args, kwargs, where)
        if told is not None and self._is_enough(func, args, kwargs, told):
            return self._made(told, args)
        out = self._by_hand(func, args, kwargs)
        if out is not None:
            return out
        outs = outs_of(func, kwargs)
        try:
            out = run_on_fakes(self._tape, func, args, kwargs, where)
        except Refusal:
            raise
        except Exception as error:
            if told is None or func.namespace != "aten" or not self._follows(func, args, kwargs, told):
                of_rule(error, spoken_name(func))
                raise
            return self._made(told, args)  # the rule asks for more than the operator itself
        for position in outgrown(outs):
            looks = None if told is None else told.looks[position]
            outgrow(self._tape, func, outs[position][0], looks, args, where)
        if told is None or outs:
            return out
        if told.tells_all and answer(func, out, args).is_as(told):
            self._is_right.add(func)
        with self._tape.fake_mode:
            return laid_out(out, told)

    def leaves_shape(self, func: Any, fake: torch.Tensor, rest: Any) -> bool:
        """Whether an operator that changes shapes in place would leave that of `fake` as it is."""
        with self._tape.fake_mode:
            twin = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
            func(twin, *rest)
        return twin.shape == fake.shape and twin.stride() == fake.stride()

    def _is_enough(self, func: Any, args: Any, kwargs: Any, told: Answer) -> bool:
        """Whether the results follow from what was told, so that torch's rule need not be asked."""
        # Operators over lists are not put to their rules even once: with a model's parameters, these are most of a trace.
        return (func in self._is_right or is_foreach(func)) and self._follows(func, args, kwargs, told)

    def _follows(self, func: Any, args: Any, kwargs: Any, told: Answer) -> bool:
        """Whether the results are as they were told, given that the operator itself raises nothing."""
        if not told.tells_all or depends_on_data(func):
            return False
        return is_elementwise(func) or numbers_not_asked(args, kwargs) == told.numbers

    def _made(self, told: Answer, args: Any) -> Any:
        if told.gives_back:
            return args[0]
        made = [None if looks is None else new_fake(self._tape.fake_mode, *looks) for looks in told.looks]
        return made[0] if told.container is None else told.container(made)

    def _by_hand(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The results of an operator that needs no rule; None of any other. The first run need not have called it: gradients
        are copied where a trace holds them, too."""
        first = args[0] if args else None
        if type(first) is not FakeTensor:
            return None
        if func in PLAIN_VIEWS:
            with suppress(RuntimeError, IndexError, TypeError):  # torch's rule then says in its own words what is wrong
                return view_fake(self._tape.fake_mode, func, args, kwargs)
        if func is aten.copy_.default and first.shape == args[1].shape:
            return first
        if func is aten.new_empty_strided.default and kwargs.get("layout") in (None, torch.strided):
            dtype, device = kwargs.get("dtype") or first.dtype, kwargs.get("device") or device_of(first)
            return new_fake(self._tape.fake_mode, args[1], args[2], dtype, device)
        return None


def run_on_fakes(tape: TraceTape, func: Any, args: Any, kwargs: Any, where: Location | None) -> Any:
    """The results of an operator; raises `Refusal` if they depend on data or it has no rule for fakes."""
    if is_random(func):  # some rules know no generators, and none draws
        args, kwargs = with_leaves(lambda leaf: None if isinstance(leaf, torch.Generator) else leaf, (args, {**kwargs}))
    try:
        with rule_of(tape.fake_mode, args, kwargs):
            return _new_by_schema(func, func(*args, **kwargs), args, kwargs)
    except DataDependentOutputException:
        raise tape.refuse(
            spoken_name(func), "its result is a Python value that depends on data", KEEP_ON_DEVICE, where
        ) from None
    except DynamicOutputShapeException:
        raise tape.refuse(
            spoken_name(func),
            "the shape of its result depends on data",
            "use a form with a fixed shape: torch.where, a mask that is multiplied in, or topk",
            where,
        ) from None
    except UnsupportedOperatorException:
        raise tape.refuse(
            spoken_name(func),
            "has no rule for running without data",
            "register one with torch.library.register_fake",
            where,
        ) from None


def _new_by_schema(func: Any, out: Any, args: Any, kwargs: Any) -> Any:
    """What an operator's rule gives, but a tensor of its own where the schema says so and the rule gives back an argument:
    autograd would give the program's own tensor a history."""
    results = out if isinstance(out, (list, tuple)) else (out,)
    given = {id(leaf) for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Tensor)}
    if given.isdisjoint(map(id, results)) or len(func._schema.returns) != len(results):
        return out
    told = zip(results, func._schema.returns, strict=True)
    made = [torch.empty_like(one) if id(one) in given and item.alias_info is None else one for one, item in told]
    return type(out)(made) if isinstance(out, (list, tuple)) else made[0]
