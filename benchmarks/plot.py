"""The newest GPU results as a figure for README.md: `python -m benchmarks.plot`, or `--check` it.

One row per program, one mark per way to run it, at how many times eager's speed. The text of the SVG is written here, so
nothing has to be installed for it. It brings its own background, and follows the reader's light or dark scheme.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from html import escape

from benchmarks.machine import ROOT
from benchmarks.table import RESULTS, Result, TableError, newest_gpu_results

FIGURE = ROOT / "docs" / "images" / "speed.svg"

_WIDTH, _LEFT, _RIGHT = 840, 340, 712  # of the whole; of the axis
_ROW, _TOP, _TITLE = 21, 78, 30
_KINDS = {"inference": "Inference", "training step": "Whole training steps"}

STYLE = """
  text { font: 11.5px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 }
  .kind { font-weight: 600 }
  .faint { fill: #59636e }
  .page { fill: #ffffff; stroke: #d1d9e0 }
  .grid { stroke: #d1d9e0 }
  .eager { stroke: #59636e; stroke-width: 1.5 }
  .compile { fill: none; stroke: #59636e; stroke-width: 1.6 }
  .reduce-overhead { fill: none; stroke: #bc4c00; stroke-width: 2 }
  .treeplay { fill: #0969da }
  .reach { stroke: #0969da; stroke-width: 2; opacity: .35 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .faint { fill: #9198a1 }
    .page { fill: #0d1117; stroke: #3d444d }
    .grid { stroke: #2a313c }
    .eager, .compile { stroke: #9198a1 }
    .reduce-overhead { stroke: #f0883e }
    .treeplay { fill: #58a6ff }
    .reach { stroke: #58a6ff }
  }
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One program: the speed of each way to run it as a multiple of eager's, and two times in µs."""

    kind: str
    name: str
    speeds: dict[str, float]
    eager_us: float
    treeplay_us: float


def rows(results: list[Result]) -> list[Row]:
    """What is drawn: programs that were measured eagerly and through treeplay."""
    found = []
    for result in results:
        kind, _, name = result["title"].partition(", ")
        us = {way: spread["median"] for way, spread in result.get("wall_us", {}).items()}
        if "eager" in us and "treeplay" in us:
            speeds = {way: us["eager"] / us[way] for way in ("compile", "reduce-overhead", "treeplay") if way in us}
            found.append(Row(kind, name, speeds, us["eager"], us["treeplay"]))
    return found


def figure(results: list[Result]) -> str:
    """The SVG."""
    drawn = rows(results)
    most = math.ceil(max(speed for row in drawn for speed in row.speeds.values()))
    kinds = list(dict.fromkeys([*_KINDS, *(row.kind for row in drawn)]))
    kinds = [kind for kind in kinds if any(row.kind == kind for row in drawn)]
    bottom = _TOP + _ROW * len(drawn) + _TITLE * len(kinds)
    axis = [line for tick in range(most + 1) for line in _tick(tick, most, bottom)]
    body, y = [], _TOP
    for kind in kinds:
        body.append(_text(16, y + 19, _KINDS.get(kind, kind.capitalize()), "kind"))
        y += _TITLE
        for row in (row for row in drawn if row.kind == kind):
            body += _row(row, y + _ROW / 2, most)
            y += _ROW
    title = "Times as fast as eager PyTorch"
    about = f"{title}: torch.compile, reduce-overhead and treeplay, for {len(drawn)} programs"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 52}" role="img">',
        f"<title>{escape(about)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" x=".5" y=".5" width="{_WIDTH - 1}" height="{bottom + 51}" rx="6"/>',
        _text(16, 26, title, "title"),
        *_legend(),
        _text(_WIDTH - 16, _TOP + 2, "eager → treeplay, µs", "faint", "end"),
        *axis,
        *body,
        _text(16, bottom + 38, _measured(results), "faint"),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _measured(results: list[Result]) -> str:
    """Where and when, and what was measured."""
    places = sorted((result["environment"] for result in results), key=lambda place: str(place["date"]))
    each = [dict.fromkeys(str(place[name]) for place in places) for name in ("gpu", "torch", "treeplay")]
    gpus, torches, commits = (" and ".join(values) for values in each)
    days = " to ".join(dict.fromkeys(str(place["date"])[:10] for place in (places[0], places[-1])))
    return f"{gpus}, torch {torches}, treeplay {commits}, {days}"


def _row(row: Row, y: float, most: int) -> list[str]:
    at = {way: _x(speed, most) for way, speed in row.speeds.items()}
    told = f"{row.eager_us:,.0f} → {row.treeplay_us:,.0f}" if row.treeplay_us >= 100 else _small(row)
    return [
        _text(28, y + 4, row.name),
        f'<line class="reach" x1="{_x(1, most):.1f}" x2="{at["treeplay"]:.1f}" y1="{y}" y2="{y}"/>',
        *(_mark(way, x, y) for way, x in reversed(at.items())),  # hollow marks above the filled one
        _text(_WIDTH - 16, y + 4, told, "", "end"),
    ]


def _small(row: Row) -> str:
    eager = f"{row.eager_us:,.0f}" if row.eager_us >= 100 else f"{row.eager_us:.1f}"
    return f"{eager} → {row.treeplay_us:.1f}"


def _mark(way: str, x: float, y: float) -> str:
    """Each way has a shape besides its colour."""
    match way:
        case "compile":
            return f'<circle class="compile" cx="{x:.1f}" cy="{y}" r="4"/>'
        case "reduce-overhead":
            return f'<rect class="reduce-overhead" x="{x - 4.5:.1f}" y="{y - 4.5}" width="9" height="9"/>'
        case _:
            return f'<circle class="treeplay" cx="{x:.1f}" cy="{y}" r="5"/>'


def _tick(tick: int, most: int, bottom: float) -> list[str]:
    x = _x(tick, most)
    kind = "eager" if tick == 1 else "grid"
    return [
        f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP + 8}" y2="{bottom + 4}"/>',
        _text(x, bottom + 19, f"{tick} ×", "faint", "middle"),
    ]


def _legend() -> list[str]:
    lines = ['<line class="eager" x1="22" x2="22" y1="44" y2="58"/>', _text(32, 55, "eager")]
    for way, name, x in (
        ("compile", "torch.compile", 92),
        ("reduce-overhead", "torch.compile, reduce-overhead", 208),
        ("treeplay", "treeplay.jit", 424),
    ):
        lines += [_mark(way, x, 51), _text(x + 11, 55, name)]
    return lines


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    names = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{names}>{escape(text)}</text>'


def _x(speed: float, most: int) -> float:
    return _LEFT + (_RIGHT - _LEFT) * speed / most


def main() -> int:
    """Write the figure, or check it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description="The figure of README.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the figure is not current")
    words = parser.parse_args()
    shown, name = RESULTS.relative_to(ROOT), FIGURE.relative_to(ROOT)
    results = newest_gpu_results()
    if not results:
        raise TableError(f"there is no GPU result file in {shown}")
    new = figure(results)
    if words.check:
        is_current = FIGURE.is_file() and FIGURE.read_text(encoding="utf-8") == new
        print(f"{name} shows {shown}" if is_current else f"error: {name} does not show {shown}; run: make table")
        return 0 if is_current else 1
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    FIGURE.write_text(new, encoding="utf-8")
    print(f"{name} shows {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
