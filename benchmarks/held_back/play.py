"""A program called a few times in one way, with all that each call left; two such plays compared."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import treeplay
from benchmarks.held_back.case import Case, Given
from benchmarks.held_back.snapshot import Leaf, difference, snapshot
from treeplay.backend.account import Account, collecting
from treeplay.observe.internal import internal_errors, kept_errors
from treeplay.tree.tiers import compile_thread

Wrap = Callable[[Any], Any]


@dataclass
class Play:
    """What each call left, and what earlier results had become at the end."""

    calls: list[dict[str, Leaf]] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)
    randoms: list[bytes] = field(default_factory=list)
    kept: dict[str, Leaf] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a program came out in one way."""

    name: str
    way: str
    difference: str | None = None
    calls: int = 0
    replays: int = 0
    recordings: int = 0
    graphs: int = 0
    refusals: int = 0
    refusal: str | None = None
    internal: str | None = None
    not_replayed: dict[str, int] = field(default_factory=dict)
    same_in_dynamo: bool = False


def play(make: Callable[[], Case], wrap: Wrap, device: str) -> tuple[Play, Any]:
    """Call a program as its case says; gives what was seen and the wrapped program."""
    _seed(7)
    with torch.device(device):
        case = make()
    wrapped = wrap(case.step)
    made, results = Play(), {}
    for call in range(case.calls):
        _seed(100 + call)
        with torch.device(device):
            case.then.get(call, lambda: None)()
            args = case.args(call)
        args = args if isinstance(args, Given) else Given(args)
        _seed(200 + call)
        result, raised = _called(wrapped, args)
        made.raised.append(raised)
        made.randoms.append(_random_state(device))
        roots = {"args": args.args, "kwargs": dict(args.kwargs), "state": (case.step, case.state), "result": result}
        seen = snapshot(**roots)
        failed = _differentiated(result)
        after = snapshot(**roots)
        made.calls.append(seen | {f"then {path}": leaf for path, leaf in after.items()} | failed)
        results[f"result {call}"] = result
    made.kept = snapshot(**results)
    return made, wrapped


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def _random_state(device: str) -> bytes:
    numpys = np.random.get_state(legacy=True)
    told = bytes(torch.get_rng_state().numpy()) + repr((random.getstate(), numpys[2:])).encode() + numpys[1].tobytes()
    return (
        told + b"".join(bytes(state.numpy()) for state in torch.cuda.get_rng_state_all()) if "cuda" in device else told
    )


def _called(step: Any, args: Given) -> tuple[Any, str]:
    try:
        return step(*args.args, **args.kwargs), ""
    except Exception as error:
        text = str(error).splitlines()
        return None, f"{type(error).__name__}: {text[0] if text else ''}"


def _differentiated(result: Any) -> dict[str, Leaf]:
    """A backward through all results that have one, as a caller would do it."""
    tensors = [t for t in _tensors(result) if t.requires_grad and t.grad_fn is not None]
    if not tensors:
        return {}
    generator = torch.Generator().manual_seed(5)
    gradients = [
        torch.randn(t.shape, generator=generator, dtype=t.dtype if t.dtype.is_complex else torch.float64).to(t)
        for t in tensors
    ]
    try:
        torch.autograd.backward(tensors, gradients)
    except Exception as error:
        return {"backward": Leaf((type(error).__name__,))}
    return {}


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    found = {id(t): t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)}
    return (t for t in found.values() if t.layout is torch.strided and not t.is_nested)


def compared(found: Play, expected: Play, *, is_exact: bool, is_half: bool = False) -> str | None:
    """The first difference of two plays."""
    for call, right in enumerate(expected.calls):
        if found.raised[call] != expected.raised[call]:
            return (
                f"call {call}: raised: {found.raised[call] or 'nothing'}, expected {expected.raised[call] or 'nothing'}"
            )
        what = difference(found.calls[call], right, is_exact=is_exact, is_half=is_half)
        if what is not None:
            return f"call {call}: {what}"
        if found.randoms[call] != expected.randoms[call]:
            return f"call {call}: random: the generators stand elsewhere"
    of_backwards = [call["backward"] for call in expected.calls if "backward" in call]
    consumed = dict.fromkeys(["backward"], of_backwards[0]) if of_backwards else {}
    what = difference(found.kept, expected.kept | consumed, is_exact=is_exact, is_half=is_half)
    return f"results in the end: {what}" if what is not None else None


