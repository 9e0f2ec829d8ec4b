"""Memory that a replay finds ready: the arena and its tensors, constants, and cells for numbers.

A finished arena plan goes in; tensors come out. All of them are made here, once, when a graph is lowered.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from treeplay.torch_seam.fakes import FakeTensorMode
from treeplay.torch_seam.operators import ExcludeKeys, OpOverload, keys_above_operators
from treeplay.values.arena import ArenaPlan
from treeplay.values.spec import TensorSpec

_CELL_CODES = {torch.float32: "f", torch.float64: "d"}


def below_autograd(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `work` as an operator inside a replay is called: nothing of autograd sees it."""
    with torch.no_grad(), ExcludeKeys(keys_above_operators()):
        return work(*args, **kwargs)


def empty_like_spec(spec: TensorSpec, device: torch.device | str | None = None) -> torch.Tensor:
    """A tensor of this spec with no contents; on the device "meta", without memory either."""
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=device or spec.device)


@dataclass(eq=False, slots=True)
class GraphArena:
    """The arena of one lowered graph; owned by the function that is made of it, and dies with it."""

    offsets: dict[int, int]
    arena: torch.Tensor
    extra_bytes: int = 0

    @classmethod
    def of(cls, plan: ArenaPlan) -> GraphArena:
        """Allocate what the plan asks for."""
        return cls(plan.offsets(), torch.empty(plan.total_bytes, dtype=torch.uint8, device="cpu"))

    def tensor(self, buffer: int, spec: TensorSpec, offset: int) -> torch.Tensor:
        """A tensor of `spec` in the arena, `offset` elements after the start of its buffer."""
        start = self.offsets[buffer] // spec.dtype.itemsize + offset
        made: torch.Tensor = below_autograd(self.arena.view(spec.dtype).as_strided, spec.shape, spec.stride, start)
        return made

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor that lies beside the arena for as long as it does."""
        self.extra_bytes += tensor.untyped_storage().nbytes()
        return tensor


def result_specs(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[TensorSpec]:
    """The specs of all results of `op`, found without running it; `args` hold a `TensorSpec` for each tensor."""

    def fake(value: Any) -> Any:
        if isinstance(value, TensorSpec):
            return empty_like_spec(value)
        return [fake(item) for item in value] if isinstance(value, (list, tuple)) else value

    with FakeTensorMode(), torch.no_grad():
        results = op(*[fake(value) for value in args], **{name: fake(value) for name, value in kwargs.items()})
        return [TensorSpec.of(result) for result in (results if isinstance(results, (list, tuple)) else [results])]


@dataclass(eq=False, slots=True)
class Cells:
    """Tensors of one number each, to pass in the place of Python numbers, in two arrays that Python can set quickly.

    An operator that takes a tensor and a number makes a tensor of the number first, at the price of a small kernel. The
    array's conversion to float32 is C's, and so the operator's.
    """

    arrays: dict[torch.dtype, array[float]] = field(default_factory=dict)
    used: dict[torch.dtype, int] = field(default_factory=dict)

    @classmethod
    def up_to(cls, capacity: int) -> Cells:
        """Room for `capacity` numbers of each type; the arrays never move."""
        arrays = {dtype: array(code, [0.0]) * capacity for dtype, code in _CELL_CODES.items()}
        return cls(arrays, dict.fromkeys(arrays, 0))

    def add(self, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
        """A new cell as a tensor without dimensions, and its position in the array of its type."""
        index = self.used[dtype]
        self.used[dtype] += 1
        numbers = torch.frombuffer(self.arrays[dtype], dtype=dtype)
        made: torch.Tensor = below_autograd(numbers.as_strided, (), (), index)
        return made, index


def takes_cells(dtype: torch.dtype) -> bool:
    """Whether numbers beside tensors of this type may be cells: others compute in a wider type than their own."""
    return dtype in _CELL_CODES
