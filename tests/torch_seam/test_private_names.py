"""Private parts of torch are used in `torch_seam` alone, so that a new release of torch breaks one folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "treeplay"
SEAM = SOURCE / "torch_seam"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each import of a private part of torch, and of each private attribute that is asked of `torch`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if any(map(is_private, name.split("."))):
                    yield node.lineno, name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch" and any(map(is_private, alias.name.split("."))):
                    yield node.lineno, alias.name
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = ast.unparse(node.value)
            if owner.split(".")[0] == "torch" and not owner.startswith("torch.ops"):
                yield node.lineno, f"{owner}.{node.attr}"


@pytest.mark.parametrize(
    "text, found",
    [
        ("import torch._dynamo", ["torch._dynamo"]),
        ("from torch._ops import OpOverload", ["torch._ops.OpOverload"]),
        ("from torch.overrides import _pop_mode", ["torch.overrides._pop_mode"]),
        ("torch._C._len_torch_dispatch_stack()", ["torch._C._len_torch_dispatch_stack", "torch._C"]),
        ("torch.Tensor._make_subclass(a)", ["torch.Tensor._make_subclass"]),
        ("torch.ops.aten._unsafe_view.default(x)\nfrom torch import nn\ntorch.Tensor.__len__", []),
    ],
)
def test_private_names_are_found(text: str, found: list[str]) -> None:
    assert [name for _, name in private_names(ast.parse(text))] == found


def test_private_names_stay_in_the_seam() -> None:
    outside = [
        f"{path.relative_to(SOURCE)}:{line}: {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        if SEAM not in path.parents
        for line, name in private_names(ast.parse(path.read_text()))
    ]
    assert not outside, "\n".join(outside)
