"""Relocation by family of operations: is every tensor movable, is that true, and what does a move cost?

python -m benchmarks.families                    measure all on this GPU, write benchmarks/results/families/*.json
python -m benchmarks.families --table            put the newest result into docs/relocation_families.md (needs no GPU)

Each program is captured three times and its table proven from that. Then the proof is put to the test: inputs are moved to new
places, the old places are filled with NaN, the graph is replayed, and results and written inputs are compared with eager.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.layout import uncommitted
from benchmarks.machine import ROOT, facts

RESULTS = ROOT / "benchmarks" / "results" / "families"
PAGE = ROOT / "docs" / "relocation_families.md"
START, END = "<!-- families -->", "<!-- /families -->"

_ROUNDS = 3  # each with new places
_TIMED_MOVES = 400
_TOLERANCE = 2e-2  # of the largest value; sums by atomics have no fixed order

Result = dict[str, Any]
Tensors = list[torch.Tensor]


def measure(name: str) -> Result:
    """Everything about one program."""
    from benchmarks.family_programs import programs
    from benchmarks.relocating import capture

    result: Result = {"name": name, "status": "error"}
    torch.manual_seed(0)
    try:
        function, inputs = programs()[name]()
        relocatable = capture(function, inputs)
        result |= _described(relocatable)
        result["error"] = _worst_error(function, inputs, relocatable)
        result |= _timed(inputs, relocatable)
        wrong = not result["error"] <= _TOLERANCE
        result["status"] = "wrong" if wrong else "proven" if not result["demoted"] else "demoted"
    except Exception as error:
        result["why"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        result["trace"] = traceback.format_exc()[-1500:]
    return result


def _described(relocatable: Any) -> Result:
    table = relocatable.table
    kinds = Counter(node.frame[0] for node in relocatable.captures[0].nodes)
    return {
        "tensors": len(table.tensors),
        "movable_tensors": sum(row.is_patchable for row in table.tensors),
        "outputs": len(table.outputs),
        "movable_outputs": sum(row.is_patchable for row in table.outputs),
        "demoted": [str(row) for row in table.demoted()],
        "nodes": dict(kinds),
        "packed": sum(getattr(node, "is_packed", False) for node in relocatable.captures[0].nodes),
        "sites": sum(len(row.sites) for row in table.rows),
        "padding_words": table.padding_words,
        "unfaithful": relocatable.unfaithful,
        "seconds": relocatable.seconds,
    }


def _worst_error(function: Callable[..., Any], inputs: Tensors, relocatable: Any) -> float:
    """The largest relative error over some rounds of moving, poisoning and replaying."""
    from benchmarks.relocating import copies, like, owned

    pristine, worst = copies(inputs), 0.0
    places = inputs
    for number in range(_ROUNDS):
        reference = copies(pristine)
        torch.manual_seed(number)
        expected = owned(function(*reference), reference)
        moved, outputs = copies(pristine), like(relocatable.outputs)
        reads = _seen_inputs(inputs, moved, relocatable)
        for at, (read, value) in enumerate(zip(reads, pristine, strict=True)):
            if read is not moved[at]:
                read.copy_(value)
        poison(place for place in places if all(place is not read for read in reads))
        poison([*outputs, *relocatable.outputs])
        torch.manual_seed(number)
        relocatable.move(moved, outputs)
        relocatable.graph.replay()
        torch.cuda.synchronize()
        found = _seen_outputs(outputs, relocatable)
        worst = max(worst, *map(error_of, [*found, *reads], [*expected, *reference]))
        places = moved
    return worst


def _seen_inputs(inputs: Tensors, moved: Tensors, relocatable: Any) -> Tensors:
    """The tensors that the graph reads after a move: those that could not be moved stay."""
    went = {row.index for row, _ in relocatable.moves(moved, relocatable.outputs) if row.role == "tensor"}
    return [moved[index] if index in went else inputs[index] for index in range(len(inputs))]


def _seen_outputs(outputs: Tensors, relocatable: Any) -> Tensors:
    """The tensors that hold the results after a move. Several results may be views of one storage."""
    seen = list(relocatable.outputs)
    rows = {row.address: row for row in relocatable.table.outputs if row.is_patchable}
    for index, captured in enumerate(relocatable.outputs):
        row = rows.get(captured.untyped_storage().data_ptr())
        if row is not None:
            storage = outputs[row.index].untyped_storage()
            made = torch.empty(0, dtype=captured.dtype, device=captured.device)
            seen[index] = made.set_(storage, captured.storage_offset(), captured.shape, captured.stride())
    return seen


def poison(tensors: Iterable[torch.Tensor]) -> None:
    """Fill memory with NaN, where a type has one, and else with zero (indices stay in range)."""
    for tensor in tensors:
        with torch.no_grad():
            if tensor.dtype.itemsize == 1:
                tensor.view(torch.uint8).fill_(0x7F if tensor.dtype.is_floating_point else 0)
            else:
                tensor.fill_(math.nan if tensor.is_floating_point() or tensor.is_complex() else 0)


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest value; infinite where only one is a number."""
    if expected.numel() == 0:
        return 0.0
    a, b = (value.detach().to(torch.complex128 if value.is_complex() else torch.float64) for value in (found, expected))
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return 0.0
    scale = b[b.isfinite()].abs().max().item() if bool(b.isfinite().any()) else 1.0
    worst = (a - b)[~same].abs().max().item() / max(scale, 1e-30)
    return math.inf if math.isnan(worst) else worst


