"""Which inputs are looked at for their alignment, and how a misaligned one is repaired."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from treeplay.backend.alignment import copy_of_memory, plan_alignment, with_repair
from treeplay.observe import counters
from treeplay.values.captured import InputFacts, Role
from treeplay.values.spec import TensorSpec

CUDA = torch.device("cuda:0")


def facts(role=Role.ORDINARY, *, offset=0, device=CUDA):
    return InputFacts("x", role, TensorSpec((4,), (1,), torch.float32, device), offset=offset)


CASES = [
    (facts(), True),
    (facts(Role.STATIC), False),
    (facts(offset=1), False),
    (facts(offset=4), True),
    (facts(Role.STATIC, offset=1), False),
    (facts(Role.MANAGED), True),
    (facts(device=torch.device("cpu")), False),
    (InputFacts("n", Role.PLAIN, kind="int"), False),
]


@pytest.mark.parametrize(("item", "is_planned"), CASES)
def test_D22_what_is_looked_at_on_each_call(item, is_planned):
    assert plan_alignment([item]) == ((0,) if is_planned else ())


def test_D22_the_plan_is_the_one_that_inductor_makes():
    from torch._inductor.compile_fx import get_input_idxs_to_check

    items = [item for item, _ in CASES]
    with FakeTensorMode():
        values = [
            torch.empty(16, device=item.spec.device).as_strided((4,), (1,), item.offset) if item.spec else 3
            for item in items
        ]
    static = [at for at, item in enumerate(items) if item.role is Role.STATIC]
    assert plan_alignment(items) == tuple(get_input_idxs_to_check(values, static))


def misaligned(count=4):
    return torch.arange(float(count + 1))[1:]


def test_D23_a_misaligned_input_is_replaced_and_an_aligned_one_passes():
    seen = []
    given, aligned = misaligned(), torch.ones(4)
    with_repair(lambda args: seen.extend(args) or [], (0, 1))([given, aligned])
    assert seen[0] is not given and torch.equal(seen[0], given) and seen[0].data_ptr() % 16 == 0
    assert seen[1] is aligned
    assert counters["copies"]["misaligned input"] == 1


def test_D23_without_a_plan_it_is_the_callable_itself():
    def run(args):
        return args

    assert with_repair(run, ()) is run


def test_D23_what_is_written_into_the_copy_is_copied_back():
    base = torch.arange(5.0)

    def run(args):
        args[0].mul_(10)
        args.clear()
        return []

    with_repair(run, (0,), mutated=(0,))([base[1:]])
    assert base.tolist() == [0, 10, 20, 30, 40]


def test_D23_nothing_holds_the_original_while_it_runs():
    given = misaligned()
    alive = weakref.ref(given)
    seen = []
    args = [given]
    del given
    with_repair(lambda args: seen.append(alive()) or [], (0,))(args)
    assert seen == [None]


def numbers(count):
    return torch.arange(float(count)) * 3 + 1


SOURCES = {
    "a view at an offset": (lambda: numbers(12).view(3, 4).t()[1:], 44),
    "expanded": (lambda: numbers(3).view(1, 3).expand(4, 3), 12),
    "empty": (lambda: torch.empty(0, 3), 0),
    "overlapping": (lambda: numbers(5).as_strided((3, 3), (1, 1)), 20),
    "overlapping and expanded": (lambda: numbers(8).as_strided((2, 3, 3), (0, 1, 2), 1), 28),
    "with holes": (lambda: numbers(20).view(4, 5)[:, ::2], 80),
    "a number": (lambda: torch.tensor(7), 8),
}


@pytest.mark.parametrize("name", SOURCES)
def test_D24_a_copy_lies_as_its_source_in_the_least_memory(name):
    make, nbytes = SOURCES[name]
    source = make()
    made = copy_of_memory(source)
    assert torch.equal(made, source) and made.stride() == source.stride() and made.dtype == source.dtype
    assert (made.storage_offset() == 0 and made.data_ptr() != source.data_ptr()) or not nbytes
    assert made.untyped_storage().nbytes() <= nbytes


def test_D24_elements_that_share_an_address_still_do():
    made = copy_of_memory(numbers(5).as_strided((3, 3), (1, 1)))
    made[0, 1] = -1
    assert made[1, 0] == -1
