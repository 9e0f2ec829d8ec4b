"""Lowers a traced graph with Inductor: one compiled artifact for forward, backward and optimizer, state updated in place.

    traced graph ─▶ functional graph (numbers in one vector, state as inputs) ─▶ Inductor ─▶ kernels and a wrapper

On the CPU the wrapper is C++, so that Python is left out of the call. On a GPU it is Python, which runs only while the
artifact is recorded. Either takes the state's own tensors and writes into them.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.fx

from treeplay.errors import LoweringError
from treeplay.graph_check import check_module
from treeplay.lower.aten.uses import keeps_for_backward
from treeplay.lower.births import ToldArtifact
from treeplay.lower.functional import TensorsForNumbers, make_functional
from treeplay.lower.inductor.layouts import check_layouts, has_convolutions_both_ways, lay_out_results
from treeplay.lower.inductor.shared_lists import with_shared_lists_apart
from treeplay.lower.inductor.stored import Stored, find, keep, key_of, load
from treeplay.lower.inductor.written_out import WRITTEN_OUT
from treeplay.lower.lowered import Lowered, with_vector
from treeplay.lower.numbers import Numbers, Vector, split_numbers
from treeplay.lower.numbers_together import numbers_together
from treeplay.torch_seam.traced_apart import traced_in_this_thread
from treeplay.values.boxed import Boxed
from treeplay.values.spec import TensorSpec


def lower_inductor(graph: torch.fx.Graph, *, device: torch.device, eager_random: bool, is_small: bool) -> Lowered:
    """Compile `graph` for `device`, on the CPU for one thread if it `is_small`.

    Raises `LoweringError` if torch's functionalization or Inductor cannot take it."""
    _check_keeping(graph)
    check_layouts(graph)
    graph = with_shared_lists_apart(graph)
    numbers = split_numbers(graph)
    key = key_of(graph, device, eager_random=eager_random, is_small=is_small)
    artifact, operators = _loaded(key) or _compiled(
        graph, numbers, key, device=device, eager_random=eager_random, is_small=is_small
    )
    vector = Vector(numbers, device) if numbers.size else None
    body = ToldArtifact(artifact) if device.type == "cuda" else artifact
    return Lowered(
        "inductor",
        with_vector(body, vector),
        body=body,
        vector=vector,
        tells=body.telling if isinstance(body, ToldArtifact) else None,
        operators=operators,
    )


def _loaded(key: str | None) -> tuple[Boxed, int] | None:
    """What an earlier process has compiled for this key, and the nodes of its graph."""
    stored = find(key) if key is not None else None
    if stored is None:
        return None
    from treeplay.torch_seam.inductor_store import compile_lock

    with compile_lock, traced_in_this_thread():
        artifact = load(stored)
    return (artifact, stored.operators) if artifact is not None else None


def _compiled(
    graph: torch.fx.Graph,
    numbers: Numbers,
    key: str | None,
    *,
    device: torch.device,
    eager_random: bool,
    is_small: bool,
) -> tuple[Boxed, int]:
    """The artifact of a graph, which later processes find by `key`, and the nodes of its functional graph."""
    # Here and not above: this imports Inductor, which whoever finds a stored artifact does without.
    from treeplay.lower.inductor import artifact as torch_artifact
    from treeplay.lower.inductor.own_lowerings import inductor_decompositions

    results = [node.meta["spec"] for node in graph.output_node().args[0]]  # type: ignore[union-attr]
    specs = _specs(graph, numbers, device)
    interpreter = TensorsForNumbers(
        graph,
        numbers,
        formulas=WRITTEN_OUT,
        # In few kernels, where each is run by one thread; on a CPU all are lines of one loop.
        together=numbers_together(graph, numbers, is_compiled=True) if device.type == "cuda" else None,
    )
    stored: list[tuple[str, dict[str, Any]]] = []
    # One compilation at a time in the process, torch's own included.
    with torch_artifact.compile_lock, traced_in_this_thread():
        module, fakes = make_functional(
            interpreter.with_vector, specs, inductor_decompositions(eager_random=eager_random)
        )
        check_module(module, "it was made functional")
        lay_out_results(module, [spec.stride for spec in results], torch_artifact.force_stride_order)
        check_module(module, "results were laid out")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                artifact = torch_artifact.compile_artifact(
                    module,
                    fakes,
                    device=device,
                    eager_random=eager_random,
                    is_small=is_small,
                    is_inference=not has_convolutions_both_ways(module),
                    # Each output of a trace is a storage of its own.
                    groups=tuple(range(len(results))),
                    stored=stored,
                )
        except Exception as error:
            raise LoweringError(f"Inductor could not compile the graph: {error}") from error
    operators = len(module.graph.nodes)
    if key is not None and stored:
        keep(key, Stored(*stored[0], operators))
    return artifact, operators


def keeps_draws_in_order() -> bool:
    """Whether compiled code draws random numbers in the order of a graph's operators."""
    from treeplay.lower.inductor import artifact as torch_artifact

    return torch_artifact.KEEPS_DRAWS_IN_ORDER


def _check_keeping(graph: torch.fx.Graph) -> None:
    """Raise for a recurrent layer that is trained on the CPU: compiled code calls it with gradients off, and then its
    operator does not keep what its backward needs."""
    for node in graph.nodes:
        if keeps_for_backward(node):
            raise LoweringError(f"{node.target} keeps what its backward needs only while gradients are on")


def _specs(graph: torch.fx.Graph, numbers: Numbers, device: torch.device) -> list[TensorSpec]:
    tensors = [node.meta["spec"] for node in graph.nodes if node.op == "placeholder" and "spec" in node.meta]
    vector = TensorSpec((numbers.size,), (1,), torch.float64, device)
    return [*tensors, vector] if numbers.size else tensors
