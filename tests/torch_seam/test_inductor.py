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


class Instructions:
    """A set of vector instructions that notes that it is tried."""

    def __init__(self, name: str, is_valid: bool, tried: list[str]) -> None:
        self.name, self.is_valid, self.tried = name, is_valid, tried

    def __str__(self) -> str:
        return self.name

    def __bool__(self) -> bool:
        self.tried.append(self.name)
        return self.is_valid

    def bit_width(self) -> int:
        return 256 if self.name == "avx2" else 512


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of those that are tried, of which the first does not work."""
    from torch._inductor import cpu_vec_isa

    found: list[str] = []
    known = [Instructions(name, name != "avx512_vnni", found) for name in ("avx512_vnni", "avx512", "avx2", "none")]
    monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", known)
    monkeypatch.setattr(cpu_vec_isa, "x86_isa_checker", lambda: ["avx2", "avx512", "avx512_vnni"])
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", cpu_vec_isa.valid_vec_isa_list.__wrapped__)
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return found


def test_vector_instructions_are_tried_until_one_set_works(tried: list[str]) -> None:
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    from treeplay.torch_seam.inductor import first_vector_instructions

    picked = pick_vec_isa()
    assert tried == ["avx512_vnni", "avx512", "avx2"]
    tried.clear()
    with first_vector_instructions():
        assert pick_vec_isa() is picked and str(picked) == "avx512"
    assert tried == ["avx512_vnni", "avx512"]


def test_vector_instructions_that_are_asked_for_are_looked_for_among_all(
    tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    from treeplay.torch_seam.inductor import first_vector_instructions

    with first_vector_instructions():
        with config.patch({"cpp.simdlen": 256}):
            assert str(pick_vec_isa()) == "avx2"
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
        assert str(pick_vec_isa()) == "avx2"
