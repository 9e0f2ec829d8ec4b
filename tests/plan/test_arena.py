"""Arena plans: hand-made cases, random ones against a checker of its own, and those of real training steps."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treeplay.lower.aten.storage import Home, survey_storages
from treeplay.plan.arena import pack, plan_arena
from treeplay.trace.call import Call
from treeplay.trace.jit import trace
from treeplay.values.arena import ArenaPlan, Buffer
from treeplay.values.flatten import flatten


def check(plan: ArenaPlan, buffers: list[Buffer]) -> None:
    """Byte by byte and step by step, knowing nothing of how plans are made."""
    assert [block.buffer for block in plan.blocks] == buffers
    assert all(block.offset % 64 == 0 for block in plan.blocks)
    assert all(block.offset + block.buffer.nbytes <= plan.total_bytes for block in plan.blocks)
    rounded = [(buffer.nbytes + 63) // 64 * 64 for buffer in buffers]
    assert plan.total_bytes <= sum(rounded)
    for step in {buffer.first_step for buffer in buffers}:
        alive = [block for block in plan.blocks if block.buffer.first_step <= step <= block.buffer.last_step]
        assert sum(block.buffer.nbytes for block in alive) <= plan.total_bytes
        owner: dict[int, int] = {}
        for index, block in enumerate(alive):
            for line in range(block.offset // 64, -(-(block.offset + block.buffer.nbytes) // 64)):
                assert owner.setdefault(line, index) == index, f"two buffers on line {line} at step {step}"


def packed(*buffers: tuple[int, int, int]) -> ArenaPlan:
    listed = [Buffer(index, *buffer) for index, buffer in enumerate(buffers)]
    plan = pack(listed)
    check(plan, listed)
    return plan


def test_nothing_needs_no_arena():
    assert packed() == ArenaPlan((), 0)


def test_buffers_that_never_meet_share_their_bytes():
    assert packed((100, 0, 1), (100, 2, 3), (128, 4, 9)).total_bytes == 128


def test_the_last_step_of_one_and_the_first_of_another_is_a_meeting():
    assert packed((64, 0, 1), (64, 1, 2)).total_bytes == 128


def test_a_chain_of_layers_needs_room_for_two():
    assert packed(*[(64, step, step + 1) for step in range(20)]).total_bytes == 128


def test_a_small_buffer_goes_into_the_tightest_gap():
    """1024 | 512 | 256 | 192 | 160      where 512 and 192 lay is free from step 3 on; 128 takes the tighter place
    long   short long  short long"""
    plan = packed((1024, 0, 9), (512, 0, 2), (256, 0, 9), (192, 0, 2), (160, 0, 9), (128, 4, 5))
    gaps = {block.buffer.id: block.offset for block in plan.blocks}
    assert gaps[5] == gaps[3]


def test_buffers_without_bytes_cost_nothing():
    assert packed((0, 0, 5), (10, 0, 5), (0, 2, 3)).total_bytes == 64


def test_equal_buffers_are_placed_in_the_order_given_whatever_their_ids():
    one = pack([Buffer(7, 64, 0, 1), Buffer(3, 64, 0, 1)])
    other = pack([Buffer(1, 64, 0, 1), Buffer(9, 64, 0, 1)])
    assert [block.offset for block in one.blocks] == [block.offset for block in other.blocks] == [0, 64]


def test_a_plan_prints_on_one_line():
    assert str(packed((100, 0, 1), (100, 2, 3))) == "arena: 2 buffers of 256 bytes in 128 bytes"


@st.composite
def buffer_lists(draw: st.DrawFn) -> list[Buffer]:
    sizes = st.integers(0, 2000) | st.sampled_from([0, 1, 63, 64, 65, 4096])
    spans = st.tuples(st.integers(0, 30), st.integers(0, 12))
    drawn = draw(st.lists(st.tuples(sizes, spans), max_size=40))
    return [Buffer(index, size, first, first + more) for index, (size, (first, more)) in enumerate(drawn)]


@settings(max_examples=200, deadline=None)
@given(buffer_lists())
def test_no_two_buffers_that_meet_overlap(buffers):
    plan = pack(buffers)
    check(plan, buffers)
    assert pack(buffers) == plan


def training_step(optimizer):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
    opt = optimizer(model.parameters())

    def step(x, y):
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        return loss

    args = (torch.randn(4, 8), torch.tensor([0, 1, 2, 3]))
    step(*args)
    leaves, structure = flatten((args, {}))
    return trace(step, Call(args, {}, leaves, structure)).graph


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW], ids=["sgd", "adamw"])
def test_the_arena_of_a_training_step_is_sound_and_smaller_than_its_buffers(optimizer):
    plan = plan_arena(training_step(optimizer))
    buffers = [block.buffer for block in plan.blocks]
    check(plan, buffers)
    assert len(buffers) > 10
    assert plan.total_bytes < sum(buffer.nbytes for buffer in buffers)


def test_a_storage_lives_from_its_maker_to_the_last_node_that_touches_an_alias():
    graph = training_step(torch.optim.AdamW)
    steps = {node: step for step, node in enumerate(graph.nodes)}
    layout = survey_storages(graph)
    for node, storage in layout.of.items():
        assert all(steps[user] <= storage.last for user in node.users)
        assert storage.first <= steps[node] <= storage.last
        assert node.meta["offset"] * node.meta["spec"].dtype.itemsize + node.meta["spec"].nbytes <= storage.nbytes


def test_inputs_and_outputs_are_not_in_the_arena():
    graph = training_step(torch.optim.SGD)
    layout = survey_storages(graph)
    placed = {block.buffer.id for block in plan_arena(graph).blocks}
    inputs = [node for node in graph.nodes if node.op == "placeholder" and "spec" in node.meta]
    outside = [*inputs, *graph.output_node().args[0]]
    assert len(outside) > 12
    for node in outside:
        assert layout.of[node].home in (Home.INPUT, Home.OUTPUT)
        assert not placed & {alias.meta["storage"] for alias in layout.of[node].nodes}


def test_the_same_program_gets_the_same_plan():
    one, other = plan_arena(training_step(torch.optim.AdamW)), plan_arena(training_step(torch.optim.AdamW))
    assert [(block.offset, block.buffer.nbytes) for block in one.blocks] == [
        (block.offset, block.buffer.nbytes) for block in other.blocks
    ]
