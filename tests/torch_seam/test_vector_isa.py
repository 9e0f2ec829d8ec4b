"""The vector instructions that Inductor compiles for: tried until one set works, and known from then on."""

from __future__ import annotations

from pathlib import Path

import pytest

from treeplay.torch_seam import vector_isa
from treeplay.torch_seam.kept_file import write_text


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
def tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The names of those that are tried, of which the first does not work."""
    from torch._inductor import cpu_vec_isa

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
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

    from treeplay.torch_seam.vector_isa import first_vector_instructions

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

    from treeplay.torch_seam.vector_isa import first_vector_instructions

    with first_vector_instructions():
        with config.patch({"cpp.simdlen": 256}):
            assert str(pick_vec_isa()) == "avx2"
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
        assert str(pick_vec_isa()) == "avx2"


def picked_by_a_later_process() -> str:
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    with vector_isa.first_vector_instructions():
        return str(pick_vec_isa())


def test_a_later_process_tries_none(tried: list[str]) -> None:
    assert picked_by_a_later_process() == "avx512"
    tried.clear()
    assert picked_by_a_later_process() == "avx512"
    assert tried == []


def test_with_another_compiler_they_are_tried_again(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    picked_by_a_later_process()
    tried.clear()
    monkeypatch.setattr(vector_isa, "_where", lambda has: ["another compiler"])
    assert picked_by_a_later_process() == "avx512"
    assert tried == ["avx512_vnni", "avx512"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"where": 1, "works": "avx2"}'])
def test_a_file_that_is_damaged_is_not_there(tried: list[str], text: str) -> None:
    write_text("treeplay/vector_instructions.json", text)
    assert picked_by_a_later_process() == "avx512"


def test_without_a_compiler_nothing_is_kept(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def none_found() -> str:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(vector_isa, "get_cpp_compiler", none_found)
    for _ in range(2):
        tried.clear()
        picked_by_a_later_process()
        assert tried == ["avx512_vnni", "avx512"]
