"""From a traced graph, its layout and its memory to one straight-line Python function, as text and names.

    def replay(tensors, numbers):
        in0, in1, in2 = tensors                      the caller's tensors
        s0, = numbers
        increment_versions([in0])                    autograd is told what is about to change
        with without(keys):                          operators are called below autograd, as they were traced
            addmm_out(in1, in2, t, out=addmm)        into the arena; `t` and `addmm` were made once
            sub = 1.0 - s0
            float32s[0] = sub
            mul_(in0, cell)
            loss = mse_loss(addmm, in2)              an output: new memory
            return (loss,)

Tensors that lie in the arena, their views and constants are made while the text is written: they are names of it.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from treeplay.codegen import tuple_of
from treeplay.codegen.idioms import note_writes
from treeplay.errors import LoweringError, NoNumber
from treeplay.lower.aten.into_arena import IntoArena
from treeplay.lower.aten.memory import GraphArena, below_autograd, empty_like_spec
from treeplay.lower.aten.numbers import NumberText
from treeplay.lower.aten.storage import Home, Node, Storage, StoragePlan, written_nodes
from treeplay.lower.aten.text import GraphText, Meaning
from treeplay.lower.aten.uses import endings, runs_with_gradients, told_inputs
from treeplay.lower.numbers import known_before, scalar_nodes
from treeplay.torch_seam.operators import ExcludeKeys, OpOverload, keys_above_operators, with_gradients_on
from treeplay.torch_seam.schemas import COPIES, EMPTY, aten
from treeplay.torch_seam.tensors import empty_strided_host
from treeplay.values.arithmetic import NOT_COMPUTED
from treeplay.values.spec import TensorSpec

_RESERVED = frozenset({"replay", "tensors", "numbers", "arena", "abs", "increment_versions"})


@dataclass(eq=False, slots=True)
class GraphEmitter:
    """Writes the nodes of one graph in order."""

    graph: torch.fx.Graph
    layout: StoragePlan
    memory: GraphArena
    text: GraphText
    numbers: NumberText
    allocating: Counter[str] = field(default_factory=Counter)
    _arena: IntoArena = field(init=False)
    _makes: dict[Node, list[Storage]] = field(default_factory=dict)
    _views: dict[tuple[Any, ...], Meaning] = field(default_factory=dict)
    _locals: dict[Storage | Node, list[str]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._arena = IntoArena(self.layout, self.memory, self.text, self.numbers)

    def write(self) -> None:
        """Write the whole function."""
        self._makes = self.layout.by_maker()
        self.text.taken |= {node.name for node in self.graph.nodes} | _RESERVED
        numbers = scalar_nodes(self.graph)
        ended = endings(self.graph, self.layout)
        with self.text.block("def replay(tensors, numbers):"), self._head(numbers):
            for node in self.graph.nodes:
                if node in numbers:
                    if node not in self.text.env:
                        self.numbers.write(node)
                elif node.op == "call_function":
                    self._write_tensors(node)
                elif node.op == "output":
                    self.text.add(f"return {tuple_of(self._results(node))}")
                elif node.op != "placeholder":
                    raise LoweringError(f"{node.op} is not an operator")
                self._drop(ended.get(node, []))

    # --- around the operators -------------------------------------------------------------------------------

    def _head(self, numbers: set[Node]) -> AbstractContextManager[None]:
        placeholders = self.graph.find_nodes(op="placeholder")
        for title, wanted in (("tensors", False), ("numbers", True)):
            self.text.unpack([self._input(node) for node in placeholders if (node in numbers) is wanted], title)
        self._write_known(known_before(self.graph, numbers))
        written = [node.name for node in told_inputs(self.graph, self.layout)]
        if written:
            note_writes(self.text, written)
        guard = self.text.name(ExcludeKeys, "without")
        return self.text.block(f"with {guard}({self.text.name(keys_above_operators(), 'keys')}):")

    def _write_known(self, known: list[Node]) -> None:
        """Compute the numbers that are known before anything is written: one that Python cannot compute ends the call here."""
        computed = [node for node in known if node.op != "placeholder"]
        if not computed:
            return
        with self.text.block("try:"):
            for node in computed:
                self.numbers.write(node)
        with self.text.block(f"except {self.text.name(NOT_COMPUTED, 'NOT_COMPUTED')} as error:"):
            self.text.add(f"raise {self.text.name(NoNumber, 'NoNumber')} from error")

    def _input(self, node: Node) -> str:
        if "spec" not in node.meta:
            self.text.bind_number(node, node.name)
            return node.name
        self.text.bind_live(node)
        self._note_view(node)
        return node.name

    def _results(self, node: Node) -> Iterator[str]:
        items: Any = node.args[0]
        for item in items:
            yield self.text.expression(self.text.env[item])

    def _drop(self, ended: list[Storage | Node]) -> None:
        names = [name for item in ended for name in self._locals.pop(item, [])]
        if names:
            self.text.add(f"del {', '.join(names)}")

    # --- operators ------------------------------------------------------------------------------------------

    def _write_tensors(self, node: Node) -> None:
        op, env = node.target, self.text.env
        if op is operator.getitem:
            self._write_part(node)
        elif node in self.layout.elided:
            source = self.layout.elided[node]
            env[node] = env[source]
            if node.target not in COPIES:
                env[node.args[0]] = env[source]  # type: ignore[index]
        elif not isinstance(op, OpOverload):
            raise LoweringError(f"{op} is not an ATen operator")
        elif op is aten.detach.default:
            env[node] = env[node.args[0]]  # type: ignore[index]
        elif node in self._makes:
            self._write_maker(node, op, self._makes[node])
        elif any(written_nodes(node)):
            self._write_writer(node, op)
        elif not op._schema.returns:  # it checks something
            self._write_call(node, op)
        elif op not in EMPTY:  # else its only use is an elided copy, which gives it another's memory
            self._write_view(node, op)

    def _write_part(self, node: Node) -> None:
        if node in self.text.env:  # its operator wrote it into the arena
            return
        whole = self.text.env[node.args[0]]  # type: ignore[index]
        if whole.is_static:
            self.text.bind_static(node, whole.value[node.args[1]])
        else:
            self._bind_local(node)
            self.text.add(f"{node.name} = {whole.text}[{node.args[1]}]")

    def _write_maker(self, node: Node, op: OpOverload, makes: list[Storage]) -> None:
        home = makes[0].home
        if home is Home.CONSTANT:
            self.text.bind_static(node, self._constant(node, op))
        elif home is Home.ARENA:
            self._arena.write(node, op, makes)
        elif op in EMPTY and node.meta["spec"].device.type == "cpu":
            spec: TensorSpec = node.meta["spec"]
            make = self.text.name(empty_strided_host, "empty_strided")
            words = ", ".join(map(self.text.expression, (spec.shape, spec.stride, spec.dtype)))
            self.text.add(f"{self._bind_local(node)} = {make}({words})")
        else:
            if all(storage.home is Home.OWN for storage in makes):
                self.allocating[str(op)] += 1
            self._write_call(node, op)

    def _write_writer(self, node: Node, op: OpOverload) -> None:
        target = next(written_nodes(node))
        if "spec" in node.meta:
            self.text.env[node] = self.text.env[target]
        op, args = self.numbers.with_cell(op, node.args)
        self.text.add(self.text.call(op, args, dict(node.kwargs)))

    def _write_view(self, node: Node, op: OpOverload) -> None:
        if not self.text.is_static((*node.args, *node.kwargs.values())):
            self._write_live_view(node, op)
            return
        if op is aten.as_strided.default and node in self.layout.of and self.layout.of[node].home is Home.ARENA:
            # Its offset counts from the start of the storage: in the trace the tensor's own, here the whole arena.
            self.text.bind_static(node, self._arena.tensor_of(node))
            return
        made = below_autograd(op, *map(self.text.value, node.args), **node.kwargs)
        bases = [self.text.value(item) for item in node.all_input_nodes]
        for part in made if isinstance(made, (list, tuple)) else [made]:
            if all(_memory_of(part) != _memory_of(base) for base in bases):
                raise LoweringError(f"{op} was traced as a view of its argument, and gives new memory")
        self.text.bind_static(node, made)

    def _write_live_view(self, node: Node, op: OpOverload) -> None:
        if "spec" not in node.meta:  # several views at once
            self._write_call(node, op)
            return
        same = self._views.get(_view_key(node))
        if same is not None:
            self.text.env[node] = same
            return
        args = self.text.bounds(tuple(node.args))

        def define() -> None:
            self.text.add(f"{node.name} = {self.text.call(op, args, dict(node.kwargs))}")
            self._locals[self.layout.of[node]].append(node.name)

        self.text.bind_live(node, define)
        self._note_view(node)

    def _note_view(self, node: Node) -> None:
        """Let a later view of the same memory in the same shape be this one."""
        if self.layout.of[node].is_plain:
            self._views.setdefault(_view_key(node), self.text.env[node])

    def _write_call(self, node: Node, op: OpOverload) -> None:
        op, args = self.numbers.with_cell(op, node.args)
        if runs_with_gradients(node):
            words = self.text.call_by(with_gradients_on(op), op, args, dict(node.kwargs))
        else:
            words = self.text.call(op, args, dict(node.kwargs))
        self.text.add(f"{self._bind_local(node)} = {words}" if node.users else words)

    def _bind_local(self, node: Node) -> str:
        name = self.text.bind_live(node)
        self._locals[self.layout.of.get(node, node)].append(name)
        if node in self.layout.of:
            self._note_view(node)
        return name

    def _value_of(self, item: Any) -> Any:
        """What stands for an argument of a constant's: its value, or memory like it."""
        if isinstance(item, Node):
            bound = self.text.env[item]
            return bound.value if bound.is_static else empty_like_spec(item.meta["spec"])
        return [self._value_of(part) for part in item] if isinstance(item, (list, tuple)) else item

    def _constant(self, node: Node, op: OpOverload) -> Any:
        kwargs = {name: self._value_of(item) for name, item in node.kwargs.items()}
        made = below_autograd(op, *map(self._value_of, node.args), **kwargs)
        for part in made if isinstance(made, (list, tuple)) else [made]:
            self.memory.keep(part)
        return made


def _view_key(node: Node) -> tuple[Any, ...]:
    spec: TensorSpec = node.meta["spec"]
    return node.meta["storage"], node.meta["offset"], spec.shape, spec.stride, spec.dtype


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
