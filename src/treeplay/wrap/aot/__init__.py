"""Wraps functions that torch's ahead-of-time tracing took apart: one generated function does all that a graph does not.

flat function ─ capture ▶ graphs, facts ─ planning ▶ CallPlan ─ emit ▶ Source ─ build ▶ compiled function
"""

from treeplay.wrap.aot.build import wrap_function
from treeplay.wrap.aot.compilers import Compilers
from treeplay.wrap.aot.plan.facts import CallPlan

__all__ = ["CallPlan", "Compilers", "wrap_function"]
