"""Imports point up the list of stages: each may import itself and what stands before it. Needs neither torch nor a GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "treeplay"

ORDER = (
    "values",
    "errors",
    "settings",
    "locks",
    "torch_seam",
    "codegen",
    "graph_check",
    "observe",
    "sandbox",
    "relocate",
    "device",
    "graphs",
    "guards",
    "trace",
    "wrap",
    "lower",
    "plan",
    "tree",
    "backend",
    "driver",
    "torch_compile",
    "report",
    "module",
    "program",
    "cli",
)
TOGETHER = ({"program", "module"},)  # a jitted module is made of a program, and `jit` makes both


def stage_of(parts: tuple[str, ...]) -> str:
    """The stage of a module path below the package: `("trace", "jit")` is in trace; the package itself is its face."""
    return parts[0] if parts else "treeplay"


def imports(path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line and module path below the package of each import of ours in a file; imports for types only count too."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            first, *rest = name.split(".")
            if first == "treeplay":
                yield node.lineno, tuple(rest)


def offenders() -> list[str]:
    """Each import that points down."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        own = stage_of(path.relative_to(SOURCE).with_suffix("").parts)
        if own == "__init__":
            continue
        for line, parts in imports(path):
            other = stage_of(parts)
            if not allowed(own, other):
                found.append(f"{path.relative_to(SOURCE)}:{line}: {own} imports {'.'.join(parts) or 'treeplay'}")
    return found


def allowed(own: str, other: str) -> bool:
    """Whether stage `own` may import stage `other`."""
    if own == other or {own, other} in TOGETHER:
        return True
    if other not in ORDER:  # the package's face (`import treeplay`, `from treeplay import jit`)
        return own == "cli"
    return ORDER.index(other) < ORDER.index(own)


def test_every_stage_has_its_place() -> None:
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there - {"__init__", "__main__"} <= set(ORDER)


def test_imports_point_up() -> None:
    found = offenders()
    assert not found, "imports that point down:\n" + "\n".join(found)


def test_values_import_nothing_of_ours() -> None:
    for path in (SOURCE / "values").glob("*.py"):
        assert all(parts[0] == "values" for _, parts in imports(path)), path


def test_only_the_lowerings_import_inductor() -> None:
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] != "lower":
            assert ("torch_seam", "inductor") not in [parts[:2] for _, parts in imports(path)], path


def test_no_class_name_has_two_meanings() -> None:
    found: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not {name: places for name, places in found.items() if len(places) > 1}
