"""Random programs of writes, permutations, no-ops, views and exchanged contents: a jitted program against an eager twin.

    outcome = run_writes(seed, "aten")      # the same for the same seed
    print(make_writes(seed))                # its text
    print(shrink(make_writes(seed), "aten"))

Both sides run the same text over the same numbers. After each call all results, arguments, state and the memory behind them are
compared, and which of them share memory. Between calls state may come to share memory, and arguments to lie elsewhere.
"""

from __future__ import annotations

import linecache
import math
import random
import re
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

import treeplay
from treeplay.torch_compile import backend
from treeplay.values.overlap import overlaps_itself

_PRELUDE = "import numpy as np\nimport torch\nimport torch.nn.functional as F\nfrom types import SimpleNamespace\n"
_MOST_ELEMENTS = 40
_CALLS = 3  # before anything changes: the third replays on the CPU
_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 3e-2, torch.float32: 1e-4, torch.complex64: 1e-4}

# What makes a new value of the values `a` and `b`; a line that fails, or makes too much, is left out.
_NO_OPS = """
a + 0 | a - 0 | 0 + a | a * 1 | 1 * a | a / 1 | a ** 1 | +a | -(-a) | a.neg().neg() | a * 1.0 | a + 0.0 | a - (-0.0)
a + (-0.0) | a.clone() | a.detach() | a.contiguous() | a.to(a.dtype) | a.float().to(a.dtype) | a.double().to(a.dtype)
a.view_as(a) | a[...] | a.expand(a.shape) | a.reshape(a.shape) | a.view(a.shape) | torch.cat([a])
torch.stack([a])[0] | a.repeat(*[1] * a.dim()) | a + torch.zeros_like(a) | a * torch.ones_like(a)
a - torch.zeros_like(a) | torch.add(a, b, alpha=0) | a.lerp(b, 0.0)
torch.where(torch.ones_like(a, dtype=torch.bool), a, b) | torch.where(a == a, a, b)
a.masked_fill(torch.zeros_like(a) > 1, 3) | a.flip(0).flip(0) | a.roll(0, 0) | a.roll(1, 0).roll(-1, 0) | a.t().t()
a.unsqueeze(0).squeeze(0) | a.permute(*range(a.dim())) | F.dropout(a, 0.0) | F.dropout(a, 0.5, training=False)
F.pad(a, (0, 0)) | a.clamp(-1e9, 1e9) | a.resolve_neg() | a.resolve_conj() | torch.cat([a, a[:0]])
a.abs() * a.sign() | a.split(max(1, len(a)))[0] | a[:] | a.narrow(0, 0, len(a)) | a.sum_to_size(a.shape)
a.copysign(a) | torch.maximum(a, a) | a & a | a | a.index_select(0, torch.arange(len(a))) | a[torch.arange(len(a))]
a.slice_scatter(a, 0) | torch.copysign(a, a) | a.new_zeros(a.shape).copy_(a) | torch.empty_like(a).copy_(a)
a.alias() | a.mean((), True)
"""
_VIEWS = """
a.t() | a.transpose(0, -1) | a[1:] | a[:-1] | a[::2] | a[0] | a[-1] | a.view(-1) | a.reshape(-1) | a.flatten()
a.unsqueeze(0) | a.unsqueeze(-1) | a.diagonal() | a.chunk(2)[0] | a.chunk(2)[1] | a.unbind()[0] | a.split(1)[-1]
a.expand(2, *a.shape) | a.movedim(0, -1) | a.narrow(0, 1, 1) | a[..., :1] | a[..., 1:] | a.view(torch.int32)
a.view(torch.float32) | a.conj() | a.real | a.imag | a.conj().imag | torch.view_as_complex(a) | torch.view_as_real(a)
torch.view_as_real(a.resolve_conj()) | a.unfold(0, 2, 1) | a.as_strided((2,), (1,)) | torch._neg_view(a) | a.squeeze()
a.mT | a.detach()[1:] | a.select(-1, 0) | a.swapaxes(0, 1) | a.conj().conj() | a.H
"""
_VALUES = """
a - 2 * b | a * 0.5 + 1 | a.sum() - 2 * b | -a | 0 - a | a * -1 | a.flip(0) | a.roll(1, 0) | a.roll(1, -1) | a.rot90()
a.cumsum(0) | a[torch.arange(len(a)).flip(0)] | a[[0]] | a[[-1, 0]] | torch.cat([a, b]) | torch.stack([a, b])
torch.where(a > b, a, b) | a.sort(0).values | a.triu() | a.sign() | a.abs() | a * 0 | a * -0.0 | a.round() | a.neg()
torch.zeros_like(a) | torch.full_like(a, -0.0) | a > 0 | a.bool() | a.int() | a.half() | a.bfloat16() | a.double()
a.float() | a.to(torch.complex64) | torch.complex(a, b) | a.max() - b | a.mean() * b | a @ b | torch.tril(a) + b
a.tanh() | a.repeat(2) | a.masked_fill(a > 0, 0.25) | a.index_fill(0, torch.tensor([0]), 1.5) | F.relu(a)
a.clone()[1:] | a.slice_scatter(b, 0) | a.select_scatter(b, 0, 0) | a.diagonal_scatter(b)
a.index_add(0, torch.tensor([0, 0]), b[:2]) | a.T.contiguous() | torch.empty_like(a).fill_(0.125) * a
a.new_full((3,), -0.0) | torch.tensor([1.0, -0.0, 2.0]) | torch.arange(3.0) | torch.add(a, b, alpha=-2)
a.addcmul(b, b, value=0.5) | torch.addcmul(a, b, a, value=0) | a.remainder(2) | a.fmod(2) | a.floor() | a * b | a / 2
torch.min(a, b) | a ** 2
"""
_WRITES = """
a.copy_(b) | a.copy_(a.clone()) | a.copy_(a.flip(0)) | a.copy_(a.roll(1, 0)) | a.copy_(a.t().clone()) | a[:] = b
a[0] = b[-1].clone() | a[1:] = a[:-1].clone() | a.add_(b) | a.sub_(b) | a.mul_(2) | a.mul_(1) | a.add_(0)
a.mul_(0.5).sub_(b) | a.neg_() | a.zero_() | a.fill_(-0.0) | a.fill_(0.75) | a.fill_(b.sum()) | a.clamp_(-1, 1)
a.abs_() | a.conj_physical_() | a.floor_() | a.copy_(b * 0.5 - 1) | a += b | a *= 0.5 | a[a > 0] = 0.25
a[..., 0] = 0.5 | a.index_copy_(0, torch.tensor([0]), b[:1].clone())
a.index_put_((torch.tensor([0]),), b[-1].clone()) | a.masked_fill_(a > 0, 1.5) | a.diagonal().add_(1)
a.scatter_(0, torch.zeros_like(a, dtype=torch.int64), 0.5) | a.index_add_(0, torch.tensor([0, 0]), b[:2].clone())
a.lerp_(b, 0.5) | a.lerp_(b, 0.0) | torch._foreach_add_([a], 1.5) | torch._foreach_mul_([a, b], 0.5)
torch._foreach_add_([a, a[1:]], 1.5) | torch._foreach_sub_([a, b], [b.clone(), a.clone()])
torch._foreach_copy_([a, b], [b.clone(), a.clone()]) | torch._foreach_mul_([a[0], a], 2.0)
torch._foreach_neg_([a, b]) | torch._foreach_zero_([a]) | torch.add(a, b, out=a) | torch.mul(a, 2, out=b)
torch.neg(a, out=a) | a.t().copy_(b) | a[::2].mul_(2) | a.view(-1)[1:].sub_(0.5) | a.T.add_(1)
t = a.clone(); a.copy_(b); b.copy_(t) | t = a + 0; a.copy_(b); b.copy_(t) | t = a * 1; a.copy_(b); b.copy_(t)
t, u = b.clone(), a.clone(); a.copy_(t); b.copy_(u) | t = a.t().clone(); a.copy_(b); b.copy_(t)
t = a.clone(); a.copy_(b); b.copy_(c); c.copy_(t) | t = a.clone(); a.copy_(b * 0.5); b.copy_(t - 1)
t = a.clone(); a.copy_(b.flip(0)); b.copy_(t.flip(0)) | t = a[0].clone(); a[0] = a[-1].clone(); a[-1] = t
t = a.detach().clone(); a.zero_(); a.add_(t) | t = a[:1].clone(); a[:-1] = a[1:].clone(); a[-1:] = t
t = a.clone(); a.mul_(0.5); b.copy_(t)
t = [a.clone(), b.clone(), c.clone()]; c.copy_(t[0]); a.copy_(t[1]); b.copy_(t[2])
"""
_SLOTS = """
state.p, state.q = state.q, state.p | state.p = a | state.q = state.p | state.p = state.p.clone() | state.k = a
state.p = state.p * 1 | state.table["k"] = a + 0
"""


