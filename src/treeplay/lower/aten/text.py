"""The text of a replay function while it grows: what each node is called there, and how operators are written.

Values go in as nodes of the graph and plain Python values; expressions come out. Whatever has no literal gets a name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from treeplay.codegen import Writer, list_of, tuple_of
from treeplay.lower.aten.calls import spell
from treeplay.lower.aten.memory import empty_like_spec
from treeplay.torch_seam.operators import OpOverload, operator_name
from treeplay.values.spec import TensorSpec

Node = torch.fx.Node
_UNKNOWN = object()


@dataclass(eq=False, slots=True)
class Meaning:
    """What a node is in the text: an expression, a stand-in without memory, and its value if that never changes.

    A view that may never be used is written at its first use, by `define`.
    """

    text: str
    stand_in: Any
    value: Any = _UNKNOWN
    define: Callable[[], None] | None = None

    @property
    def is_static(self) -> bool:
        """Whether the same object serves every replay."""
        return self.value is not _UNKNOWN


class GraphText(Writer):
    """A writer that knows the meaning of nodes; one per lowered graph, dropped when its function is made."""

    def __init__(self) -> None:
        super().__init__()
        self.env: dict[Node, Meaning] = {}
        self.calls = 0

    def forget_views(self) -> None:
        """Views that were never used are not written any more: what would write them holds the emitter and its memory."""
        for bound in self.env.values():
            bound.define = None

    # --- what nodes are -------------------------------------------------------------------------------------

    def bind_live(self, node: Node, define: Callable[[], None] | None = None) -> str:
        """Let a local variable hold the node; gives its name."""
        spec: TensorSpec | None = node.meta.get("spec")
        stand_in = None if spec is None else empty_like_spec(spec, "meta")
        self.env[node] = Meaning(node.name, stand_in, define=define)
        return node.name

    def bind_number(self, node: Node, text: str) -> None:
        """Let an expression hold the node, a number."""
        self.env[node] = Meaning(text, 0.5 + len(self.env))  # no two alike, so that a mix-up shows

    def bind_static(self, node: Node, value: Any) -> None:
        """Let an object hold the node for good."""
        is_tensor = isinstance(value, torch.Tensor)
        stand_in = empty_like_spec(TensorSpec.of(value), "meta") if is_tensor else None
        self.env[node] = Meaning(node.name, stand_in, value)

    def bounds(self, item: Any) -> Any:
        """An argument with what its nodes are now in their place."""
        if isinstance(item, (list, tuple)):
            return type(item)(map(self.bounds, item))
        return self.env[item] if isinstance(item, Node) else item

    def value(self, item: Any) -> Any:
        """An argument as a value, with `Meaning.value` for nodes."""
        if isinstance(item, Node):
            item = self.env[item]
        if isinstance(item, Meaning):
            return item.value
        return [self.value(part) for part in item] if isinstance(item, (list, tuple)) else item

    def is_static(self, item: Any) -> bool:
        """Whether an argument holds no node that changes from replay to replay."""
        if isinstance(item, Node):
            item = self.env[item]
        if isinstance(item, Meaning):
            return item.is_static
        return all(map(self.is_static, item)) if isinstance(item, (list, tuple)) else True

    # --- expressions ----------------------------------------------------------------------------------------

    def expression(self, item: Any) -> str:
        """An argument as text."""
        if isinstance(item, Node):
            item = self.env[item]
        if isinstance(item, Meaning):
            return self._use(item)
        if isinstance(item, (list, tuple)):
            return self._sequence(item)
        if item is None or isinstance(item, (bool, int, str)) or (isinstance(item, float) and math.isfinite(item)):
            return repr(item)
        return self.name(item, str(item).removeprefix("torch."))

    def _use(self, bound: Meaning) -> str:
        if bound.is_static:
            self.use(bound.text, bound.value)
        elif bound.define is not None:
            define, bound.define = bound.define, None
            define()
        return bound.text

    def _sequence(self, items: list[Any] | tuple[Any, ...]) -> str:
        if any(isinstance(item, (Node, Meaning)) for item in items) and self.is_static(items):
            return self.name(type(items)(self.value(item) for item in items), "group")
        # Plain numbers as a tuple: Python makes a constant of it.
        if all(item is None or isinstance(item, (bool, int, float)) for item in items):
            return tuple_of(map(self.expression, items))
        return list_of(map(self.expression, items))

    def _stand_in(self, item: Any) -> Any:
        if isinstance(item, Node):
            item = self.env[item]
        if isinstance(item, Meaning):
            return item.stand_in
        return [self._stand_in(part) for part in item] if isinstance(item, (list, tuple)) else item

    def call(
        self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], outs: dict[str, Any] | None = None
    ) -> str:
        """A call of `op` as text; `outs` are the tensors to write to."""
        outs = outs or {}
        stand_ins = tuple(map(self._stand_in, args))
        spelling = spell(op, stand_ins, _each(self._stand_in, kwargs), _each(self._stand_in, outs))
        return self._call(spelling.function, spelling.name, args, {**kwargs, **spelling.keywords(outs)})

    def call_by(
        self, function: Callable[..., Any], op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        """A call of `function`, which stands for `op`, as text."""
        return self._call(function, operator_name(op), args, kwargs)

    def _call(self, function: Callable[..., Any], wish: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        self.calls += 1
        words = [self.expression(arg) for arg in args]
        words += [f"{name}={self.expression(value)}" for name, value in kwargs.items()]
        return f"{self.name(function, wish)}({', '.join(words)})"


def _each(convert: Any, items: dict[str, Any]) -> dict[str, Any]:
    return {name: convert(item) for name, item in items.items()}
