"""Where a traced program computes, and what may move there with it."""

from __future__ import annotations

import pytest
import torch

import treeplay
from treeplay.plan.devices import device_of_program, settle
from treeplay.trace.call import Call
from treeplay.trace.jit import trace
from treeplay.trace.traced import Trace
from treeplay.values.flatten import flatten
from treeplay.values.signature import MoveTo

# A device without memory stands for a GPU: only names of devices are looked at.
META = torch.device("meta")


def traced(program, *args) -> Trace:
    leaves, structure = flatten((args, {}))
    return trace(program, Call(args, {}, leaves, structure))


def test_a_program_of_the_cpu_stays_there():
    made = traced(lambda x: x * 2 - 1, torch.ones(2))
    assert device_of_program(made) == torch.device("cpu")
    assert settle(made, torch.device("cpu")) == (made, ())


def test_another_kind_of_device_is_refused():
    with pytest.raises(treeplay.Refusal, match="on meta"):
        device_of_program(traced(lambda x: x * 2 - 1, torch.ones(2, device=META)))


KEPT = {"y": torch.zeros(2)}


def stored(x, y):
    KEPT["y"] = y
    return x * y.to(META)


def own(x, y):
    return x * y.to(META), y


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: x * (y + 1).to(META),
        lambda x, y: x * y.to(META) * y[:1].to(META),
        lambda x, y: x * y.to(META) + y.add_(1).to(META),
        own,
        stored,
    ],
    ids=["computed with", "viewed", "written", "returned", "stored"],
)
def test_an_argument_on_the_cpu_that_does_more_than_move_is_refused_with_its_name_and_line(program):
    made = traced(program, torch.ones(2, device=META), torch.ones(2))
    with pytest.raises(treeplay.Refusal, match="tensor on the CPU in a program that computes on a GPU") as caught:
        settle(made, META)
    assert caught.value.reason.where.file == __file__


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: x - y.to(META),
        lambda x, y: x - y.to(META, torch.float64),
        lambda x, y: torch.empty_like(x).copy_(y) - x,
        lambda x, y: x - y.to(META) * y.to(META, copy=True),
    ],
    ids=["to", "to another dtype", "copied into", "twice"],
)
def test_an_argument_on_the_cpu_that_only_moves_is_moved_in_each_call(program):
    made = traced(program, torch.ones(2, device=META), torch.ones(2))
    settled, moving = settle(made, META)
    assert moving == () and {str(item.spec.device) for item in settled.signature.inputs} == {"meta"}
    moves = [item.source.moves_to for item in settled.signature.inputs]
    assert sorted(moves, key=bool) == [None, MoveTo(META, non_blocking=False)]
    assert made.signature.leaves == settled.signature.leaves  # what a call is checked for


def test_whether_the_host_may_go_on_is_as_the_program_says():
    made = traced(lambda x, y: x - y.to(META, non_blocking=True), torch.ones(2, device=META), torch.ones(2))
    (move,) = (item.source.moves_to for item in settle(made, META)[0].signature.inputs if item.source.moves_to)
    assert move.non_blocking
    made = traced(
        lambda x, y: x - y.to(META, non_blocking=True) + y.to(META, torch.float64),
        torch.ones(2, device=META),
        torch.ones(2),
    )
    (move,) = (item.source.moves_to for item in settle(made, META)[0].signature.inputs if item.source.moves_to)
    assert not move.non_blocking


def test_what_moves_lies_there_without_holes():
    given = torch.arange(12.0).reshape(4, 3).t()[:, ::2]
    made = traced(lambda x, y: x - y.to(META), torch.ones(3, 2, device=META), given)
    settled, _ = settle(made, META)
    (spec,) = (item.spec for item in settled.signature.inputs if item.source.moves_to)
    assert spec.stride == given.clone().stride() != given.stride()
    assert spec in [node.meta["spec"] for node in settled.graph.nodes if node.op == "placeholder"]


def test_a_constant_made_of_python_numbers_moves():
    made = traced(lambda x: x * torch.tensor([1.0, 2.0]).to(META), torch.ones(2, device=META))
    settled, moving = settle(made, META)
    assert moving == ()
    assert {str(item.spec.device) for item in settled.signature.inputs} == {"meta"}
    specs = [node.meta["spec"] for node in settled.graph.nodes if "spec" in node.meta]
    assert {str(spec.device) for spec in specs} == {"meta"}


def test_the_step_counts_of_an_optimizer_move():
    weight = torch.ones(2)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state[weight]["step"] = torch.zeros(())

    def program(x):
        optimizer.state[weight]["step"].add_(1)
        return x * 2 - 1

    settled, moving = settle(traced(program, torch.ones(2, device=META)), META)
    assert [settled.signature.inputs[at].source.place.key for at in moving] == ["step"]


def test_a_number_that_the_user_has_a_hold_on_is_refused():
    count = torch.zeros(())

    def program(x):
        count.add_(1)
        return x * 2 - 1

    with pytest.raises(treeplay.Refusal, match="count is a tensor on the CPU"):
        settle(traced(program, torch.ones(2, device=META)), META)


def test_random_numbers_of_the_cpu_are_refused():
    made = traced(lambda x: x * torch.rand(2).to(META), torch.ones(2, device=META))
    with pytest.raises(treeplay.Refusal, match="draws random numbers on the CPU"):
        settle(made, META)


def test_a_result_on_the_cpu_is_refused():
    with pytest.raises(treeplay.Refusal, match="move it after the call"):
        settle(traced(lambda x: (x * 2, torch.zeros(2) + 3), torch.ones(2, device=META)), META)
