"""Results of a GPU as a table: for a terminal, and for docs/speed.md through `benchmarks.table`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from rich.table import Table

from benchmarks.layout import for_readme, for_terminal, uncommitted

Result = dict[str, Any]

PEERS = ("eager", "compile", "reduce-overhead")
HEAD = (
    "program",
    *PEERS,
    "floor",
    "backend",
    "treeplay",
    "vs best peer",
    "vs floor",
    "host",
    "peak MiB",
    "recording peak MiB",
    "first calls",
    "recording ms",
)
_MIB = 2**20
_AIM = 1.03  # × floor


def row(result: Result) -> tuple[str, ...]:
    """One program's cells."""
    wall = {name: _time(spread) for name, spread in result.get("wall_us", {}).items()}
    return (
        result.get("title", result["program"]),
        *(wall.get(name, "–") for name in (*PEERS, "floor", "backend", "treeplay")),
        _ratio(result, "speedup"),
        _ratio(result, "over_floor"),
        _pair(result.get("host_us", {}), _time),
        _pair(result.get("variants", {}), lambda facts: _peak(facts, "running")),
        _pair(result.get("variants", {}), lambda facts: _peak(facts, "making")),
        _pair(result.get("variants", {}), lambda facts: f"{facts['first_calls_seconds']:.0f} s", peer="compile"),
        _recording(result),
    )


def _time(spread: dict[str, float]) -> str:
    value = spread["median"]
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ratio(result: Result, name: str) -> str:
    return f"{result[name]['median']:.2f} ×" if name in result else "–"


def _peak(facts: dict[str, Any], phase: str) -> str:
    found = facts["memory"].get(f"{phase}_reserved")
    return f"{found / _MIB:,.0f}" if found is not None else "–"


def _pair(by_variant: dict[str, Any], text: Callable[[Any], str], *, peer: str = "reduce-overhead") -> str:
    """treeplay's value and a peer's."""
    values = [text(by_variant[name]) if name in by_variant else "–" for name in ("treeplay", peer)]
    return " / ".join(values)


def _launches(result: Result) -> list[dict[str, Any]]:
    """How each recording of a program is launched, newest last."""
    keys = result.get("statistics", {}).get("keys", ())
    return [recording["launch"] for key in keys for recording in key["recordings"]]


def _recording(result: Result) -> str:
    """Milliseconds of treeplay's captures with their proof and of instantiating, and of the floor's one capture."""
    launches, floor = _launches(result), result.get("variants", {}).get("floor", {})
    if not launches or "capture" not in launches[-1]["seconds"] or "capture_seconds" not in floor:
        return "–"
    seconds = launches[-1]["seconds"]
    ours = sum(seconds.get(stage, 0.0) for stage in ("capture", "proof", "instantiate"))
    return f"{ours * 1e3:,.0f} / {floor['capture_seconds'] * 1e3:,.0f}"


def as_rich(results: list[Result]) -> Table:
    """The table for a terminal, with programs by their short names."""
    return for_terminal(*filled(HEAD, [(result["program"], *row(result)[1:]) for result in results]))


def as_markdown(results: list[Result]) -> str:
    """The table and its notes for a page."""
    return for_readme(*filled(HEAD, list(map(row, results))), notes(results))


