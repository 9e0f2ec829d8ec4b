"""Numbers in the text of a replay function: expressions of hyper-parameters and host scalars, and cells that hold them.

group["lr"], a step tensor   ─▶   item = step.item(); pow = s1 ** item; float32s[0] = pow; mul_(x, cell)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from treeplay.errors import LoweringError
from treeplay.lower.aten.memory import Cells, takes_cells
from treeplay.lower.aten.ops import CELLS
from treeplay.lower.aten.text import GraphText, Meaning, Node
from treeplay.torch_seam.operators import OpOverload
from treeplay.torch_seam.schemas import aten
from treeplay.values.arithmetic import FORMS, operand

# Whole numbers up to here are the same in the type, so that which way they are converted cannot matter.
_EXACT = {torch.float32: 2**24, torch.float64: 2**53}


@dataclass(eq=False, slots=True)
class NumberText:
    """Writes numbers: equal expressions once, and one cell for each number and type."""

    text: GraphText
    cells: Cells
    _known: dict[str, str] = field(default_factory=dict)
    _made: dict[tuple[torch.dtype, str], Meaning] = field(default_factory=dict)

    def write(self, node: Node) -> None:
        """Bind a number node, and write its expression if it is new."""
        if node.target is aten._local_scalar_dense.default:
            self._assign(node, f"{self.text.expression(node.args[0])}.item()")
            return
        form = FORMS.get(node.target)
        if form is None:
            raise LoweringError(f"{node.target} of a number is not known")
        words = form.format(*(self._operand(argument) for argument in node.args))
        known = self._known.get(words)
        if known is None:
            self._known[words] = node.name
            self._assign(node, words)
        else:
            self.text.bind_number(node, known)

    def _assign(self, node: Node, words: str) -> None:
        self.text.bind_number(node, node.name)
        self.text.add(f"{node.name} = {words}")

    def _operand(self, item: Any) -> str:
        return operand(self.text.expression(item))

    def with_cell(self, op: OpOverload, args: tuple[Any, ...]) -> tuple[OpOverload, tuple[Any, ...]]:
        """The same operation with a cell in the place of its number, where that changes nothing but the price."""
        if op not in CELLS or len(args) < 2:
            return op, args
        dtype = _common_dtype(args[0])
        if dtype is None or not takes_cells(dtype) or not self._is_number(args[1], dtype):
            return op, args
        return CELLS[op], (args[0], self._cell(args[1], dtype), *args[2:])

    def _is_number(self, item: Any, dtype: torch.dtype) -> bool:
        if isinstance(item, Node):
            return "spec" not in item.meta
        return type(item) is float or (type(item) is int and abs(item) <= _EXACT[dtype])

    def _cell(self, number: Any, dtype: torch.dtype) -> Meaning:
        words = self.text.expression(number)
        known = self._made.get((dtype, words))
        if known is not None:
            return known
        tensor, index = self.cells.add(dtype)
        array = self.cells.arrays[dtype]
        if isinstance(number, Node):
            name = self.text.name(array, f"{str(dtype).removeprefix('torch.')}s")
            self.text.add(f"{name}[{index}] = {words}")
        else:
            array[index] = number
        bound = Meaning(self.text.fresh(f"cell_{words}"), torch.empty((), dtype=dtype, device="meta"), tensor)
        self._made[dtype, words] = bound
        return bound


def _common_dtype(item: Any) -> torch.dtype | None:
    nodes = item if isinstance(item, (list, tuple)) else [item]
    specs = [node.meta["spec"] for node in nodes if isinstance(node, Node) and "spec" in node.meta]
    dtypes = {spec.dtype for spec in specs if spec.device.type == "cpu"}
    return dtypes.pop() if len(dtypes) == 1 and len(specs) == len(nodes) else None
