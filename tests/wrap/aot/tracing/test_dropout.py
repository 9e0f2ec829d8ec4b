"""Dropout in programs whose results are differentiated: eager's draws, eager's tensors where nothing is dropped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import profile

from support import jit
from support.gradients import Pair, parameter, train
from treeplay.torch_seam.schemas import KEEPS_FOR_BACKWARD
from treeplay.wrap.aot.tracing.dropout import done_as_eager
from wrap.aot.oracle import numbers, twin

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(3, 4, 2, dropout=0.5, batch_first=True),
    "LSTM with projections": lambda: nn.LSTM(3, 4, 2, dropout=0.5, proj_size=2, bidirectional=True),
    "GRU": lambda: nn.GRU(3, 4, 2, dropout=0.5, bias=False),
    "RNN": lambda: nn.RNN(3, 4, 2, dropout=0.5, bidirectional=True, nonlinearity="relu"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers_drop_what_eager_drops(name: str) -> None:
    torch.manual_seed(6)
    pair = Pair(lambda net: net, LAYERS[name]())
    for _ in range(3):
        pair.act(train, torch.randn(2, 2, 3, requires_grad=True))
    assert pair.jitted.statistics().replays == 2


@pytest.mark.skipif(not KEEPS_FOR_BACKWARD, reason="torch was built without oneDNN")
def test_an_lstm_whose_input_needs_a_gradient_is_the_librarys_kernel() -> None:
    pair = Pair(lambda net: net, nn.LSTM(3, 4, batch_first=True))
    x = torch.randn(2, 9, 3, requires_grad=True)
    for _ in range(3):
        pair.act(train, x)
    with profile() as seen:
        pair.jitted(x)
    assert pair.jitted.statistics().replays == 3
    products = [event.name for event in seen.events() if "rnn" in event.name or "mm" in event.name]
    assert products == ["aten::mkldnn_rnn_layer"]


def test_recurrent_layers_drop_in_packed_sequences() -> None:
    net, sizes = nn.GRU(3, 4, 2, dropout=0.5), torch.tensor([2, 1, 1])
    args = (torch.randn(4, 3), sizes, torch.randn(2, 2, 4), list(net.parameters()), True, 2, 0.5, True, False)
    torch.manual_seed(6)
    expected = torch.gru(*args)
    torch.manual_seed(6)
    for found, wanted in zip(done_as_eager(torch.gru, args, {}), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_dropout_that_is_off_is_its_argument() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        for dropped in (F.dropout(x, 0.5, False), F.dropout(x, 0.0, True), torch.dropout(x, 0.5, False)):
            dropped.mul_(2)
        return [dropped, dropped * w]

    twin(program, lambda: [numbers(3), numbers(3, grad=True)])
    twin(program, lambda: [numbers(3, grad=True) * 1, numbers(3, grad=True)])


def test_dropout_of_everything_draws_nothing() -> None:
    pair = Pair(lambda w: lambda x: F.dropout(x * w, 1.0, True) + F.dropout(x, 0.5, True) * w, parameter(3))
    for _ in range(3):
        pair.act(train, torch.randn(3))
    assert pair.jitted.statistics().replays == 2


def test_a_wrong_rate_is_torchs_own_error() -> None:
    w = parameter(3)
    program = jit(lambda x: F.dropout(x * w, 1.5, False), on_refusal="eager")
    for _ in range(3):
        with pytest.raises(ValueError, match="between 0 and 1"):
            program(torch.ones(3))


@pytest.mark.parametrize("proj_size", [0, 2])
def test_the_states_of_a_layer_without_dropout_have_eagers_shape(proj_size: int) -> None:
    pair = Pair(lambda net: net, nn.LSTM(3, 4, 2, proj_size=proj_size, bidirectional=True, bias=False))
    for _ in range(3):
        pair.act(train, torch.randn(5, 2, 3, requires_grad=True))
    assert pair.jitted.statistics().replays == 2
