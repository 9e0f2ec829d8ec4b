"""The Python in the README and the docs runs as it is printed."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from benchmarks import plot, table

from treeplay import torch_seam

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
CODE = re.compile(r"``.+?``|`[^`]+`")
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
    links = re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text())
    places = [(page.parent / target if target else page, part) for target, part in links]
    assert [place for place, _ in places if not place.exists()] == []
    assert [(place.name, part) for place, part in places if part and part not in headings(place)] == []


def headings(page: Path) -> set[str]:
    """What links to parts of a page call its headings."""
    texts = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in texts}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_a_page_names_are_where_it_says(page: Path) -> None:
    named = re.findall(r"\[`(test_\w+)`\]\(([^)]+\.py)\)", page.read_text())
    assert [name for name, file in named if f"def {name}(" not in (page.parent / file).read_text()] == []


@pytest.mark.parametrize("page", table.PAGES, ids=lambda page: page.name)
def test_tables_show_the_newest_results(page: Path) -> None:
    assert table.update(page, table.PAGES[page](), only_check=True), "run: make table"


def test_the_figure_shows_the_newest_results() -> None:
    assert plot.FIGURE.read_text() == plot.figure(table.newest_gpu_results()), "run: make table"


def test_the_figure_draws_each_mark_at_its_speed() -> None:
    drawn = plot.figure(table.newest_gpu_results())
    marks = [float(x) for x in re.findall(r'class="treeplay" cx="([\d.]+)"', drawn)][1:]  # the first is the legend's
    ticks = {int(text): float(x) for x, text in re.findall(r'<text x="([\d.]+)"[^>]*>(\d+) ×<', drawn)}
    told = re.findall(r">([\d,.]+) → ([\d,.]+)<", drawn)
    speeds = [float(eager.replace(",", "")) / float(ours.replace(",", "")) for eager, ours in told]
    assert [(x - ticks[0]) / (ticks[1] - ticks[0]) for x in marks] == pytest.approx(speeds, rel=0.01)


def test_the_first_page_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#]+\.md)", (ROOT / "README.md").read_text()))
    assert linked >= {str(page.relative_to(ROOT)) for page in PAGES[1:]}


def test_messages_of_the_troubleshooting_page_are_those_of_the_code() -> None:
    sources = "".join(file.read_text() for file in sorted((ROOT / "src").rglob("*.py")))
    code = re.sub(r'"\s+f?"', "", sources)  # the parts of a text that stands on several lines
    tables = re.findall(
        r"^\| message \|.*\n((?:\|.*\n)+)", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE
    )
    messages = [text for table in tables for row in table.splitlines() for text in CODE.findall(row.split(" | ")[0])]
    parts = [part.strip() for text in messages for part in text.strip("`").split("…")]
    assert len(messages) > 60 and [part for part in parts if part not in code] == []


def test_the_releases_of_torch_that_are_allowed_are_those_that_were_tried() -> None:
    tried = json.loads((ROOT / "benchmarks/results/compat/releases.json").read_text())["releases"]
    minors = sorted(int(each["release"].split(".")[1]) for each in tried if each["works"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"torch>=2.{minors[0]},<2.{minors[-1] + 1}" in project["dependencies"]
    assert f"2.{minors[0]} to 2.{minors[-1]}" == torch_seam.WORKS_WITH
    assert f"torch {torch_seam.WORKS_WITH}" in (ROOT / "README.md").read_text()


def test_each_letter_in_the_name_of_a_test_is_explained_with_its_folder() -> None:
    page = (ROOT / "docs" / "tests.md").read_text()
    rows = dict(re.findall(r"^\| `([A-Z])` \|.*\|(.*)\|$", page, re.MULTILINE))
    for file in (ROOT / "tests").rglob("test_*.py"):
        folder = file.parent.relative_to(ROOT)
        for letter in re.findall(r"def test_([A-Z])(?:plus)?\d+_", file.read_text()):
            is_told = any(f"`{above}`" in rows[letter] for above in (folder, *folder.parents))
            assert is_told or str(folder) in ("tests", "tests/gpu"), f"{letter} in {folder}"
