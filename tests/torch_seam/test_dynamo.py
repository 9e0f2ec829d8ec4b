"""The private parts of torch that guards use exist and behave."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.interpreters import FreshPython
from treeplay.torch_seam.dynamo import DATA_OF, tensor_check, version_of_table

SAME = ("a", 1.5)
CHANGES: dict[str, tuple[Callable[[dict[Any, Any]], Any], bool]] = {
    "the same object again": (lambda t: t.update(a=SAME), False),
    "setdefault of what is there": (lambda t: t.setdefault("a", 2), False),
    "a look": (lambda t: [t["a"], t.get("z"), list(t), "a" in t], False),
    "an equal object": (lambda t: t.update(a=("a", float("1.5"))), True),
    "another": (lambda t: t.update(a=2), True),
    "a new one": (lambda t: t.setdefault("b", 2), True),
    "one less": (lambda t: t.pop("a"), True),
    "out and in again": (lambda t: t.update(a=t.pop("a")), True),
    "cleared": (lambda t: t.clear(), True),
    "there and back": (lambda t: (t.update(a=2), t.update(a=SAME)), True),
}


@pytest.mark.parametrize(("change", "counts"), CHANGES.values(), ids=CHANGES)
def test_the_version_of_a_dictionary(change: Callable[[dict[Any, Any]], Any], counts: bool) -> None:
    table: dict[Any, Any] = {"a": SAME}
    before = version_of_table(table)
    change(table)
    assert (version_of_table(table) != before) == counts


def test_versions_of_attributes_and_globals_are_those_of_their_dictionaries() -> None:
    class Holder:
        a = 1

    holder = Holder()
    holder.b = 2  # type: ignore[attr-defined]
    table = vars(holder)
    before = version_of_table(table)
    holder.b = 3  # type: ignore[attr-defined]
    assert version_of_table(table) != before


TENSORS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "itself": (lambda t: t, True),
    "the like": (lambda t: t.clone(), True),
    "a shape": (lambda t: torch.ones(3, 3), False),
    "strides": (lambda t: torch.ones(3, 2).t(), False),
    "a dtype": (lambda t: t.double(), False),
    "a gradient": (lambda t: t.clone().requires_grad_(), False),
    "a class": (lambda t: torch.nn.Parameter(t, requires_grad=False), False),
    "a device": (lambda t: t.to("meta"), False),
}


@pytest.mark.parametrize(("make", "is_fine"), TENSORS.values(), ids=TENSORS)
def test_tensors_are_checked_natively(make: Callable[[torch.Tensor], torch.Tensor], is_fine: bool) -> None:
    x, y = torch.ones(2, 3), torch.ones(4)
    assert tensor_check([x, y])(make(x), y) == is_fine


def test_what_is_no_tensor_is_none() -> None:
    check: Callable[..., bool] = tensor_check([torch.ones(1)])
    assert not check(None) and not check(1.0)


WITHOUT = """
import sys
import torch
from treeplay.guards.reads.reads import Reads
from treeplay.guards.check.guards import Guards
from treeplay.guards.walk.reach import Reach
assert {is_there} == ("torch._dynamo.guards" in sys.modules), "Dynamo is there or not, as it should not be"

class Holder:
    pass

holder = Holder()
holder.scale = 2.0
program = lambda: holder.scale
with Reads([Holder]) as reads:
    program()
guards = Guards(Reach(reads).walk([(program, "program")]).dependencies)
for scale, is_fine in ((2.0, True), (3.0, False), (float("2"), True)):
    holder.scale = scale
    for _ in range(150):
        assert guards.holds() is is_fine
holder.__class__ = type("Other", (), {{}})
assert not guards.holds()
"""


@pytest.mark.parametrize("is_there", [False, True], ids=["without Dynamo", "with Dynamo"])
def test_guards_hold_natively_or_not_alike(is_there: bool, fresh_python: FreshPython) -> None:
    text = textwrap.dedent(WITHOUT.format(is_there=is_there))
    text = "import torch._dynamo.guards\n" + text if is_there else text
    fresh_python(text)


def test_what_stands_for_data_in_a_graph_counts_its_own_versions() -> None:
    if DATA_OF is None:
        pytest.skip("this torch has no such function")
    x = torch.ones(2)
    DATA_OF(x).mul_(3).sub_(1)
    assert (x.tolist(), x._version) == ([2.0, 2.0], 0)
