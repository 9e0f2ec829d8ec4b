"""`treeplay demo`: the same training eagerly and replayed, on real data, side by side; fails if they disagree."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from treeplay.cli.devices import drain_of, find_device, full_float32
from treeplay.cli.digits import Digits, batches, load_digits
from treeplay.cli.doctor import gather
from treeplay.cli.outcome import NO, CommandError
from treeplay.cli.training import (
    TOLERANCE,
    Learner,
    Score,
    TracedLower,
    agreement,
    largest_difference,
    make_eager,
    make_peer,
    make_replayed,
    score,
    train,
)
from treeplay.codegen.compiler import find_compiler, find_gpu_compiler
from treeplay.report.text import explanation
from treeplay.settings import settings
from treeplay.values.statistics import Statistics
from treeplay.values.verdict import Verdict


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """All that a demo found: eager first, treeplay second, then the peers; scores in the same order."""

    learners: list[Learner]
    scores: list[Score]
    losses: Verdict
    statistics: Statistics
    device: torch.device

    @property
    def is_good(self) -> bool:
        """Whether replayed training did what eager training did."""
        return bool(self.losses) and self.scores[0].correct == self.scores[1].correct


def demo(
    steps: Annotated[int, typer.Option(min=5, help="Training steps of 64 digits each.")] = 300,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the first weights and of the batches.")] = 0,
    peers: Annotated[bool, typer.Option("--peers", help="Also train under torch.compile, for its time.")] = False,
    lower: Annotated[TracedLower, typer.Option(help="How to lower the recorded step.")] = "auto",
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda or cuda:0.")] = "cpu",
    json_path: Annotated[Path | None, typer.Option("--json", metavar="PATH", help="Also write a JSON file.")] = None,
) -> None:
    """Train a small network on handwritten digits, eagerly and replayed, and compare.

    Both start from the same weights and see the same batches. The whole training step is one recording.
    Ends with an error if the losses or the accuracy on held-out digits disagree.
    """
    console = Console()
    if json_path is not None and not json_path.absolute().parent.is_dir():
        raise CommandError(f"--json {json_path}: there is no folder {json_path.absolute().parent}")
    where = find_device(device)
    # Also where the environment switches it off; and what is timed is what stays.
    with settings.changed(enabled=True, tiers="exact"):
        outcome = run(load_digits().to(where), steps=steps, seed=seed, peers=peers, lower=lower)
    _print(console, outcome)
    if json_path is not None:
        _write_json(json_path, as_plain(outcome, steps=steps, seed=seed))
        console.print(f"written to {json_path}", markup=False, highlight=False, soft_wrap=True)
    if not outcome.is_good:
        raise typer.Exit(NO)


def run(digits: Digits, *, steps: int, seed: int, peers: bool, lower: TracedLower) -> Outcome:
    """Train and compare, where the digits are. Raises `Refusal` if the step cannot be recorded."""
    device = digits.images.device
    replayed, jitted = make_replayed(seed, lower, device)
    learners = [make_eager(seed, device), replayed]
    if peers:
        _need_compiler(device)
        learners.append(make_peer(seed, device))
    data = list(batches(digits, steps=steps, seed=seed))
    with full_float32():
        for _ in _shown(train(learners, data, jitted, drain_of(device)), steps):
            pass
        scores = [score(learner.network, digits) for learner in learners]
    return Outcome(learners, scores, agreement(*learners[:2]), jitted.statistics(), device)


def _need_compiler(device: torch.device) -> None:
    compiler, name = (find_compiler(), "a C++ compiler") if device.type == "cpu" else (find_gpu_compiler(), "Triton")
    if compiler.path is None:
        raise CommandError(
            f"torch.compile needs {name}, and {compiler.why}\n  fix:    install one, or leave out --peers"
        )


def _shown(numbers: Iterable[int], steps: int) -> Iterable[int]:
    """The step numbers, with a progress bar on stderr."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training (the second step is recorded)", total=steps)
        for number in numbers:
            progress.update(task, completed=number)
            yield number


def _print(console: Console, outcome: Outcome) -> None:
    console.print(_table(outcome))
    console.print()
    console.print(Text(explanation(outcome.statistics)), soft_wrap=True)
    console.print()
    for line, style in _conclusions(outcome):
        console.print(Text(line, style=style), soft_wrap=True)


def _table(outcome: Outcome) -> Table:
    eager, first = outcome.learners[0], outcome.scores[0]
    title = f"{len(eager.losses)} training steps on {_named(outcome.device)}, {first.total} held-out digits"
    table = Table(title=title)
    table.add_column("")
    for name in ("held-out loss", "accuracy", "µs per step", "vs eager"):
        table.add_column(name, justify="right")
    for learner, result in zip(outcome.learners, outcome.scores, strict=True):
        time, speed = _times(learner, eager)
        table.add_row(learner.name, f"{result.loss:.5f}", f"{result.accuracy:.2%}", time, speed)
    return table


def _named(device: torch.device) -> str:
    return "the CPU" if device.type == "cpu" else torch.cuda.get_device_name(device)


def _times(learner: Learner, eager: Learner) -> tuple[str, str]:
    mine, theirs = learner.median_us, eager.median_us
    if mine is None or theirs is None:
        return "too few steps", ""
    return f"{mine:,.0f}", f"{theirs / mine:.2f} ×"


def _conclusions(outcome: Outcome) -> list[tuple[str, str]]:
    eager, replayed = outcome.learners[:2]
    lines = [(f"lowered by {lowering}", "") for lowering in _lowerings(outcome.statistics)]
    lines.append(("times are medians of the steps after the recording was made, each until its loss is there", "dim"))
    largest = f"largest difference {largest_difference(eager, replayed):.1e}"
    if outcome.losses:
        lines.append((f"all {len(eager.losses)} losses agree within {TOLERANCE:g} ({largest})", "green"))
    else:
        lines.append((f"the losses differ by more than {TOLERANCE:g} ({largest}): {outcome.losses}", "red"))
    ours, theirs = outcome.scores[1].correct, outcome.scores[0].correct
    if ours == theirs:
        lines.append((f"both get {ours} of {outcome.scores[0].total} held-out digits right", "green"))
    else:
        lines.append((f"held-out digits right: eager {theirs}, treeplay {ours}", "red"))
    return lines


def _lowerings(statistics: Statistics) -> list[str]:
    """Each way a recording was lowered, and why."""
    found = [f"{recording.lowering} ({recording.plan})" for key in statistics.keys for recording in key.recordings]
    return list(dict.fromkeys(found))


def as_plain(outcome: Outcome, *, steps: int, seed: int) -> dict[str, Any]:
    """The outcome as plain values, for a JSON file."""
    eager, replayed = outcome.learners[:2]
    return {
        "steps": steps,
        "seed": seed,
        "device": str(outcome.device),
        "agree": outcome.is_good,
        "tolerance": TOLERANCE,
        "largest_difference": largest_difference(eager, replayed),
        "lowered_by": _lowerings(outcome.statistics),
        "learners": [
            {
                "name": learner.name,
                "held_out_loss": result.loss,
                "held_out_correct": result.correct,
                "held_out_total": result.total,
                "median_us": learner.median_us,
                "losses": [float(loss) for loss in learner.losses],
            }
            for learner, result in zip(outcome.learners, outcome.scores, strict=True)
        ],
        "statistics": dataclasses.asdict(outcome.statistics),
        "machine": gather(),
    }


def _write_json(path: Path, plain: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--json {path}: {error.strerror or error}") from None
