"""A captured graph reads and writes where it is told to, whatever kind of node holds the address. Needs a GPU."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn import functional as F

from treeplay.device.cuda.nodes import patch
from treeplay.errors import InternalError
from treeplay.relocate.policy import Costs

pytestmark = pytest.mark.gpu

ONE_BY_ONE = Costs(update_us=1e9)
AT_ONCE = Costs(update_us=0, update_node_us=0, template_node_us=0, least_saved_us=0)


def relocatable(function, *inputs, costs=ONE_BY_ONE):
    from benchmarks.relocating import capture

    made = capture(function, list(inputs), costs=costs)
    assert not made.table.demoted(), [str(row) for row in made.table.demoted()]
    assert made.unfaithful == {}
    return made


def replay(made, inputs):
    """Replay on inputs wherever they are, into new outputs."""
    outputs = [torch.full_like(out, torch.nan) for out in made.outputs]
    made.move(inputs, outputs)
    made.graph.replay()
    return outputs


def elsewhere(*inputs):
    return [torch.randn_like(x) for x in inputs]


@pytest.mark.parametrize("costs", [ONE_BY_ONE, AT_ONCE], ids=["one by one", "at once"])
def test_Gplus10_three_inputs_at_new_addresses_each_call_equal_eager_without_a_copy(costs):
    def program(x, y, z):
        return [F.gelu(x @ y) + z, (x * 2).sum(0)]

    inputs = [torch.randn(16, 32, device="cuda"), torch.randn(32, 8, device="cuda"), torch.randn(16, 8, device="cuda")]
    made = relocatable(program, *inputs, costs=costs)
    chance, kept = random.Random(0), []
    for _ in range(100):
        kept = chance.sample(kept, min(len(kept), 5))  # so that addresses come back in another order
        inputs = elsewhere(*inputs)
        kept.append(inputs)
        for found, expected in zip(replay(made, inputs), program(*inputs), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_graph_is_on_the_device_before_its_first_node_is_set(monkeypatch):
    """A kernel that is set earlier runs slower from then on."""
    from treeplay.device.cuda.nodes import calls

    order = []

    def noted(name):
        def function(*args):
            order.append(name)
            return known(name)(*args)

        return function

    known = calls.function
    for module in (calls, patch):
        monkeypatch.setattr(module, "function", noted)
    made = relocatable(lambda x: [(x * 2 - 1).relu() - x], torch.randn(64, device="cuda"))
    inputs = elsewhere(torch.randn(64, device="cuda"))
    (found,) = replay(made, inputs)
    assert torch.equal(found, (inputs[0] * 2 - 1).relu() - inputs[0])
    assert order.count("cuGraphUpload") == 1
    assert order.index("cuGraphUpload") < order.index("cuGraphExecKernelNodeSetParams_v2")


@pytest.mark.parametrize("costs", [ONE_BY_ONE, AT_ONCE], ids=["one by one", "at once"])
def test_packed_parameters_and_launch_attributes_survive(costs):
    """Matrix products in bfloat16 are launched in clusters, with all parameters in one buffer."""

    def program(x, w, v):
        return [(x @ w).relu() @ v]

    inputs = [torch.randn(256, 512, device="cuda").bfloat16(), torch.randn(512, 512, device="cuda").bfloat16()]
    inputs.append(torch.randn(512, 256, device="cuda").bfloat16())
    made = relocatable(program, *inputs, costs=costs)
    assert any(getattr(node, "is_packed", False) for node in made.captures[0].nodes)
    for _ in range(5):
        inputs = elsewhere(*inputs)
        (found,) = replay(made, inputs)
        torch.testing.assert_close(found, program(*inputs)[0], rtol=0, atol=0)


def test_memcpy_and_memset_nodes_are_moved():
    def program(x):
        zeros = torch.empty(777, dtype=torch.uint8, device="cuda").zero_()
        return [x.clone(), zeros, x[:, 1:].clone()]

    x = torch.randn(30, 40, device="cuda")
    made = relocatable(program, x)
    kinds = {node.frame[0] for node in made.captures[0].nodes}
    assert "memcpy" in kinds
    for _ in range(3):
        (x,) = elsewhere(x)
        outputs = [torch.empty_like(out).fill_(7) for out in made.outputs]
        made.move([x], outputs)
        made.graph.replay()
        for found, expected in zip(outputs, program(x), strict=True):
            assert torch.equal(found, expected)


def test_state_is_updated_where_it_lies_now():
    def program(total, x):
        total.add_(x)
        return [total * 2]

    total, x = torch.zeros(100, device="cuda"), torch.ones(100, device="cuda")
    made = relocatable(program, total, x)
    other = torch.full((100,), 5.0, device="cuda")
    (found,) = replay(made, [other, x])
    assert (other[0].item(), found[0].item(), total[0].item()) == (6.0, 12.0, 0.0)


def test_what_is_in_flight_is_not_touched():
    """The second replay is patched and launched while the first still runs."""

    def program(x):
        for _ in range(60):
            x = (x @ x).softmax(1)
        return [x]

    x = torch.randn(512, 512, device="cuda")
    made = relocatable(program, x)
    inputs = [elsewhere(x)[0] for _ in range(8)]
    found = [replay(made, [each])[0] for each in inputs]
    for each, result in zip(inputs, found, strict=True):
        torch.testing.assert_close(result, program(each)[0])


def test_moving_one_by_one_and_at_once_may_be_mixed():
    """Two nodes hold x and one holds y: moving x is an update of the graph, which must not take y back."""

    def program(x, y):
        return [(x - 2 * y) * 3 + x]

    x, y = torch.randn(64, device="cuda"), torch.randn(64, device="cuda")
    costs = Costs(update_us=2, update_node_us=0, template_node_us=0, least_saved_us=0)
    made = relocatable(program, x, y, costs=costs)
    row_x, row_y = made.table.tensors
    move_x, move_y = made.patcher.mover(row_x), made.patcher.mover(row_y)
    assert "update(" in made.patcher.source(row_x).text and "update(" not in made.patcher.source(row_y).text
    for _ in range(3):
        (y,) = elsewhere(y)
        move_y(y.data_ptr())
        (x,) = elsewhere(x)
        move_x(x.data_ptr())
        made.graph.replay()
        torch.testing.assert_close(made.outputs[0], program(x, y)[0])


def test_random_numbers_go_on_as_in_eager():
    def program(x):
        return [F.dropout(x, 0.5, training=True)]

    x = torch.ones(1000, device="cuda")
    made = relocatable(program, x)
    torch.manual_seed(3)
    expected = [program(x)[0] for _ in range(3)]
    torch.manual_seed(3)
    for each in expected:
        assert torch.equal(replay(made, [x.clone()])[0], each)


def test_gradients_and_leaves_may_lie_anywhere():
    def program(x, w, incoming):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        out = F.layer_norm(F.linear(x, w), (24,))
        return [out.detach(), *torch.autograd.grad(out, (x, w), incoming)]

    inputs = [torch.randn(*shape, device="cuda") for shape in ((12, 36), (24, 36), (12, 24))]
    made = relocatable(program, *inputs)
    for _ in range(3):
        inputs = elsewhere(*inputs)
        for found, expected in zip(replay(made, inputs), program(*inputs), strict=True):
            torch.testing.assert_close(found, expected)


def test_a_view_with_an_offset_is_an_input_like_any_other():
    def program(x, y):
        return [x.sum(1) + y]

    bases = [torch.randn(40, 20, device="cuda") for _ in range(3)]
    y = torch.randn(8, device="cuda")
    made = relocatable(program, bases[0][16:24, 4:14], y)
    for base in bases[1:]:
        view = base[16:24, 4:14]
        torch.testing.assert_close(replay(made, [view, y])[0], program(view, y)[0])


def test_an_address_aligned_otherwise_is_not_accepted():
    made = relocatable(lambda x: [x * 2], torch.randn(64, device="cuda"))
    (row,) = made.table.tensors
    base = torch.randn(80, device="cuda")
    assert row.accepts(base.data_ptr()) and not row.accepts(base[1:].data_ptr())


def test_weaker_alignment_can_be_proven_by_decoys_that_have_it():
    from benchmarks.relocating import capture

    def program(x):
        return [x * 2 + 1]

    made = capture(program, [torch.randn(64, device="cuda")], congruent_bytes=16)
    (row,) = made.table.tensors
    assert row.alignment == 16, row
    view = torch.randn(80, device="cuda")[4:68]
    assert row.accepts(view.data_ptr())
    out = torch.empty_like(made.outputs[0])
    made.move([view], [out])
    made.graph.replay()
    torch.testing.assert_close(out, program(view)[0])


def test_a_failed_move_says_which_call_failed():
    made = relocatable(lambda x: [x * 2], torch.randn(64, device="cuda"))
    made.patcher.executable = 0
    made.patcher._movers.clear()
    with pytest.raises(InternalError, match="cuGraphExecKernelNodeSetParams_v2 failed with CUDA driver code"):
        made.patcher.mover(made.table.tensors[0])(4096)


def test_a_user_who_records_the_allocators_history_keeps_it_and_outputs_stay():
    from benchmarks.relocating import capture

    torch.cuda.memory._record_memory_history("all", context=None)
    try:
        made = capture(lambda x: [x * 2], [torch.randn(64, device="cuda")])
        assert [row.who for row in made.table.demoted()] == [("output", 0)]
        assert torch.cuda.memory._snapshot()["device_traces"][0]
    finally:
        torch.cuda.memory._record_memory_history(None)


@pytest.mark.parametrize(
    "name",
    [
        "mlp_bf16, backward",
        "attention_flash, backward",
        "attention_cudnn",
        "convolution_fp16_channels_last",
        "top_k, backward",
        "index_put, backward",
        "foreach_add_40",
        "copies_and_fills",
        "adamw_fused",
        "gru, backward",
        "fft",
    ],
)
def test_families_of_operations_equal_eager_wherever_their_tensors_lie(name):
    """Inputs are moved, the old places filled with NaN, and the results compared: what can move, moves; the rest stays."""
    from benchmarks.families import measure

    demoted = []
    for _ in range(3):  # rubbish in a kernel's padding may look as if it were computed from an address, by chance
        result = measure(name)
        assert result["status"] in ("proven", "demoted"), result
        demoted.append(result["demoted"])
        if result["movable_tensors"] == result["tensors"]:
            return
    raise AssertionError(demoted)
