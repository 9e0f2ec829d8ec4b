"""A torch that lacks something is named, with what it lacks and which releases work."""

from __future__ import annotations

import sys

import pytest

from support.interpreters import FreshPython
from treeplay import torch_seam


def test_this_torch_has_all() -> None:
    assert torch_seam.probe() == dict.fromkeys((*torch_seam.AT_ONCE, *torch_seam.LATER))


def test_every_area_is_probed() -> None:
    from pathlib import Path

    files = {path.stem for path in Path(torch_seam.__file__).parent.glob("*.py")}
    assert files - {"__init__", "patched"} == {*torch_seam.AT_ONCE, *torch_seam.LATER}


def test_what_an_area_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "treeplay.torch_seam.trees")
    monkeypatch.delattr("torch.utils._pytree.tree_map_only")
    assert "tree_map_only" in (torch_seam.lacking("trees") or "")
    with pytest.raises(
        ImportError, match=r"works with torch 2.11 to .*treeplay.torch_seam.trees needs .*tree_map_only"
    ):
        torch_seam.require()


def test_using_treeplay_with_another_torch_says_so(fresh_python: FreshPython) -> None:
    script = "import torch; del torch._C._len_torch_dispatch_stack, torch._foreach_zero_; import treeplay; treeplay.jit(print)"
    last = fresh_python(script, fails=True)[1].splitlines()[-1]
    assert last.startswith("ImportError: treeplay works with torch") and "_len_torch_dispatch_stack" in last


def test_a_python_that_guards_could_not_rely_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeplay.torch_seam.dynamo.version_of_table", len)
    with pytest.raises(ImportError, match=r"works with Python 3.11 and 3.12, .* attributes"):
        torch_seam.require()
