"""The Python in the README and the docs runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks import table

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
WHOLE = [
    (page, number, text)
    for page in PAGES
    for number, text in enumerate(BLOCK.findall(page.read_text()))
    if "import torch" in text
]
COMPILED = pytest.mark.compile  # it is called often enough to be compiled


@pytest.mark.parametrize(
    ("page", "number", "text"),
    [
        pytest.param(page, number, text, id=f"{page.stem}-{number}", marks=COMPILED if page.stem == "README" else ())
        for page, number, text in WHOLE
    ],
)
def test_an_example_runs(page: Path, number: int, text: str, tmp_path: Path) -> None:
    file = tmp_path / f"{page.stem}_{number}.py"
    file.write_text(text)  # a file of its own, so that refusals can show the line
    exec(compile(text, str(file), "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_a_page_names_are_where_it_says(page: Path) -> None:
    named = re.findall(r"\[`(test_\w+)`\]\(([^)]+\.py)\)", page.read_text())
    assert [name for name, file in named if f"def {name}(" not in (page.parent / file).read_text()] == []


@pytest.mark.parametrize("page", table.PAGES, ids=lambda page: page.name)
def test_tables_show_the_newest_results(page: Path) -> None:
    assert table.update(page, table.PAGES[page](), only_check=True), "run: make table"


def test_each_letter_in_the_name_of_a_test_is_explained_with_its_folder() -> None:
    page = (ROOT / "docs" / "tests.md").read_text()
    rows = dict(re.findall(r"^\| `([A-Z])` \|.*\|(.*)\|$", page, re.MULTILINE))
    for file in (ROOT / "tests").rglob("test_*.py"):
        folder = file.parent.relative_to(ROOT)
        for letter in re.findall(r"def test_([A-Z])(?:plus)?\d+_", file.read_text()):
            assert f"`{folder}`" in rows[letter] or str(folder) in ("tests", "tests/gpu"), f"{letter} in {folder}"