def _choices(text: str) -> tuple[str, ...]:
    return tuple(choice.strip() for line in text.strip().splitlines() for choice in line.split(" | "))


_KINDS = {
    "value": (_choices(_NO_OPS), _choices(_VIEWS), _choices(_VALUES)),
    "write": (_choices(_WRITES),),
}
_ARGUMENTS = (
    "x, y = new(3, 3), new(3, 3)",
    "x, y = new(3, 3), new(3, 3).t()",
    "x, y = new(4), new(4)",
    "x, y = new(2, 3), new(3)",
    "x, y = new(6)[1:5], new(8)[::2]",
    "x, y = new(3, 3), new(3, 3, dtype=torch.int64)",
    "x, y = new(2, 2, dtype=torch.float64), new(2, 2)",
    "x, y = new(4, 2), new(4, 2, dtype=torch.bfloat16)",
    "x, y = new(3, 2, dtype=torch.complex64), new(3, 2)",
    "x, y = new(2, 3, 2), new(2, 3, 2)",
    "x, y = new(), new(1)",
    "base = new(4, 3); x, y = base[:3], base[1:]",
    "base = new(4, 3); x, y = base[:2], base[2:]",
    "base = new(3, 3); x, y = base, base.t()",
    "base = new(3, 3); x, y = base, base",
    "base = new(3, 3); x, y = base, base[1]",
    "base = new(3); x, y = base.expand(3, 3), new(3, 3)",
    "array = new(3, 3).numpy(); x, y = torch.from_numpy(array), torch.from_numpy(array)",
    "array = new(4, 3).numpy(); x, y = torch.from_numpy(array[1:]), torch.from_numpy(array[:-1])",
    "array = new(4, 3).numpy(); x, y = torch.from_numpy(array[1:]), torch.from_numpy(array[:1].copy()).expand(3, 3)",
)
_GIVEN = ("x, y", "base", "array")  # what the text of arguments begins with
_STATE = (
    "p, q = new(3, 3), new(3, 3)",
    "p, q = new(4), new(4)",
    "p = new(4, 3); q = p[1:]",
    "p, q = new(3, 3), new(3)",
    "p = new(3, 3); q = p.t()",
    "p = new(3, 3); q = p.detach()",
    "p, q = new(2, 2, dtype=torch.float64), new(2, 2)",
    "p = new(3, 3); q = torch.from_numpy(p.numpy())",
)
_EVENTS = (
    "state.q.data = state.p.data",
    "state.p.data = state.q.data",
    "state.p.data = state.p.data.clone()",
    "state.q.set_(state.p)",
    "state.q.data = state.p.data.t()",
    "state.q.data = state.p.data.flip(0)",
    "state.p.copy_(state.q)",
    "state.p = state.p.clone()",
    "state.p.data = x.data",
    "state.q.data = y",
)


