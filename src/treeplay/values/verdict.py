"""What a comparison of two results found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Rule = Literal["kind", "length", "keys", "set", "value", "layout", "shape", "dtype", "exact", "tolerance", "float64"]
"""The rule that a leaf or container broke.

kind, length, keys, set: about containers; kind also about leaves. value: a leaf that is no tensor.
layout, shape, dtype: about tensors before their elements. exact: booleans and integers. tolerance: floats.
float64: floats, where being no further from a float64 reference than a multiple of the reference's distance
would have been enough.
"""


@dataclass(frozen=True, slots=True)
class Worst:
    """The largest error among the elements that differ, and the index of that element."""

    error: float
    index: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.error:.3g} at {self.index}"


@dataclass(frozen=True, slots=True)
class Elements:
    """How the elements of two tensors differ; errors are against the reference, over bad elements only."""

    bad: int
    total: int
    absolute: Worst
    relative: Worst

    def __str__(self) -> str:
        return f"{self.bad} of {self.total} elements, worst {self.absolute}, relative {self.relative}"


@dataclass(frozen=True, slots=True)
class Float64Errors:
    """Root mean squared errors against a float64 reference.

    The rule they broke: result <= multiplier * reference + tol / 10.
    """

    result: float
    reference: float
    multiplier: float
    tol: float

    def __str__(self) -> str:
        limit = f"{self.multiplier:g} * {self.reference:.3g} + {self.tol:g} / 10"
        return f"off float64 by {self.result:.3g}, allowed {limit}"


@dataclass(frozen=True, slots=True)
class LeafFailure:
    """One place where a result differs: its path, the rule it broke, why, and for tensors how far off it is.

    `path` is what to write after the result to get there, such as `["a"][0].b`; empty for the result itself.
    `shape` and `dtype` are the reference's, None where it is no tensor.
    """

    path: str
    rule: Rule
    reason: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    elements: Elements | None = None
    float64: Float64Errors | None = None

    def __str__(self) -> str:
        tensor = f" [{self.dtype} {self.shape}]" if self.dtype is not None else ""
        details = [str(part) for part in (self.elements, self.float64) if part is not None]
        return "; ".join([f"result{self.path}{tensor}: {self.rule}: {self.reason}", *details])


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two results are equal (its truth value), and where they are not, in the order of comparison.

    `leaves` counts the leaves that were looked at; `hints` says what made the comparison less sure.
    """

    failures: tuple[LeafFailure, ...] = ()
    leaves: int = 0
    hints: tuple[str, ...] = field(default=())

    def __bool__(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        if not self.failures:
            return f"equal ({self.leaves} leaves)"
        return f"different in {len(self.failures)} places: " + " | ".join(map(str, self.failures))
