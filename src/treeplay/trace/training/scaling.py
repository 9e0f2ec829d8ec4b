"""What a `GradScaler` keeps in Python, beside its two tensors: settings that are watched, and a table of the optimizers that
have stepped, which is empty between iterations and made anew by each `update`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from treeplay.trace.restore.contents import Change
from treeplay.trace.survey.found import Scaler, Survey
from treeplay.values.place import How, Place
from treeplay.values.signature import Watch

_TABLE = "_per_optimizer_states"
_SETTINGS = ("_enabled", "_growth_factor", "_backoff_factor", "_growth_interval", "_scale", "_growth_tracker")


def find_scaler(scaler: Any, place: Place) -> Scaler:
    """A scaler as it stands before a trace."""
    return Scaler(scaler, place, vars(scaler).get(_TABLE))


def settings_of(scaler: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """The places and values that decide what a scaler does; its tensors too, as long as it has not made them."""
    table = vars(scaler)
    for name in _SETTINGS:
        if name in table and not isinstance(table[name], torch.Tensor):
            yield place.child(How.ITEM, table, name, f"{place}.{name}"), table[name]


def is_bookkeeping(change: Change, found: Survey) -> bool:
    """Whether a change is only that a scaler has a new empty table in the place of the one it had."""
    for known in found.scalers:
        table = vars(known.scaler)
        if known.was_idle and table[_TABLE] is not known.table and not table[_TABLE]:
            is_new_table = change.place.holder is table and change.place.key == _TABLE
            if is_new_table or change.place.holder is known.table:
                return True
    return False


def idle_scalers(found: Survey) -> Iterator[Watch]:
    """For each scaler that the traced run used: its table must be empty when a call begins."""
    for known in found.scalers:
        table = vars(known.scaler)
        if known.was_idle and (table[_TABLE] is not known.table or table[_TABLE]):
            yield Watch(known.place.child(How.ITEM, table, _TABLE, f"optimizers that {known.place} has unscaled"), 0)
