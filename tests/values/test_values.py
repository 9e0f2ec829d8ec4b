"""What stages pass on is frozen, and what is a key or a reference is hashed, pickled and printed."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from typing import Any

import pytest
import torch

from treeplay import values
from treeplay.values.layout import Layout
from treeplay.values.location import Location
from treeplay.values.mismatch import Mismatch
from treeplay.values.output import Cast, Fresh, SameAsInput, SameAsOutput, Static, View
from treeplay.values.plan import Plan
from treeplay.values.refusal import Reason
from treeplay.values.spec import TensorSpec

SPEC = TensorSpec((2, 3), (3, 1), torch.float32, torch.device("cpu"))


def test_dataclasses_of_the_vocabulary_are_frozen() -> None:
    modules = [
        importlib.import_module(f"{values.__name__}.{found.name}") for found in pkgutil.iter_modules(values.__path__)
    ]
    classes = {cls for module in modules for _, cls in inspect.getmembers(module, dataclasses.is_dataclass)}
    assert len(classes) > 50
    assert not [cls for cls in classes if not cls.__dataclass_params__.frozen or not hasattr(cls, "__slots__")]


@pytest.mark.parametrize(
    "value",
    [
        SPEC,
        Layout((2,), (1,), 4),
        Fresh(0, requires_grad=True),
        View(SameAsInput(1), Layout((2,), (1,), 4), cast=Cast(torch.int32, 0, 2, False), steps=b"steps"),
        SameAsOutput(0),
        Static(None),
        Location("train.py", 3, "step"),
        Reason("item", "reads a value", "return the tensor", Location("train.py", 3)),
        Mismatch("args[0]", "float32[2]", "float32[3]"),
        Plan(("inductor", "aten"), "there is a compiler"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_hashed_pickled_and_printed(value: Any) -> None:
    again = pickle.loads(pickle.dumps(value))
    assert again == value and hash(again) == hash(value)
    assert "object at 0x" not in str(value)
