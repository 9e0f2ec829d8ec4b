"""The text of a call function: conditions, and variables for what lies at places."""

from __future__ import annotations

from typing import Any

from treeplay.codegen import Writer
from treeplay.values.place import How, Place, Start
from treeplay.values.signature import Argument, Constant, GivenContainer, State

Operand = Argument | State | Constant | GivenContainer | Place


class CallText(Writer):
    """A writer that knows what has a variable so far. Variables are shared: a place is read once."""

    def __init__(self, **names: Any) -> None:
        super().__init__(**names)
        self.values: dict[Place, str] = {}
        self.checked: list[str] = []  # tensors for the native check
        self.leaves: dict[int | str, str] = {}  # of arguments by their index, and their containers by their variable
        self.inputs: list[str] = []
        self.shared: dict[Any, str] = {}  # results that must be one object however often they are used

    def require(self, condition: str) -> None:
        """A line that misses unless `condition` holds."""
        self.add(f"if not ({condition}): return MISS")

    def operand(self, of: Operand) -> str:
        """What stands for an operand of a condition."""
        match of:
            case Argument(index):
                return self.leaves[index]
            case State(place):
                return self.value(place)
            case Constant(value):
                return self.constant(value)
            case GivenContainer(name):
                return name
            case Place():
                return self.value(of)

    def value(self, place: Place) -> str:
        """A variable with what is at `place` now."""
        if place.how is How.ROOT:
            return self.constant(place.holder)
        if place.how is How.ARGUMENT:
            return self.leaves[place.key]
        known = self.values.get(place)
        if known is None:
            base = self.base(place)
            known = self.values[place] = f"v{len(self.values)}"
            match place.how:
                case How.ITEM:
                    step = f"{base}[{self.literal(place.key)}]"
                case How.CELL:
                    step = f"{base}.cell_contents"
                case How.GRAD:
                    step = f"{base}.grad"
                case How.SLOT:
                    step = f"{self.constant(place.key)}.__get__({base})"
                case _:
                    step = f"{base}.{place.key}"
            self.add(f"{known} = {step}")
        return known

    def base(self, place: Place) -> str:
        """What the step to `place` starts from: its parent's value of the day, or a constant object."""
        if place.is_read_anew and place.parent is not None:
            value = self.value(place.parent)
            return f"{value}.__dict__" if place.starts is Start.TABLE else value
        if place.parent is not None and place.parent.how is How.ARGUMENT:
            return self.leaves[place.parent.key]
        return self.constant(place.holder)

    def once(self, key: Any, expression: str) -> str:
        """A variable for an expression that must give one object however often it is used."""
        if key not in self.shared:
            self.shared[key] = f"view_{len(self.shared)}"
            self.add(f"{self.shared[key]} = {expression}")
        return self.shared[key]
