"""The driver's functions are called with their argument types set."""

from __future__ import annotations

import re
from pathlib import Path

import treeplay.device.cuda
from treeplay.device.cuda.nodes import calls as node_calls

CALL = re.compile(r'\b(?:call|function)\(\s*"(cu\w+)"')


def test_each_function_that_is_called_has_argument_types() -> None:
    folder = Path(treeplay.device.cuda.__file__).parent
    called = {name for file in folder.rglob("*.py") for name in CALL.findall(file.read_text())}
    assert "cuGraphGetNodes" in called
    assert called - node_calls._SIGNATURES.keys() == set()