@dataclass(frozen=True)
class Writes:
    """A program as text. `arguments` are made anew for each call; an event is a change, other arguments, or None for a call."""

    seed: int
    state: str
    arguments: str
    body: tuple[str, ...]
    results: tuple[str, ...]
    events: tuple[str | None, ...]

    @property
    def source(self) -> str:
        """The program, a function of `x` and `y`."""
        body = [f"    {line}" for line in self.body]
        return "\n".join(["def program(x, y):", *body, f"    return [{', '.join(self.results)}]", ""])

    @property
    def setup(self) -> str:
        """What makes the state."""
        return f"{self.state}\nstate = SimpleNamespace(p=p, q=q, table={{}})\n"

    def __str__(self) -> str:
        events = "\n".join(f"#   {event or f'call({self.arguments})'}" for event in self.events)
        return f"# program {self.seed}\n{self.setup}\n{self.source}\n{events}"


@dataclass(frozen=True)
class Outcome:
    """What came of a run: counts, and the first difference, if there was one."""

    seed: int
    calls: int = 0
    replays: int = 0
    recordings: int = 0
    refusals: int = 0
    difference: str | None = None
    refusal: str | None = None
    stages: tuple[str, ...] = ()  # how each recording is launched


def make_writes(seed: int, lines: int = 9) -> Writes:
    """The program of a seed; each of its lines runs."""
    chance = random.Random(seed)
    arguments, state = chance.choice(_ARGUMENTS), chance.choice(_STATE)
    side = _Side(_PRELUDE + f"{state}\nstate = SimpleNamespace(p=p, q=q, table={{}})\n", "cpu", "made")
    side.run(arguments, seed)
    names = ["x", "y", "state.p", "state.q"]
    body: list[str] = []
    results: list[str] = []
    for _ in range(4 * lines):
        if len(body) == lines:
            break
        kind = chance.choices(("value", "write", "slot"), (10, 8, 0.15))[0]
        text = chance.choice(chance.choice(_KINDS[kind]) if kind in _KINDS else _choices(_SLOTS))
        latest = names[-3:] if chance.random() < 0.5 else names
        a, b, c = (chance.choice(latest), chance.choice(names), chance.choice(names))
        line = _filled(text, a=a, b=b, c=c)
        if kind == "value":
            line = f"v{len(body)} = {line}"
        if not _can_run(side, line, kind, (a, b, c)):
            continue
        body.append(line)
        if kind == "value":
            names.append(f"v{len(body) - 1}")
            if chance.random() < 0.35:
                results.append(names[-1])
    results += chance.sample(names, min(2, len(names)))
    chance.shuffle(results)
    return Writes(seed, state, arguments, tuple(body), tuple(results), _events(chance))


