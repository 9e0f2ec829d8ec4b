"""Lowers a traced graph with Inductor: one compiled artifact for forward, backward and optimizer, state updated in place.

    traced graph ─▶ functional graph (numbers in one vector, state as inputs) ─▶ Inductor ─▶ C++ kernels and a C++ wrapper

Python is left out of the call but for unpacking: the artifact takes the state's own tensors and writes into them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from treeplay.errors import LoweringError
from treeplay.facts.spec import TensorSpec
from treeplay.lower.functional import Tensors, make_functional
from treeplay.lower.lowered import Lowered, Run
from treeplay.lower.numbers import Numbers, split_numbers

_VECTOR_DEVICE = torch.device("cpu")


def lower_inductor(graph: torch.fx.Graph, *, eager_random: bool, is_small: bool = False) -> Lowered:
    """Compile `graph`, for one thread if it `is_small`.

    Raises `LoweringError` if torch's functionalization or Inductor cannot take it."""
    from treeplay.lower import torch_private  # imports Inductor: seconds, so only when it is needed

    numbers = split_numbers(graph)
    specs = _specs(graph, numbers)
    interpreter = Tensors(graph, numbers.scalars, numbers.known, numbers.slots)
    module, fakes = make_functional(interpreter.with_vector, specs, torch_private.decompositions())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            artifact = torch_private.compile_graph(module, fakes, eager_random=eager_random, is_small=is_small)
    except Exception as error:
        raise LoweringError(f"Inductor could not compile the graph: {error}") from error
    run = _with_vector(artifact, numbers) if numbers.size else _without_numbers(artifact)
    return Lowered("inductor", run, operators=len(module.graph.nodes))


def _specs(graph: torch.fx.Graph, numbers: Numbers) -> list[TensorSpec]:
    tensors = [node.meta["spec"] for node in graph.nodes if node.op == "placeholder" and "spec" in node.meta]
    vector = TensorSpec((numbers.size,), (1,), torch.float64, _VECTOR_DEVICE)
    return [*tensors, vector] if numbers.size else tensors


def _without_numbers(artifact: Any) -> Run:
    def run(tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        return artifact(tensors)  # type: ignore[no-any-return]

    return run


def _with_vector(artifact: Any, numbers: Numbers) -> Run:
    vector = torch.zeros(numbers.size, dtype=torch.float64)
    compute = numbers.compute
    last: Sequence[float] | None = None

    def run(tensors: list[torch.Tensor], values: Sequence[float]) -> Sequence[torch.Tensor]:
        nonlocal last
        if values != last:
            vector.copy_(torch.tensor(compute(values), dtype=torch.float64))
            last = values
        tensors.append(vector)
        return artifact(tensors)  # type: ignore[no-any-return]

    return run
