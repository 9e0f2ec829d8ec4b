"""Who may import whom, and that nothing imports itself by a detour. Needs neither torch nor a GPU.

Function-level imports and imports for types count like any other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "treeplay"

TABLE = """
values         -
errors         values
settings       errors
locks          -
torch_seam     values errors locks
codegen        values errors torch_seam
graph_check    errors
observe        values errors locks torch_seam
sandbox        errors locks torch_seam observe
relocate       values errors
device         values errors settings locks torch_seam codegen observe sandbox relocate
graphs         values errors settings locks torch_seam codegen observe sandbox device
guards         values locks torch_seam codegen observe sandbox
trace          values errors locks torch_seam observe sandbox guards
wrap           values errors locks torch_seam codegen graph_check observe sandbox guards trace
lower          values errors torch_seam codegen graph_check observe sandbox device trace
plan           values errors torch_seam trace lower
tree           values errors settings locks torch_seam codegen observe sandbox device trace wrap lower
backend        values errors settings locks torch_seam codegen graph_check observe sandbox device trace wrap lower
               plan
record         values errors settings codegen graph_check observe device trace wrap lower plan tree backend
driver         values errors settings torch_seam observe sandbox device trace wrap lower plan tree backend record
torch_compile  settings backend driver
report         values errors settings torch_seam trace tree backend record torch_compile
program        values errors settings locks device trace tree driver report
module         errors settings program
api            errors device plan program module
treeplay       errors settings graphs observe backend report program api
cli            values errors settings torch_seam codegen observe device trace plan tree report program module treeplay
"""
"""Each stage (a folder, or a file beside them) and those it imports: they stand above it, and it needs each of them. `treeplay`
is the package's face."""


def may_import() -> dict[str, set[str]]:
    """The table as sets; a line that begins with blanks goes on with the row before it."""
    rows: dict[str, set[str]] = {}
    for line in TABLE.strip().splitlines():
        words = line.split()
        if not line.startswith(" "):
            rows[stage := words.pop(0)] = set()
        rows[stage].update(word for word in words if word != "-")
    return rows


def modules() -> dict[str, Path]:
    """The files of the package by their names."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Anywhere in a file."""
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, (ast.Import, ast.ImportFrom))]


def imports(path: Path, known: Mapping[str, Path]) -> Iterator[tuple[int, str]]:
    """Line and name of each module of ours that a file imports, or imports something of."""
    for node in import_statements(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else str(node.module) for name in whole]
        yield from ((node.lineno, name) for name in names if name in known)


def stage_of(module: str) -> str:
    """The stage of a module: `treeplay.trace.jit` is in trace."""
    return module.split(".")[1] if "." in module else module


def graph() -> dict[str, set[str]]:
    """Each module and those that it imports."""
    known = modules()
    return {name: {other for _, other in imports(path, known)} - {name} for name, path in known.items()}


def circle(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """Names that lead back to the first of them; empty if there is no such way."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])[::-1]
    return []


def test_each_stage_imports_what_its_row_says() -> None:
    used: dict[str, set[str]] = {}
    for module, others in graph().items():
        used.setdefault(stage_of(module), set()).update(stage_of(other) for other in others)
    wrong = []
    table = may_import()
    for stage in sorted({*used, *table} - {"__main__"}):
        may, does = table.get(stage, set()), used.get(stage, set()) - {stage}
        wrong += [f"{stage} imports {other}" for other in sorted(does - may)]
        wrong += [f"{stage} may import {other} and does not" for other in sorted(may - does)]
    assert not wrong, "\n".join(wrong)


def test_stages_import_what_stands_above_them() -> None:
    table = may_import()
    order = list(table)
    wrong = [
        f"{stage} imports {other}"
        for at, stage in enumerate(order)
        for other in sorted(table[stage])
        if other not in order[:at]
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_by_a_detour() -> None:
    assert not circle(graph())


def test_a_circle_is_found() -> None:
    assert circle({"a": ["b"], "b": ["c"], "c": []}) == []
    assert set(circle({"a": ["b"], "b": ["c"], "c": ["b"]})) == {"b", "c"}


def test_only_the_lowerings_import_inductor() -> None:
    known = modules()
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] != "lower":
            assert "treeplay.torch_seam.inductor" not in [name for _, name in imports(path, known)], path


def test_no_class_name_has_two_meanings() -> None:
    """Nor the name of a type: it may be spelled out in two files, alike."""
    found: dict[str, dict[str, str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            place = f"{path.relative_to(SOURCE)}:{node.lineno}"
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.lstrip("_"), {})[place] = place
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id.lstrip("_")
                if name[:1].isupper() and not name.isupper():
                    found.setdefault(name, {})[place] = ast.unparse(node.value)
    assert not {name: places for name, places in found.items() if len({*places.values()}) > 1}


def test_no_public_function_has_two_meanings() -> None:
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                found.setdefault(node.name, set()).add(str(path.relative_to(SOURCE)))
    # A command has the name of the function that it calls, and `treeplay.observe` forgets what the package forgets.
    same = {"check": {"cli/check.py", "report/check.py"}, "reset": {"api.py", "observe/__init__.py"}}
    assert {name: files for name, files in found.items() if len(files) > 1} == same