def _timed(inputs: Tensors, relocatable: Any) -> Result:
    """Microseconds to move everything between two places, and to move the tensor that the fewest nodes hold."""
    from benchmarks.relocating import copies, like

    places = [relocatable.moves(copies(inputs), like(relocatable.outputs)) for _ in range(2)]
    rows = [row for row, _ in places[0]]
    addresses = [[address for _, address in moves] for moves in places]
    result: Result = {"moves": len(rows), "patched_nodes": len({node for row in rows for node in row.nodes})}
    if rows:
        move_all = relocatable.patcher.mover(*rows)
        result["all_us"] = _median_us(lambda at: move_all(*addresses[at]))
    held = [number for number, row in enumerate(rows) if row.sites]
    if held:
        least = min(held, key=lambda number: len(rows[number].nodes))
        move = relocatable.patcher.mover(rows[least])
        result["one_us"] = _median_us(lambda at: move(addresses[at][least]))
        result["one_nodes"] = len(rows[least].nodes)
    return result


def _median_us(move: Callable[[int], None]) -> float:
    times = []
    for number in range(_TIMED_MOVES):
        started = time.perf_counter_ns()
        move(number % 2)
        times.append((time.perf_counter_ns() - started) / 1000)
    return sorted(times)[len(times) // 2]


def work(names: Sequence[str], out: Path) -> None:
    """Measure some programs in this process, a line of JSON each."""
    with out.open("a") as file:
        for name in names:
            print(json.dumps({"name": name, "status": "began"}), file=file, flush=True)
            print(json.dumps(measure(name)), file=file, flush=True)


def run_all(names: Sequence[str], *, workers: int) -> list[Result]:
    """Measure programs in some processes at a time. One that dies costs the program it was at, and is started again."""
    with tempfile.TemporaryDirectory() as folder:
        shares = {Path(folder) / f"{number}.jsonl": list(names[number::workers]) for number in range(workers)}
        while shares:
            running = {path: _start(path, todo) for path, todo in shares.items()}
            for path, process in running.items():
                process.wait()
                done = {result["name"] for result in _read(path)}
                shares[path] = [name for name in shares[path] if name not in done]
            shares = {path: todo for path, todo in shares.items() if todo}
        found = [result for path in Path(folder).glob("*.jsonl") for result in _read(path)]
    latest = {result["name"]: result for result in found}  # a finished line comes after the one that says it began
    return [_ended(latest[name]) for name in names]


def _start(path: Path, names: Sequence[str]) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "benchmarks.families", "--work", str(path), "--names", ";".join(names)]
    return subprocess.Popen(words, cwd=ROOT)


def _read(path: Path) -> list[Result]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _ended(result: Result) -> Result:
    return (
        {"name": result["name"], "status": "crashed", "why": "the process died"}
        if result["status"] == "began"
        else result
    )


def newest() -> Path:
    """The result file that was measured last."""
    return max(RESULTS.glob("families-*.json"), key=lambda path: json.loads(path.read_text())[0]["environment"]["date"])


def as_markdown(results: Sequence[Result], environment: Result) -> str:
    """The table and what its numbers mean."""
    head = ("program", "result", "tensors", "outputs", "nodes", "sites", "error", "all: µs", "one: µs (nodes)")
    lines = [head, ("---", "---", *["---:"] * (len(head) - 2)), *map(_row, results)]
    counts = Counter(result["status"] for result in results)
    summary = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    at_a_time = f"{environment['workers']} programs at a time, so that times are upper bounds"
    version = f"treeplay {environment['treeplay']}{uncommitted(environment['treeplay'])}"
    where = (
        f"{environment['gpu']}, torch {environment['torch']}, {version}, {str(environment['date'])[:10]}, {at_a_time}"
    )
    return f"{len(results)} programs: {summary}. {where}.\n\n{table}"


def _row(result: Result) -> tuple[str, ...]:
    if result["status"] in ("error", "crashed"):
        return (result["name"], f"{result['status']}: {result['why'][:120]}", *["–"] * 7)
    why = "; ".join(result["demoted"])
    return (
        result["name"],
        result["status"] + (f": {why[:160]}" if why else ""),
        f"{result['movable_tensors']} / {result['tensors']}",
        f"{result['movable_outputs']} / {result['outputs']}",
        " + ".join(f"{count} {kind}" for kind, count in result["nodes"].items()),
        str(result["sites"]),
        f"{result['error']:.1g}" if result["error"] else "0",
        f"{result['all_us']:.1f}" if "all_us" in result else "–",
        f"{result['one_us']:.1f} ({result['one_nodes']})" if "one_us" in result else "–",
    )


def put_table() -> None:
    """Put the newest result between the markers of the page."""
    results = json.loads(newest().read_text())
    before, _, rest = PAGE.read_text().partition(START)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{START}\n{as_markdown(results, results[0]['environment'])}\n{END}{after}")


def main() -> int:
    """Measure, or make the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="only put the newest result into the page")
    parser.add_argument("--names", help="programs, with ; between them; all by default")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--out", type=Path, help="where to write the result file")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.table:
        put_table()
        return 0
    from benchmarks.family_programs import programs

    names = words.names.split(";") if words.names else list(programs())
    if words.work:
        work(names, words.work)
        return 0
    environment = facts() | {"device": "cuda", "gpu": torch.cuda.get_device_name(), "workers": words.workers}
    results = run_all(names, workers=words.workers)
    out = words.out or RESULTS / f"families-h200-{str(environment['date'])[:10]}.json"
    results[0]["environment"] = environment
    out.write_text(json.dumps(results, indent=1) + "\n")
    print(as_markdown(results, environment))
    return 0


if __name__ == "__main__":
    sys.exit(main())
