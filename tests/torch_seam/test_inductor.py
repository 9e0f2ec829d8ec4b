"""What of Inductor is changed while a graph of ours is compiled."""

from __future__ import annotations

from typing import Any

import pytest


class Kernel:
    """As much of a kernel of Inductor's scheduler as is told its dependencies."""

    mutation_renames = {"given": "written"}

    def __init__(self, *reads: Any) -> None:
        self.set_read_writes(_of(*reads))

    def set_read_writes(self, found: Any) -> None:
        self.read_writes = found


def _of(*reads: Any) -> Any:
    from torch._inductor.dependencies import ReadWrites
    from torch.utils._ordered_set import OrderedSet

    return ReadWrites(OrderedSet(reads), OrderedSet(), OrderedSet())


def test_what_inductor_interprets_by_needs_no_trace_that_other_threads_would_be_part_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch
    from torch._inductor.loop_body import InterpreterShim

    import treeplay.torch_seam.inductor  # noqa: F401

    def traced(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the modules of all threads are patched now")

    monkeypatch.setattr(torch.fx.Tracer, "trace", traced)
    made = InterpreterShim._dummy_gm()
    assert made is InterpreterShim._dummy_gm() and made(3) == 3


def test_a_kernel_that_gets_other_loops_stays_behind_those_that_read_what_it_overwrites(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in torch 2.11, in which the dependencies are read off the new loops alone."""
    from torch._inductor.dependencies import StarDep, WeakDep
    from torch._inductor.scheduler import SchedulerNode

    from treeplay.torch_seam.inductor import keeping_order

    monkeypatch.setattr(
        SchedulerNode, "recompute_size_and_body", lambda node: node.set_read_writes(_of(StarDep("given")))
    )
    behind = WeakDep("reads_it", mutating_buf="writes_it")
    kernel: Any = Kernel(behind)
    with keeping_order():
        SchedulerNode.recompute_size_and_body(kernel)
    assert set(kernel.read_writes.reads) == {behind, StarDep("written")}


def test_compiled_code_reads_the_sizes_that_it_names_also_where_it_compares_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    from treeplay.torch_seam.inductor import binding_sizes, inductor_config

    seen: list[bool] = []
    monkeypatch.setattr(
        PythonWrapperCodegen, "codegen_inputs", lambda wrapper: seen.append(inductor_config.size_asserts)
    )
    wrapper: Any = None
    with inductor_config.patch(size_asserts=False):
        with binding_sizes():
            PythonWrapperCodegen.codegen_inputs(wrapper)
            assert not inductor_config.size_asserts
        PythonWrapperCodegen.codegen_inputs(wrapper)
    assert seen == [True, False]
