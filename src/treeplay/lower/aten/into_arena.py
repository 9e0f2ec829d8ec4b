"""Operators that write into the arena: by their `out=` form, by a copy or a fill, or by nothing where memory is only made.

The tensors that they write are made here, once: they are names of the function that is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from treeplay.lower.aten.memory import GraphArena, empty_like_spec, result_specs
from treeplay.lower.aten.numbers import NumberText
from treeplay.lower.aten.ops import filling
from treeplay.lower.aten.storage import Node, Storage, StoragePlan
from treeplay.lower.aten.text import GraphText, Meaning
from treeplay.torch_seam.operators import OpOverload
from treeplay.torch_seam.schemas import returns_count


@dataclass(frozen=True, eq=False, slots=True)
class IntoArena:
    """Writes such operators of one graph."""

    layout: StoragePlan
    memory: GraphArena
    text: GraphText
    numbers: NumberText

    def write(self, node: Node, op: OpOverload, makes: list[Storage]) -> None:
        """Have an operator write into the arena, which holds what it `makes`."""
        if returns_count(op) == 1:
            buffer = makes[0]
            tensor = self.memory.tensor(buffer.birth.meta["storage"], node.meta["spec"], node.meta["offset"])
            self.text.bind_static(node, tensor)
        call = filling(op, node.args, node)
        if call is not None and call.base is not None:
            outs = self._outs(node, op, call.outs)
            _, args = self.numbers.with_cell(call.base, call.args)  # the form takes a cell where it takes a number
            self.text.add(self.text.call(call.op, args, dict(node.kwargs), outs))
        elif call is not None:
            self.text.add(self.text.call(call.op, call.args, {}))

    def _outs(self, node: Node, op: OpOverload, names: Sequence[str]) -> dict[str, Any]:
        if len(names) == 1:
            return {names[0]: self.text.env[node]}
        parts: dict[Any, Any] = {user.args[1]: user for user in node.users}
        specs = None
        for index in range(len(names)):
            part = parts.get(index)
            if part is not None:
                self.text.bind_static(part, self.tensor_of(part))
                parts[index] = self.text.env[part]
                continue
            # A result that nobody uses: the kernel writes it all the same.
            specs = specs or node.meta.get("results") or result_specs(op, *_as_specs(node))
            unused = self.memory.keep(empty_like_spec(specs[index]))
            parts[index] = Meaning(self.text.fresh("unused"), empty_like_spec(specs[index], "meta"), unused)
        return {name: parts[index] for index, name in enumerate(names)}

    def tensor_of(self, node: Node) -> torch.Tensor:
        """The tensor in the arena that a node stands for."""
        storage = self.layout.of[node].birth.meta["storage"]
        return self.memory.tensor(storage, node.meta["spec"], node.meta["offset"])


def _as_specs(node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda item: item.meta.get("spec", 0.5))
    return args, kwargs
