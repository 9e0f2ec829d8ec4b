"""Random straight-line programs over views, writes, duplicates, overlaps, flags and results; each is run and judged."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from treeplay.backend.options import Options
from treeplay.driver import compile_flat
from treeplay.errors import Refusal
from wrap.aot.oracle import compare, numbers, run_backward, twin

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t": lambda x: x.t() if x.dim() == 2 else x,
    "slice": lambda x: x[:1],
    "flat": lambda x: x.reshape(-1).view(-1),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "detach": lambda x: x.detach(),
    "self": lambda x: x,
}
MATHS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, y: x * 1.5 + y.sum(),
    "sin": lambda x, y: x.sin(),
    "scale": lambda x, y: y.mean() * x,
}
WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "mul_": lambda x, y: x.mul_(2),
    "add_": lambda x, y: x.add_(y.detach().mean()),
    "use_": lambda x, y: x.mul_(y.sum()),
    "no_grad": lambda x, y: torch.no_grad()(lambda: x.mul_(3))(),
    "hidden": lambda x, y: x.detach().add_(1),
    "item": lambda x, y: x[:1].mul_(4),
    "t_": lambda x, y: x.t_() if x.dim() == 2 else x,
}
TYPED_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bits": lambda x: x.view(torch.int32) if x.dtype is torch.float32 else x,
    "real": lambda x: torch.view_as_real(x) if x.is_complex() else x,
}
TYPED_MATHS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "promote": lambda x, y: x * 2 - y.sum(),
    "double": lambda x, y: x.to(torch.complex128 if x.is_complex() else torch.float64),
    "greater": lambda x, y: x.abs() > y.abs().sum() / 9,
    "choose": lambda x, y: torch.where(x.abs() > 1, x, x * 3),
}
TYPED_WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "copy_": lambda x, y: x.copy_(y.detach().abs().sum() + 1),
    "fill_": lambda x, y: x[:1].fill_(3),
    "bits_": lambda x, y: x.detach().view(torch.int32).add_(1) if x.dtype is torch.float32 else x.detach().add_(1),
}
DTYPES = (
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
PLACES = (slice(0, 2), slice(1, 3), slice(2, 4))
KINDS = ("plain", "plain", "grown", "slice", "slice", "first", "sibling", "sibling", "whole", "detached")


_ALL_VIEWS = VIEWS | TYPED_VIEWS
_ALL_MATHS = MATHS | TYPED_MATHS
_ALL_WRITES = WRITES | TYPED_WRITES


class Program:
    """A random program; `arguments` are (kind, needs a gradient, place in a larger tensor).

    With `is_typed` some arguments have other dtypes than float32, and there are steps that mind them. The same seed has
    otherwise the same program."""

    def __init__(self, seed: int, *, is_typed: bool = False) -> None:
        choose = random.Random(seed)
        self.arguments = [
            (choose.choice(KINDS), choose.random() < 0.4, choose.choice(PLACES)) for _ in range(choose.randint(1, 4))
        ]
        kinds = [*VIEWS, *MATHS] + [*WRITES] * choose.randint(0, 2)
        self.steps = [
            (choose.choice(kinds), choose.randrange(99), choose.randrange(99)) for _ in range(choose.randint(1, 6))
        ]
        self.results = [choose.randrange(99) for _ in range(choose.randint(1, 3))]
        self.dtypes = [torch.float32] * len(self.arguments)
        if is_typed:
            choose = random.Random(f"{seed} typed")
            self.dtypes = [choose.choice(DTYPES) if choose.random() < 0.5 else one for one in self.dtypes]
            typed = [*TYPED_VIEWS, *TYPED_MATHS, *TYPED_WRITES]
            for _ in range(choose.randint(1, 2)):
                step = choose.choice(typed), choose.randrange(99), choose.randrange(99)
                self.steps.insert(choose.randint(0, len(self.steps)), step)

    def make(self, rows: int = 2) -> list[Any]:
        """Fresh arguments of that many rows. Siblings lie in the memory of the first one, at places of their own."""
        made: list[Any] = []
        whole = as_dtype(numbers(2 * rows, 2), self.dtypes[0])
        for k, (kind, grad, place) in enumerate(self.arguments):
            place = slice(place.start * rows // 2, place.start * rows // 2 + rows)
            fresh = as_dtype(numbers(rows, 2) + k, self.dtypes[k])
            grad = grad and (fresh.is_floating_point() or fresh.is_complex())
            if k and kind == "first":
                made.append(made[0])
            elif k and kind == "detached":
                made.append(made[0].detach())
            elif k and kind == "sibling":
                made.append(whole[place])
            elif k and kind == "whole":
                made.append(whole)
            elif kind in ("slice", "sibling", "whole"):
                larger = as_dtype(torch.cat([fresh, fresh + 9]), self.dtypes[k]).requires_grad_(grad)
                larger = larger * 1 if grad else larger.clone()
                whole = larger if k == 0 else whole
                made.append(larger[place])
            else:
                fresh.requires_grad_(grad)
                made.append(fresh * 1 if kind == "grown" and grad else fresh)
        return made

    def __call__(self, *args: Any) -> list[Any]:
        known = list(args)
        for name, one, other in self.steps:
            x, y = known[one % len(known)], known[other % len(known)]
            if name in _ALL_VIEWS:
                known.append(_ALL_VIEWS[name](x))
            elif name in _ALL_MATHS:
                known.append(_ALL_MATHS[name](x, y))
            else:
                _ALL_WRITES[name](x, y)
        return [known[-1 - at % len(known)] for at in self.results]

    def __str__(self) -> str:
        return f"{self.arguments} {self.dtypes} {self.steps} {self.results}"


def as_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers in another dtype; complex ones get an imaginary part, unsigned ones no sign."""
    if dtype.is_complex:
        return torch.complex(tensor, tensor * 2).to(dtype) if not tensor.is_complex() else tensor
    return (tensor.abs() if not dtype.is_signed else tensor).to(dtype)


def sized(program: Program) -> Callable[[list[Any]], list[Any]]:
    """The program behind the front of the backend for sizes that change from call to call; boxed."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    rows = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    samples = [mode.from_tensor(numbers(4, 2), symbolic_context=rows) for _ in program.arguments]
    call = compile_flat(lambda *args: tuple(program(*args)), samples, Options(inner="aten"))

    def taking_a_list(args: list[Any]) -> list[Any]:
        given = tuple(args)
        args.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message="treeplay runs a graph uncompiled")
            return [*call(*given)]

    return taking_a_list


def outcome(seed: int, *, is_typed: bool = False, sizes: Sequence[int] = ()) -> str:
    """`right`, `refused: why`, or `invalid` where eager itself raises. A wrong one raises.

    With `sizes`, the program is compiled once, for sizes that change, and called with that many rows in turn."""
    program = Program(seed, is_typed=is_typed)
    try:
        for rows in sizes or (2,):
            args = program.make(rows)
            run_backward([*program(*args), *args])
    except (RuntimeError, IndexError, NotImplementedError):
        return "invalid"
    try:
        if not sizes:
            twin(program, program.make)
            return "right"
        call = sized(program)
        for rows in sizes:
            compare(program, call, lambda: program.make(rows))
    except UserWarning as warning:
        return f"refused: {str(warning).splitlines()[0]}"
    except Refusal as error:
        return f"refused: {error.reason.op}: {error.reason.why}"
    except Exception as error:
        raise AssertionError(f"program {seed}: {program}: {type(error).__name__}: {error}") from error
    return "right"
