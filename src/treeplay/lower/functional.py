"""A traced graph made functional: symbolic numbers become 0-dim tensors, in-place operators become values.

    traced graph ── interpret with tensors for numbers ── functionalize ── make_fx ──▶ pure graph that ends in copy_ to inputs

What the compiler gets has no aliasing and no mutation but the final `copy_` into each input that the program writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx

from treeplay.device.protocol import Births
from treeplay.errors import LoweringError
from treeplay.lower.aten.memory import empty_like_spec
from treeplay.lower.births import call_telling
from treeplay.lower.in_results import GivenMemory, write_into
from treeplay.lower.numbers import Numbers
from treeplay.lower.numbers_together import NumbersTogether, compute
from treeplay.torch_seam.fakes import new_fake_mode, rules_fail_quietly
from treeplay.torch_seam.schemas import is_random
from treeplay.trace.numbers.scalar_ops import FORMULAS, by_formula
from treeplay.values.spec import TensorSpec

aten = torch.ops.aten


_library = torch.library.Library("treeplay", "DEF")
_library.define("computed_once(Tensor value) -> Tensor")
_library.impl("computed_once", torch.clone, "CompositeExplicitAutograd")
computed_once: Any = torch.ops.treeplay.computed_once.default
"""A number that is to be computed once: the identity, which the compiler may not look through."""
_library.define("fresh(Tensor value) -> Tensor")
_library.impl("fresh", torch.clone, "CompositeExplicitAutograd")
fresh: Any = torch.ops.treeplay.fresh.default
"""A copy in memory of its own, which the compiler may not leave out."""
_library.define("apart(Tensor value) -> Tensor")
_library.impl("apart", torch.clone, "CompositeExplicitAutograd")
apart: Any = torch.ops.treeplay.apart.default
"""The same, made by a kernel that no other may be made part of."""


class TensorsForNumbers(torch.fx.Interpreter):
    """Runs a traced graph with 0-dim tensors in the places of symbolic numbers: float64, or int64 for integers.

    Known `numbers` are not computed here: those with a slot are elements of a vector, given after the other inputs.
    `formulas` stand for operators, whatever they are given. With `forgets`, values are dropped after their last use. While it
    has `births`, these are told of the results of `makers`; operators that have `memory`, by their names, write there. Numbers
    that are computed `together` are computed once for all.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        numbers: Numbers,
        *,
        formulas: Mapping[Any, Callable[..., Any]] | None = None,
        together: Mapping[str, NumbersTogether] | None = None,
        makers: Collection[torch.fx.Node] = (),
        forgets: bool = False,
    ) -> None:
        super().__init__(torch.nn.Module(), garbage_collect_values=forgets, graph=graph)
        self._elements: dict[int, torch.Tensor] = {}
        # The interpreter walks a copy of the graph: sets of nodes are kept by name.
        self.scalars = {node.name for node in numbers.scalars}
        self.known = {node.name for node in numbers.known}
        self.slots = {node.name: index for node, index in numbers.slots.items()}
        self._integers = {index for node, index in numbers.slots.items() if node.meta.get("is_integer")}
        self.makers = {node.name for node in makers}
        self.formulas = formulas or {}
        self.together = together or {}
        self._nodes = {node.name: node for node in self.graph.nodes}
        self._computed: dict[str, torch.Tensor] = {}
        self.vector: torch.Tensor | None = None
        self.births: Births | None = None
        self.memory = GivenMemory()

    def with_vector(self, *inputs: torch.Tensor) -> Any:
        """Run over the graph's tensor inputs, followed by the vector of numbers if there are any."""
        *tensors, self.vector = inputs if self.slots else (*inputs, None)
        try:
            return self.run(*tensors)  # number placeholders are known: they take no argument
        finally:
            # An interpreter keeps what it computed last, and with it the tensors of the call.
            self.env.clear()
            self._elements.clear()
            self._computed.clear()

    def run_node(self, n: torch.fx.Node) -> Any:
        # A known number without a slot is read by other known numbers alone.
        if n.name in self.known:
            return self._element(self.slots[n.name]) if n.name in self.slots else None
        if n.op != "call_function":
            return super().run_node(n)
        if n.name in self.together:
            return self._together(n.name)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if self.births is None:
            return self._call(n, args, kwargs)
        if n.name not in self.makers or n.name in self.memory.of:
            self.births.begins()
            return self._call(n, args, kwargs)
        return call_telling(self.births, n.target, partial(self._call, n), args, kwargs)

    def _call(self, n: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        instead = self._instead_of(n)
        if instead is not None:
            return instead(args, kwargs)
        if n.name in self.memory.elided:
            return self.memory.of.get(n.name, args[0])
        if n.name in self.memory.of:
            return write_into(self.memory.of[n.name], n.target, args, kwargs)  # type: ignore[arg-type]
        return n.target(*args, **kwargs)  # type: ignore[operator]

    def _instead_of(self, n: torch.fx.Node) -> Callable[[Sequence[Any], dict[str, Any]], Any] | None:
        """What is done with the arguments in an operator's place; None: it is called with them."""
        target: Any = n.target
        if target is aten.detach.default or (target is aten.expand.default and _has_shape_of_its_argument(n)):
            # What is written through an expanded tensor would become a sum of differences.
            return lambda args, _: args[0]
        if n.name in self.scalars:
            return lambda args, _: self._number(n, args)
        if target in self.formulas:
            return lambda args, kwargs: self.formulas[target](*args, **kwargs)
        if self._takes_numbers(n) and target in FORMULAS:
            return lambda args, kwargs: by_formula(target, [self._is_number(one) for one in n.args[:2]], args, kwargs)
        return None

    def runs_as_it_is(self, n: torch.fx.Node) -> bool:
        """Whether an operator is called with its arguments, as the graph says."""
        return n.name not in self.together and self._instead_of(n) is None and not self._takes_numbers(n)

    def _takes_numbers(self, n: torch.fx.Node) -> bool:
        return any(argument.name in self.scalars for argument in n.all_input_nodes)

    def _is_number(self, argument: Any) -> bool:
        return (
            argument.name in self.scalars if isinstance(argument, torch.fx.Node) else isinstance(argument, (int, float))
        )

    def _element(self, index: int) -> torch.Tensor:
        if index not in self._elements:
            element = self.vector[index]  # type: ignore[index]
            if index in self._integers:
                # Two halves, each of which float64 holds exactly.
                low = self.vector[index + 1].to(torch.int64)  # type: ignore[index]
                element = element.to(torch.int64) * 2**32 + low
            self._elements[index] = element
        return self._elements[index]

    def _together(self, name: str) -> torch.Tensor:
        if name not in self._computed:
            self._computed |= self.together[name].computed(self._before)
        return self._computed.pop(name)

    def _before(self, node: torch.fx.Node) -> Any:
        """The value of a node that numbers computed together follow from. A known one may come behind the first of them."""
        known = node.name in self.known
        return self._element(self.slots[node.name]) if known else self.env[self._nodes[node.name]]

    def _number(self, n: torch.fx.Node, args: Sequence[Any]) -> torch.Tensor:
        value = compute(n.target, args)
        feeds_tensors = any(user.name not in self.scalars for user in n.users)
        return computed_once(value) if feeds_tensors else value


def _has_shape_of_its_argument(n: torch.fx.Node) -> bool:
    argument: Any = n.args[0]
    return bool(n.meta["spec"].shape == argument.meta["spec"].shape)


def draws_often(graph: torch.fx.Graph) -> bool:
    """Whether more than one operator of a graph draws random numbers."""
    return sum(is_random(node.target) for node in graph.nodes) > 1


def make_functional(
    run: Callable[..., Sequence[torch.Tensor]], specs: Sequence[TensorSpec], decompositions: dict[Any, Any]
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """Trace `run` over fakes of `specs` into a functional graph; raises `LoweringError` where torch cannot."""
    # Inductor's cache takes graphs only whose fakes have a shape environment; here it makes no symbols.
    mode = new_fake_mode(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    with mode, torch.no_grad(), rules_fail_quietly():
        inputs = [empty_like_spec(spec) for spec in specs]
        functional = torch.func.functionalize(run, remove="mutations")
        try:
            module = make_fx(functional, decomposition_table=decompositions, tracing_mode="real")(*inputs)
        except (
            RuntimeError,
            NotImplementedError,
            TypeError,
            AssertionError,  # a rule of torch's that knows less than the operator
            SyntaxError,  # an operator called `from`
        ) as error:
            what, _, _ = str(error).partition("\n\nWhile executing ")  # a node of a graph that is not the user's
            raise LoweringError(f"the graph cannot be made functional: {what}") from error
    module.graph.eliminate_dead_code()
    module.recompile()
    return module, inputs
