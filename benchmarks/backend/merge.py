"""Put results of several runs into one file: `python -m benchmarks.backend.merge FILE MORE [MORE ...]`.

What a later file has of a model, a kind and a way replaces what an earlier one has. The runs have to be of one device and one
torch; each keeps its own date in the file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.backend.measure import KINDS
from benchmarks.backend.zoo import MODELS

Result = dict[str, Any]
_SAME = ("torch", "device", "gpu")


def merged(files: list[Result]) -> Result:
    """All models of the files. Raises `ValueError` if these are of different machines or torches."""
    for name in _SAME:
        if len({file["environment"].get(name) for file in files}) > 1:
            raise ValueError(f"the files differ in {name}: {[file['environment'].get(name) for file in files]}")
    models: dict[str, Result] = {}
    for file in files:
        for result in file["models"]:
            models[result["model"]] = both(models.get(result["model"], {}), result)
    order = [model.name for model in MODELS]
    runs = [run for file in files for run in file.get("runs") or [_told(file)]]
    return {
        "environment": files[-1]["environment"],
        "options": files[0]["options"],
        "runs": runs,
        "models": sorted(models.values(), key=lambda result: order.index(result["model"])),
    }


def _told(file: Result) -> Result:
    """What is kept of a run."""
    return {"date": file["environment"]["date"], "options": file["options"]}


def both(before: Result, after: Result) -> Result:
    """One model's results of two runs, way by way; one that was broken off leaves whole what another has measured."""
    found = {**before, **after}
    for kind in KINDS:
        ways = {**before.get(kind, {}), **after.get(kind, {})}
        if ways:
            found[kind] = ways
    if before.get("done") and "died" in after:
        del found["died"]
    return found


def main() -> None:
    """Merge into the first file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backend.merge", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("more", type=Path, nargs="+")
    options = parser.parse_args()
    found = merged([json.loads(path.read_text()) for path in (options.file, *options.more)])
    options.file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
