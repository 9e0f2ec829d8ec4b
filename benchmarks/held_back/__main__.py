"""Held-back programs in every way against eager: `python -m benchmarks.held_back --out FILE`.

`--ways aten,inductor,compile,compile-aten`, `--device cuda`, `--only PART` of a name, `--seconds N`. The programs run in a
process that tells of each as it is done: a crash is one of the results. The file is written as it goes; programs that a file
tells of already and that do not run again are kept there, so that a way may run in parts. The exit status is 1 if anything
was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks import apart, machine

RESULTS = machine.ROOT / "benchmarks" / "results" / "held_back"
WAYS = ("aten", "inductor", "compile-aten", "compile")
_COUNTS = ("calls", "replays", "recordings", "graphs")
_MOST_SECONDS_OF_A_PROGRAM = 180


def work(names: list[str], way: str, device: str) -> None:
    """Run programs, and print one line of JSON before and after each."""
    import torch

    from benchmarks.held_back.play import judge
    from benchmarks.held_back.programs import PROGRAMS

    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what programs print goes elsewhere
    for name in names:
        print(json.dumps({"begins": name}), file=out, flush=True)
        print(json.dumps(asdict(judge(name, PROGRAMS[name], way, device))), file=out, flush=True)


def outcomes(names: list[str], way: str, device: str, stop: float) -> Iterator[dict[str, Any]]:
    """What becomes of each program, one after the other; a new process goes on behind one that ends."""
    while names and monotonic() < stop:
        done = 0
        command = ["benchmarks.held_back", "--work", ",".join(names[:100]), "--ways", way, "--device", device]
        for told in apart.outcomes(command, stop=stop, most_seconds=_MOST_SECONDS_OF_A_PROGRAM):
            if "crash" in told:
                name = told.get("begins", names[done])
                told = {"name": name, "way": way, "difference": f"crash: the process ended with {told['crash']}"}
            done += 1
            yield told
        names = names[done:]


def told(by_name: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One way's outcomes, counted and listed."""
    found = list(by_name.values())
    wrong = [item for item in found if item.get("difference")]
    dynamos = [item for item in wrong if item.get("same_in_dynamo")]
    ours = [item for item in wrong if not item.get("same_in_dynamo")]
    refused = [item for item in found if item.get("refusals")]
    reasons = [(item.get("refusal") or "argument").partition(":")[0] for item in refused]
    counts: Counter[str] = Counter()
    for item in found:
        counts.update({name: item.get(name, 0) for name in _COUNTS})
    return {
        "programs": len(found),
        "wrong": len(ours),
        "wrong with backend eager too": len(dynamos),
        "errors of treeplay's own": sum("internal" in item for item in found),
        "refused": len(refused),
        "recorded": sum("recordings" in item for item in found),
        "compiled": sum("graphs" in item for item in found),
        **counts,
        "not replayed": dict(sum((Counter(item.get("not_replayed", {})) for item in found), Counter()).most_common()),
        "refused by operation": dict(Counter(reasons).most_common()),
        "wrong programs": {item["name"]: item["difference"] for item in ours},
        "wrong with backend eager too, programs": {item["name"]: item["difference"] for item in dynamos},
        "neither recorded nor refused": [
            item["name"]
            for item in found
            if not item.get("recordings") and not item.get("graphs") and not item.get("refusals")
        ],
        "outcomes": by_name,
    }


def shortened(outcome: dict[str, Any]) -> dict[str, Any]:
    """What is kept of an outcome: what there is to say of it, in so many characters."""
    kept = {name: value for name, value in outcome.items() if value}
    most = {"difference": 400, "refusal": 300, "internal": 10_000}
    return kept | {name: kept[name][:size] for name, size in most.items() if name in kept}


def main() -> None:
    parser = argparse.ArgumentParser(description="Held-back programs in every way against eager.")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="a part of the names, or several with commas between")
    parser.add_argument("--seconds", type=float, default=10.0**9, help="for each way")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work is not None:
        work(chosen.work.split(","), chosen.ways, chosen.device)
        return
    from benchmarks.held_back.programs import PROGRAMS, runs_on

    parts = chosen.only.split(",")
    names = [name for name in PROGRAMS if runs_on(name, chosen.device) and any(part in name for part in parts)]
    out = chosen.out or RESULTS / f"held-back-{chosen.device}-{str(machine.facts()['date'])[:10]}.json"
    result: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    result |= {"environment": machine.facts(), "device": chosen.device}
    is_wrong = False
    for way in chosen.ways.split(","):
        start = monotonic()
        found = result.get(way, {}).get("outcomes", {})
        for number, item in enumerate(outcomes(list(names), way, chosen.device, start + chosen.seconds)):
            found[item["name"]] = shortened(item)
            _tell(way, item)
            if number % 20 == 19:
                machine.write_whole(result | {way: told(found)}, out)
        result[way] = told({name: found[name] for name in PROGRAMS if name in found})
        machine.write_whole(result, out)
        is_wrong = is_wrong or bool(result[way]["wrong"] or result[way]["errors of treeplay's own"])
        shown = ("programs", "wrong", "wrong with backend eager too", "errors of treeplay's own", "refused", "recorded")
        print(way, {name: result[way][name] for name in shown}, f"{monotonic() - start:.0f} s", flush=True)
    sys.exit(1 if is_wrong else 0)


def _tell(way: str, item: dict[str, Any]) -> None:
    if item["difference"]:
        whose = "(dynamo's) " if item.get("same_in_dynamo") else ""
        print(f"{way}: {item['name']}: {whose}{item['difference'][:600]}", flush=True)
    if item.get("internal"):
        print(f"{way}: {item['name']}: internal: {item['internal'][-700:]}", flush=True)


if __name__ == "__main__":
    main()