def filled(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The columns that were measured for at least one program."""
    kept = [at for at in range(len(head)) if any(not set(row[at]) <= set("–/ ") for row in rows)]
    return tuple(head[at] for at in kept), [tuple(row[at] for at in kept) for row in rows]


def notes(results: list[Result]) -> list[str]:
    """What the numbers mean and where they were measured."""
    return [
        "Medians in µs per call, all variants interleaved in one process: the time of many calls in a row.",
        "Inputs move and the last two results stay alive, unless said otherwise.",
        '"reduce-overhead" is used as its documentation asks: steps marked, kept results cloned.',
        '"floor": the compiled kernels in one CUDA graph captured by hand, without checks, copies or results to keep;',
        '"vs floor": treeplay\'s time divided by it; less than 1 where it compiles what the floor does not, as the optimizer.',
        *(
            ['"backend": `torch.compile(model, backend="treeplay")` with the optimizer of the peers.']
            if any("backend" in result.get("wall_us", {}) for result in results)
            else []
        ),
        '"host": until a call returns, treeplay / reduce-overhead.',
        '"peak": reserved while warm calls run; "recording peak": while the first three calls compile and record;',
        "both treeplay / reduce-overhead.",
        '"first calls": three, compiled with empty caches, treeplay / compile.',
        "Peers train with fused or foreach optimizers, treeplay with the optimizer as it comes.",
        '"recording": captures, proof and instantiation / one capture by hand.',
        *_behind(results),
        *_copies(results),
        *_growth(results),
        *_where(results),
    ]


def slower(results: list[Result]) -> list[str]:
    """Where a peer is faster, in a sentence if that is so anywhere."""
    titles = [result["title"] for result in results if result.get("speedup", {}).get("median", 1) < 1]
    return [f"Slower than the fastest peer: {'; '.join(titles)}."] if titles else []


def _behind(results: list[Result]) -> list[str]:
    """In what treeplay is behind: told in words, since a table hides it."""
    missed = [result["title"] for result in results if result.get("over_floor", {}).get("median", 1) > _AIM]
    larger = {phase: sum(_is_larger(result, phase) for result in results) for phase in ("running", "making")}
    return [
        *slower(results),
        *([f"Above {_AIM} × the floor, which is the aim: {'; '.join(missed)}."] if missed else []),
        f"More memory than reduce-overhead: {larger['running']} of {len(results)} programs while they run, "
        f"{larger['making']} while they are recorded.",
    ]


def _is_larger(result: Result, phase: str) -> bool:
    both = [result.get("variants", {}).get(name, {}).get("memory", {}) for name in ("treeplay", "reduce-overhead")]
    ours, theirs = (memory.get(f"{phase}_reserved") for memory in both)
    return ours is not None and theirs is not None and ours > theirs


def _copies(results: list[Result]) -> list[str]:
    """What replays copy, from the programs that say so."""
    launches = [launch for result in results for launch in _launches(result) if launch["stage"] == "recorded"]
    if not launches:
        return []
    most = max(launch["copied_bytes_per_call"] for launch in launches)
    return [f"treeplay's replays copy {f'at most {most:,}' if most else 'no'} bytes."]


def _growth(results: list[Result]) -> list[str]:
    """How flat memory stays, from the programs where it was measured."""
    grown = [result["growth"] for result in results if "grown_reserved" in result.get("growth", {})]
    if not grown:
        return []
    most = max(max(one["grown_allocated"], one["grown_reserved"]) for one in grown)
    calls = max(one["calls"] for one in grown)
    return [f"The GPU's memory grows by at most {max(most, 0) // 1024:,} KiB over up to {calls:,} warm calls."]


def _where(results: list[Result]) -> list[str]:
    places = [result["environment"] for result in results if "environment" in result]
    if not places:
        return []
    where = max(places, key=lambda place: str(place["date"]))
    device = f"{where['gpu']}, driver {where['driver']}" if "gpu" in where else where["processor"]
    return [
        f"{device}; torch {where['torch']}, Python {where['python']}, treeplay {_commits(places)}, "
        f"{str(where['date'])[:10]}."
    ]


def _commits(places: list[dict[str, Any]]) -> str:
    """Which commits were measured, the last one first; in how many programs each, if there are several."""
    ordered = sorted(places, key=lambda place: str(place["date"]), reverse=True)
    counts = Counter(f"{place['treeplay']}{uncommitted(place['treeplay'])}" for place in ordered)
    if len(counts) == 1:
        return next(iter(counts))
    return " and ".join(f"{commit} ({count} programs)" for commit, count in counts.items())