def judge(name: str, make: Callable[[], Case], way: str, device: str) -> Outcome:
    """Play a program in eager and in one way."""
    with warnings.catch_warnings(), _quiet(), torch.backends.cudnn.flags(allow_tf32=False, deterministic=True):
        warnings.simplefilter("ignore")
        expected, _ = play(make, lambda step: step, device)
        kept_errors.clear()
        facts = _of(make, device)
        is_exact = way == "aten" and device == "cpu" and not facts.rounds
        try:
            with collecting() as accounts:
                found, wrapped = play(make, WAYS[way], device)
            what = compared(found, expected, is_exact=is_exact, is_half=facts.is_half)
        except Exception as error:  # of a snapshot, which what came of the program may break
            return Outcome(name, way, difference=f"{type(error).__name__}: {error}")
        told = _told(wrapped, accounts)
        errors = internal_errors()
        same = False
        if what is not None and way.startswith("compile"):
            torch._dynamo.reset()
            try:
                alone = play(make, WAYS["dynamo"], device)[0]
            except Exception:  # of a snapshot, which what came of the program may break
                same = True
            else:  # what differs from Dynamo's alone is ours, also where that differs from eager before
                same = compared(found, alone, is_exact=False, is_half=facts.is_half) is None
    return Outcome(
        name,
        way,
        difference=what,
        internal=errors[0][-1500:] if errors else None,
        same_in_dynamo=same,
        calls=len(expected.calls),
        **told,
    )


def _of(make: Callable[[], Case], device: str) -> Case:
    with torch.device(device):
        return make()


def _told(wrapped: Any, accounts: Sequence[Account]) -> dict[str, Any]:
    """What became of the calls, and of the graphs of `torch.compile`, which on the CPU are compiled and not recorded."""
    if not hasattr(wrapped, "explain"):
        reports = [account.report() for account in accounts]
        reasons = [str(skip) for report in reports for skip in report.skips if report.operators]
        return {
            "recordings": sum(report.outcome == "recorded" for report in reports),
            "graphs": sum(report.outcome in ("recorded", "compiled") for report in reports),
            "refusals": len(reasons),
            "refusal": reasons[0] if reasons else None,
        }
    made = wrapped.statistics()
    reasons = [key.refusal for key in made.keys if key.refusal]
    return {
        "replays": made.replays,
        "recordings": made.recordings,
        "refusals": made.refusals,
        "refusal": reasons[0] if reasons else None,
        "not_replayed": dict(made.not_replayed),
    }


def _jit(lower: Any) -> Wrap:
    return lambda step: treeplay.jit(step, lower=lower)


def _compile(**options: Any) -> Wrap:
    def wrap(step: Any) -> Any:
        torch._dynamo.reset()
        return torch.compile(step, backend="treeplay", options={"eager_random": True, **options})

    return wrap


def _with_tiers(step: Any) -> Any:
    """Operators first, and from the call after on what Inductor has compiled meanwhile, in turn with them."""
    jitted: Any = treeplay.jit(step)

    @functools.wraps(step)
    def call(*args: Any, **kwargs: Any) -> Any:
        with treeplay.settings.changed(tiers="background"):
            try:
                return jitted(*args, **kwargs)
            finally:
                compile_thread.wait()

    call.statistics, call.explain = jitted.statistics, jitted.explain  # type: ignore[attr-defined]
    return call


WAYS: dict[str, Wrap] = {
    "aten": _jit("aten"),
    "inductor": _jit("inductor"),
    "tiers": _with_tiers,
    "compile": _compile(),
    "compile-aten": _compile(inner="aten"),
    "dynamo": lambda step: torch.compile(step, backend="eager"),
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Random numbers are eager's in every way, what is recorded depends on no clock, and logs are not printed."""
    loggers = [logging.getLogger(name) for name in (None, "torch", "treeplay")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with treeplay.settings.changed(eager_random=True, compile_budget=math.inf, tiers="exact"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
