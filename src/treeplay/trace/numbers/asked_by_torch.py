"""What torch asks of every symbolic number, also while it puts the arguments of an operator together."""

from __future__ import annotations

from treeplay.sandbox.interrupts import asked_by_cpp


class AskedByTorch:
    """Of which kind a symbolic number is. It is never known to torch, and has a value today."""

    constant = None
    boolean: bool
    integer: bool

    @asked_by_cpp
    def is_int(self) -> bool:
        return self.integer

    @asked_by_cpp
    def is_float(self) -> bool:
        return not self.boolean and not self.integer

    @asked_by_cpp
    def is_bool(self) -> bool:
        return self.boolean

    @asked_by_cpp
    def is_nested_int(self) -> bool:
        return False

    @asked_by_cpp
    def is_symbolic(self) -> bool:
        return True

    @asked_by_cpp
    def is_constant(self) -> bool:
        return False

    @asked_by_cpp
    def has_hint(self) -> bool:
        return True

    @asked_by_cpp
    def maybe_as_int(self) -> None:
        return None

    @asked_by_cpp
    def maybe_as_float(self) -> None:
        return None

    @asked_by_cpp
    def maybe_as_bool(self) -> None:
        return None
