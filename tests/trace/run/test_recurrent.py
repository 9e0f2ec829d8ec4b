"""Weights of recurrent layers: a tensor over their memory is put together from what lies in it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from support import jit
from treeplay import Refusal
from treeplay.trace.run.recurrent import as_recorded, asked_of, in_one_piece, weights_of


def flat_layer() -> tuple[nn.LSTM, torch.UntypedStorage]:
    """A layer whose weights lie in one piece of memory, as they do on a GPU."""
    torch.manual_seed(0)
    layer = nn.LSTM(2, 3)
    memory = torch.cat([weight.detach().flatten() for weight in layer._flat_weights])
    begin = 0
    for weight in layer._flat_weights:
        weight.data = memory[begin : begin + weight.numel()].view(weight.shape)
        begin += weight.numel()
    return layer, memory.untyped_storage()


def test_a_tensor_over_the_weights_holds_those_of_each_call() -> None:
    layer, storage = flat_layer()

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            result = layer(x)[0]
            return result, torch.empty(0).set_(storage) * 2

    jitted = jit(program, lower="aten")
    for step in range(4):
        x = torch.randn(1, 1, 2)
        for mine, eager in zip(jitted(x), program(x), strict=True):
            assert torch.equal(mine, eager)
        with torch.no_grad():
            layer.weight_hh_l0.mul_(step + 2)
    assert jitted.statistics().replays == 3


def test_memory_that_is_no_recurrent_weights_is_refused() -> None:
    weight = nn.Parameter(torch.randn(3))
    storage = weight.untyped_storage()
    jitted = jit(lambda x: x + torch.empty(0).set_(storage), lower="aten", on_refusal="raise")
    jitted(torch.ones(3))
    with pytest.raises(Refusal, match="set_: gives a tensor other memory"):
        jitted(torch.ones(3))


def test_only_recurrent_layers_have_such_weights() -> None:
    layer, storage = flat_layer()
    x, weights = torch.randn(1, 1, 2), layer._flat_weights
    given = (x, (x, x), weights)
    assert weights_of(torch.add, given) == []
    assert all(a is b for a, b in zip(weights_of(torch.lstm, given), [x, x, *weights], strict=True))
    assert [place[2] for _, place in in_one_piece([x, *weights], storage)] == [0, 24, 60, 72]


LAYERS = pytest.mark.parametrize(
    "layer", [torch.ops.aten._cudnn_rnn.default, torch.ops.aten._cudnn_rnn_backward.default]
)


@LAYERS
def test_a_layer_takes_the_piece_and_no_state_of_dropout_that_it_does_not_use(layer: torch._ops.OpOverload) -> None:
    names = [argument.name for argument in layer._schema.arguments]
    piece, state = torch.ones(3), torch.zeros(5)

    def given(dropout: float, train: bool) -> dict[str, object]:
        args = dict.fromkeys(names) | {"dropout": dropout, "train": train, "dropout_state": state}
        return dict(zip(names, as_recorded(layer, tuple(args.values()), piece), strict=True))

    assert given(0.0, True)["weight_buf"] is piece and given(0.0, True)["dropout_state"] is None
    assert given(0.5, False)["dropout_state"] is None and given(0.5, True)["dropout_state"] is state
    assert as_recorded(torch.ops.aten.add.Tensor, (1, 2), piece) == (1, 2)


@LAYERS
def test_the_layout_of_a_layers_results_does_not_depend_on_what_a_trace_changes(layer: torch._ops.OpOverload) -> None:
    """A state for dropout that an earlier layer left behind is handed to the eager run, and not to the recorded one."""
    names = [argument.name for argument in layer._schema.arguments]
    given = {name: name for name in names} | {"dropout": 0.0}
    changed = given | {"weight_buf": None, "dropout_state": None}
    asked = [asked_of(layer, tuple(args.values())) for args in (given, changed, given | {"input": None})]
    assert asked[0] == asked[1] != asked[2]
    assert asked_of(torch.ops.aten.add.Tensor, (1, 2)) == (1, 2)
