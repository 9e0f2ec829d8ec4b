"""Where a traced program computes, and what may move there with it."""

from __future__ import annotations

import pytest
import torch

import treeplay
from treeplay.plan.devices import device_of, settle
from treeplay.trace.call import Call
from treeplay.trace.jit import trace
from treeplay.trace.traced import Trace
from treeplay.values.structure import flatten

# A device without memory stands for a GPU: only names of devices are looked at.
META = torch.device("meta")


def traced(program, *args) -> Trace:
    leaves, structure = flatten((args, {}))
    return trace(program, Call(args, {}, leaves, structure))


def test_a_program_of_the_cpu_stays_there():
    made = traced(lambda x: x * 2 - 1, torch.ones(2))
    assert device_of(made) == torch.device("cpu")
    assert settle(made, torch.device("cpu")) == (made, ())


def test_another_kind_of_device_is_refused():
    with pytest.raises(treeplay.Refusal, match="on meta"):
        device_of(traced(lambda x: x * 2 - 1, torch.ones(2, device=META)))


def test_an_argument_on_the_cpu_is_refused_with_its_name_and_line():
    made = traced(lambda x, y: x * y.to(META), torch.ones(2, device=META), torch.ones(2))
    with pytest.raises(treeplay.Refusal, match="tensor on the CPU in a program that computes on a GPU") as caught:
        settle(made, META)
    assert caught.value.reason.where.file == __file__


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