def _filled(text: str, **names: str) -> str:
    return re.sub(r"\b([abc])\b(?!['(=])", lambda found: names[found[1]], text)


def _can_run(side: _Side, line: str, kind: str, operands: tuple[str, ...]) -> bool:
    tensors = [eval(name, side.names) for name in operands]
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        return False
    if kind == "write" and not all(_are_apart(one, other) for one in tensors for other in tensors):
        return False  # what such a write gives depends on how a kernel walks
    try:
        side.run(line)
    except Exception:
        return False
    if kind != "value":
        return True
    made = side.names[line.partition(" ")[0]]
    return isinstance(made, torch.Tensor) and made.numel() <= _MOST_ELEMENTS and made.layout is torch.strided


def _are_apart(one: torch.Tensor, other: torch.Tensor) -> bool:
    if overlaps_itself(one) or overlaps_itself(other):
        return False
    if one.data_ptr() == other.data_ptr() and (one.shape, one.stride()) == (other.shape, other.stride()):
        return True
    (start, end), (begin, stop) = _span(one), _span(other)
    return end <= begin or stop <= start


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (reach + 1) * tensor.element_size() if tensor.numel() else start


def _events(chance: random.Random) -> tuple[str | None, ...]:
    events: list[str | None] = [None] * _CALLS
    for _ in range(chance.choice((0, 1, 1, 2))):
        events.append(chance.choice(_EVENTS if chance.random() < 0.6 else _ARGUMENTS))
        events += [None] * chance.choice((1, 2, 3))
    return tuple(events)


def run_writes(seed: int, front: str, *, lines: int = 9, device: str = "cpu") -> Outcome:
    """Make the program of a seed, and run it; `front` is a lowering of `jit`, "compile" for our backend of `torch.compile`
    ("compile:aten" with `inner="aten"`), or one of torch's own ("torch:eager")."""
    return run(make_writes(seed, lines), front, device=device)


