"""One line for each event that a person may want to follow, through Python's `logging`.

treeplay.recordings   what was recorded, compiled, captured or dropped
treeplay.refusals     what is not recorded, and why
treeplay.guards       why a call came to no recording that there is

`TREEPLAY_LOGS=recordings,guards` in the environment, or `all`, prints them to stderr. No replay comes by here.
"""

from __future__ import annotations

import logging
import os
from typing import Literal

from treeplay.errors import ArgumentError
from treeplay.observe.lines import own_location
from treeplay.values.location import Location
from treeplay.values.refusal import Reason

EventKind = Literal["recordings", "refusals", "guards"]
_LOGGERS = {kind: logging.getLogger(f"treeplay.{kind}") for kind in ("recordings", "refusals", "guards")}


def log_event(kind: EventKind, text: str, where: Location | None = None) -> None:
    """Log an event: on one line, with the user's line that it is about, or which is running."""
    logger = _LOGGERS[kind]
    if logger.isEnabledFor(logging.INFO):
        where = where or own_location()
        place = f"{where}: " if where is not None else ""
        logger.info("%s%s", place, "; ".join(part.strip() for part in text.splitlines() if part.strip()))


def log_refusal(who: str, reason: Reason) -> None:
    """Log why `who` is not recorded."""
    where = reason.where
    source = f" `{where.source}`" if where is not None and where.source else ""
    called_from = f" (called from {where.called_from})" if where is not None and where.called_from is not None else ""
    log_event("refusals", f"{who}:{source} {reason.op} {reason.why}; fix: {reason.advice}{called_from}", where)


def print_what_the_environment_asks_for() -> None:
    """Print the events that `TREEPLAY_LOGS` names to stderr, one line each. Raises `ArgumentError` for another name."""
    words = [word.strip() for word in os.environ.get("TREEPLAY_LOGS", "").split(",") if word.strip()]
    for word in words:
        if word != "all" and word not in _LOGGERS:
            known = ", ".join((*_LOGGERS, "all"))
            raise ArgumentError(f"the environment variable TREEPLAY_LOGS: expected some of {known}, found {word!r}")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
    for kind, logger in _LOGGERS.items():
        if kind in words or "all" in words:
            logger.setLevel(logging.INFO)
            logger.addHandler(handler)
            logger.propagate = False  # a handler of the application's would print it again


print_what_the_environment_asks_for()
