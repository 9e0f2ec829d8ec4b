"""All reasons against a recording, from facts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from treeplay.backend.recording.decide import reasons_to_skip
from treeplay.values.captured import DeviceUse, GraphFacts, InputFacts, Role
from treeplay.values.location import Location
from treeplay.values.refusal import Reason
from treeplay.values.spec import TensorSpec

HERE = Location(__file__, 1, "here")
CPU, CUDA, OTHER = torch.device("cpu"), torch.device("cuda:0"), torch.device("cuda:1")
SPEC = TensorSpec((3,), (1,), torch.float32, CUDA)
FINE = GraphFacts("inference", inputs=(InputFacts("x", Role.ORDINARY, SPEC),), devices=(DeviceUse(CUDA, "sin"),))


def written(role, **more):
    return (InputFacts("x", role, SPEC, is_written=True, written=HERE, **more),)


CASES = {
    "off": {"is_on": False},
    "no_work": {"operators": 0},
    "forward_skipped": {"direction": "backward", "is_forward_skipped": True},
    "devices": {"devices": (DeviceUse(CUDA, "sin"), DeviceUse(OTHER, "cos", HERE))},
    "cpu_tensor": {"devices": (DeviceUse(CUDA, "sin"), DeviceUse(CPU, "add", HERE))},
    "no_caching_allocator": {"has_caching_allocator": False},
    "operator": {"obstacles": (Reason("nonzero", "shape", "fix", HERE),)},
    "rebound_storage": {"inputs": written(Role.STATIC, is_rebound=True)},
    "input_kind": {"inputs": (InputFacts("x", Role.PLAIN, kind="str"),)},
    "dynamic_sizes": {"is_dynamic": True, "allows_dynamic": False},
    "annotation": {"marked": (Reason("sin", "marked", "unmark", HERE),)},
}


@pytest.mark.parametrize("name", CASES)
def test_D29_each_reason_alone(name):
    assert [skip.name for skip in reasons_to_skip(replace(FINE, **CASES[name]))] == [name]


def test_D29_three_reasons_at_once():
    facts = replace(FINE, **CASES["cpu_tensor"], **CASES["operator"], **CASES["rebound_storage"])
    skips = reasons_to_skip(facts)
    assert [skip.name for skip in skips] == ["cpu_tensor", "operator", "rebound_storage"]
    assert all(skip.reason.where == HERE for skip in skips)


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": written(Role.STATIC)},
        {"inputs": written(Role.ORDINARY)},
        {"inputs": written(Role.MANAGED)},
        {"inputs": (InputFacts("n", Role.PLAIN, kind="SymInt"), InputFacts("g", Role.PLAIN, kind="Generator"))},
        {"is_dynamic": True},
        {"devices": (DeviceUse(CUDA, "sin"), DeviceUse(torch.device("meta"), "empty"))},
        {"devices": (DeviceUse(CPU, "sin"),), "has_caching_allocator": False},
    ],
)
def test_D29_what_is_fine(change):
    assert reasons_to_skip(replace(FINE, **change)) == ()
