"""The driver's functions are called with their argument types set, and what they answer becomes an exception."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import treeplay.device.cuda
from treeplay.device.cuda.nodes import calls as node_calls
from treeplay.errors import InternalError

CALL = re.compile(r'\b_?(?:call|function|function_address)\(\s*"(cu\w+)"')


def test_each_function_that_is_called_has_argument_types() -> None:
    folder = Path(treeplay.device.cuda.__file__).parent
    called = {name for file in folder.rglob("*.py") for name in CALL.findall(file.read_text())}
    assert called >= {"cuGraphGetNodes", "cuMemMap", "cuMemCreate"}
    assert called - node_calls._SIGNATURES.keys() == set()


@pytest.mark.parametrize(("code", "error"), [(2, torch.OutOfMemoryError), (1, InternalError)])
def test_a_full_gpu_is_told_from_an_error_of_treeplays(
    monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    monkeypatch.setattr(node_calls, "function", lambda name: lambda *args: code)
    with pytest.raises(error, match="cuGraphUpload"):
        node_calls.call("cuGraphUpload", 0, 0)
