"""The text of a function that follows a `CallPlan`: how arguments and values are called, in the function and in messages."""

from __future__ import annotations

from treeplay.codegen import Writer
from treeplay.wrap.aot.emit import subclasses
from treeplay.wrap.aot.plan.facts import CallPlan


class PlanText(Writer):
    """A writer that knows the plan of a call: how arguments and values are called in its function, and in messages."""

    def __init__(self, plan: CallPlan) -> None:
        super().__init__()
        self.plan = plan

    def named(self, argument: int) -> str:
        """The variable of an argument, or of a base."""
        return self.plan.variable(argument)

    def at(self, argument: int) -> int:
        """Where an argument stands once the copies are dropped and the bases made."""
        return self.plan.inputs.index(argument)

    def told(self, argument: int) -> str:
        """An argument as messages call it."""
        count = len(self.plan.arguments)
        if argument < count:
            return f"argument {argument} (`{self.plan.name(argument)}`)"
        listed = [self.told(member.argument) for member in self.plan.bases[argument - count].members]
        return f"the memory of {', '.join(listed)}"

    def tensors(self, argument: int) -> list[str]:
        """The plain tensors of an argument, in the list of arguments."""
        at, wrapper = self.at(argument), self.plan.wrapper(argument)
        return [f"args[{at}]"] if wrapper is None else wrapper.tensors(f"args[{at}]")

    def value(self, value: int) -> str:
        """A value of the graph's, as it is called once it has run."""
        return subclasses.value(self.plan, value) if self.plan.node is None else f"value{value}"