def run(program: Writes, front: str, *, device: str = "cpu", oracle: str | None = None) -> Outcome:
    """Both sides through all events, or to the first difference; another front may be the oracle instead of eager."""
    without_budget = treeplay.settings.changed(compile_budget=math.inf, tiers="exact")
    with warnings.catch_warnings(), torch.no_grad(), without_budget:
        warnings.simplefilter("ignore")
        return _run(program, front, device, oracle)


def blame(program: Writes, front: str = "compile", *, device: str = "cpu") -> str | None:
    """Whose a difference through our backend is: "dynamo" if its graphs, run as they are, give just what ours give;
    "inductor" if it is right with `inner="aten"` and torch's own backend is wrong too; else "ours". None if all is right."""
    if run(program, front, device=device).difference is None:
        return None
    if run(program, front, device=device, oracle="torch:eager").difference is None:
        return "dynamo"
    peers = [run(program, front, device=device).difference for front in ("compile:aten", "torch:inductor")]
    return "inductor" if peers[0] is None and peers[1] is not None else "ours"


def shrink(program: Writes, front: str, *, device: str = "cpu") -> Writes:
    """Leave out lines, results and events as long as a difference is left."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for part in ("events", "results", "body"):
            kept = getattr(program, part)
            for at in reversed(range(len(kept))):
                fewer = replace(program, **{part: (*kept[:at], *kept[at + 1 :])})
                if run(fewer, front, device=device).difference is not None:
                    program, kept, is_smaller = fewer, getattr(fewer, part), True
    return program


class _Side:
    """One of the two: the names of its text."""

    def __init__(self, text: str, device: str, name: str) -> None:
        # A module that lies in a file: code that has none counts as a library's, in which nobody's state is looked for.
        module = types.ModuleType(f"writes_{name}")
        module.__file__ = f"/writes/{name}.py"
        self.names = vars(module)
        self.names["new"] = self.new
        self.device = device
        self.kept: list[Any] = []
        self.chance = torch.Generator().manual_seed(7)
        linecache.cache[module.__file__] = (len(text), None, text.splitlines(keepends=True), module.__file__)
        sys.modules[module.__name__] = module
        exec(compile(text, module.__file__, "exec"), self.names)

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Quarters, so that most arithmetic is exact, and a zero that is negative."""
        made = torch.randint(-8, 9, shape, generator=self.chance).to(torch.float32) * 0.25
        if made.numel() > 1:
            made.view(-1)[torch.randint(0, made.numel(), (), generator=self.chance)] = -0.0
        return made.to(dtype).to(self.device)

    def run(self, text: str, seed: int | None = None) -> None:
        """Run lines of text among the names."""
        if seed is not None:
            self.chance = torch.Generator().manual_seed(seed)
        exec(text, self.names)

    def event(self, text: str) -> str:
        """What a user does between calls; the kind of error, if it cannot be done."""
        try:
            self.run(text, 11)
        except Exception as error:
            return type(error).__name__
        return ""

    def call(self, function: Callable[..., Any], arguments: str, seed: int) -> Any:
        """The results, or the kind of error."""
        self.run(arguments, seed)
        try:
            made = function(self.names["x"], self.names["y"])
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        self.kept.append(made)
        return made

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything that a call may have changed, results of earlier calls among it."""
        state = self.names["state"]
        found = {name: self.names.get(name) for name in ("x", "y", "base", "p", "q")}
        found |= {f"state.{name}": value for name, value in vars(state).items()}
        found |= {f"state.table.{name}": value for name, value in state.table.items()}
        for number, results in enumerate(self.kept):
            found |= {f"result {at} of call {number}": value for at, value in enumerate(results)}
        return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def _as_front(program: Callable[..., Any], front: str | None) -> Any:
    """The program as a front end has it; as it is for None."""
    kind, _, choice = (front or "").partition(":")
    if kind == "compile":
        return torch.compile(program, backend=backend, options={"inner": choice} if choice else None)
    if kind == "torch":
        return torch.compile(program, backend=choice)
    return treeplay.jit(program, lower=kind) if kind else program


def _run(program: Writes, front: str, device: str, oracle: str | None) -> Outcome:
    eager, ours = (_Side(_PRELUDE + program.setup + program.source, device, name) for name in ("eager", "ours"))
    torch._dynamo.reset()
    expected_of, found_of = _as_front(eager.names["program"], oracle), _as_front(ours.names["program"], front)
    arguments, calls, difference = program.arguments, 0, None
    for event in program.events:
        if event is None:
            calls += 1
            expected, found = eager.call(expected_of, arguments, calls), ours.call(found_of, arguments, calls)
            if isinstance(expected, str) or isinstance(found, str):
                if isinstance(expected, str) and isinstance(found, str):
                    break  # the program cannot do that any more
                difference = f"{found if isinstance(found, str) else 'a result'}, expected {expected}"
            else:
                difference = difference_of(ours, eager, is_exact=front == "aten")
        elif event.partition(" = ")[0] in _GIVEN:
            arguments = event
        elif eager.event(event) != ours.event(event):
            difference = f"{event} raised on one side only"
        if difference is not None:
            difference = f"call {calls}: {difference}"
            break
    if ":" in front or front == "compile":
        return Outcome(program.seed, calls, difference=difference)
    told = found_of.statistics()
    reason = next((item.refusal for item in told.keys if item.refusal is not None), None) if told.refusals else None
    stages = tuple(recording.launch.stage for item in told.keys for recording in item.recordings)
    return Outcome(program.seed, calls, told.replays, told.recordings, told.refusals, difference, reason, stages)


def difference_of(found: _Side, expected: _Side, *, is_exact: bool) -> str | None:
    """How the tensors of two sides differ: in what they are, in their values, or in which of them share memory."""
    left, right = found.tensors(), expected.tensors()
    if left.keys() != right.keys():
        return f"there are {sorted(left)}, expected {sorted(right)}"
    for name, tensor in right.items():
        what = _difference(left[name], tensor, is_exact)
        if what is not None:
            return f"{name}: {what}"
    mine, theirs = _sharing(left), _sharing(right)
    wrong = next((name for name in mine if mine[name] != theirs[name]), None)
    return f"{wrong} shares memory as {mine[wrong]}, expected {theirs[wrong]}" if wrong is not None else None


def _difference(found: torch.Tensor, expected: torch.Tensor, is_exact: bool) -> str | None:
    for fact in ("shape", "dtype", "device"):
        if getattr(found, fact) != getattr(expected, fact):
            return f"{fact} {getattr(found, fact)}, expected {getattr(expected, fact)}"
    if _steps(found) != _steps(expected):
        return f"strides {found.stride()}, expected {expected.stride()}"
    if expected.dtype is torch.bool and expected.is_neg():  # torch itself cannot negate those
        found, expected = torch._neg_view(found), torch._neg_view(expected)
    a, b = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t.resolve_neg() for t in (found, expected))
    if a.dtype.is_floating_point:
        a, b = a.double(), b.double()
        if is_exact:
            same = (a == b) | (a.isnan() & b.isnan())
        else:
            rtol = _TOLERANCE.get(expected.dtype, 1e-6)
            same = torch.isclose(a, b, rtol=rtol, atol=rtol, equal_nan=True)
        same &= (a != 0) | (b != 0) | (a.signbit() == b.signbit())
    else:
        same = a == b
    return None if bool(same.all()) else f"{found}, expected {expected}"


def _steps(tensor: torch.Tensor) -> list[int]:
    return (
        [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1] if tensor.numel() else []
    )


def _begins_at(tensor: torch.Tensor) -> int:
    """Where in its memory a tensor begins; one without elements has no address."""
    return tensor.data_ptr() - tensor.untyped_storage().data_ptr() if tensor.numel() else 0


def _sharing(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[str, int]]:
    """For each tensor the first one in the same memory, and how far from its beginning it begins."""
    first: dict[int, str] = {}
    found = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        owner = first.setdefault(storage.data_ptr() or id(tensor), name)
        found[name] = (owner, _begins_at(tensor) - _begins_at(tensors[owner]))
    return found
