"""Dropout in programs whose results are differentiated: eager's draws, eager's tensors where nothing is dropped."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.profiler import profile

from support import assert_same, jit
from support.compiled import compiled
from support.gradients import Pair, parameter, train
from treeplay.torch_seam.schemas import KEEPS_FOR_BACKWARD
from treeplay.wrap.aot.tracing.dropout import done_as_eager, dropout_as_eager
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_noise_is_rounded_to_the_dtype_before_anything_is_multiplied_by_it(dtype: torch.dtype) -> None:
    rates = [0.1, 0.3, *(percent / 100 for percent in range(2, 100, 9))]
    weight = torch.randn(40).to(dtype).requires_grad_()
    pair = Pair(lambda w: lambda x: torch.stack([F.dropout(x - w, p, True) * p for p in rates]), weight)
    for _ in range(3):
        pair.act(train, torch.randn(40).to(dtype))
    assert pair.jitted.statistics().replays == 2


def test_noise_is_rounded_under_autocast() -> None:
    def program(net: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return F.dropout(net(x), 0.3, True).float() - x

        return run

    pair = Pair(program, nn.Linear(8, 8))
    for _ in range(3):
        pair.act(train, torch.randn(5, 8))
    assert pair.jitted.statistics().replays == 2


@pytest.mark.parametrize("is_in_place", [False, True])
def test_dropout_draws_in_the_order_of_the_strides(is_in_place: bool) -> None:
    def program(w: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: F.dropout(x.to(memory_format=torch.channels_last) - w, 0.3, True, is_in_place)

    pair = Pair(program, parameter(2, 3, 4, 5))
    for _ in range(3):
        pair.act(train, torch.randn(2, 3, 4, 5))
    assert pair.jitted.statistics().replays == 2


NOISE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "alpha dropout in place": lambda x: F.alpha_dropout(x * 2, 0.7, True, True),
    "alpha dropout of everything": lambda x: F.alpha_dropout(x, 1.0, True),
    "feature alpha dropout": lambda x: F.feature_alpha_dropout(x, 0.3, True),
    "in place": lambda x: torch.empty_like(x).bernoulli_(0.3) - x,
    "in a view": lambda x: torch.zeros_like(x)[:, ::2].bernoulli_(p=0.8) - x[:, ::2],
    "by a tensor": lambda x: torch.empty_like(x).bernoulli_(x.detach().sigmoid()) - x,
    "over what had a history": lambda x: (x * 2).bernoulli_() - x,
    "uniform": lambda x: torch.empty_like(x).uniform_() - x,
    "normal": lambda x: torch.empty_like(x).normal_() - x,
    "exponential": lambda x: torch.empty_like(x).exponential_() - x,
    "Cauchy": lambda x: torch.empty_like(x).cauchy_() - x,
    "geometric": lambda x: torch.empty_like(x).geometric_(0.3) - x,
    "log-normal": lambda x: torch.empty_like(x).log_normal_() - x,
    "integers": lambda x: torch.empty_like(x).random_(2, 90) - x,
    "integers like": lambda x: torch.randint_like(x, 9) - x,
    "multinomial": lambda x: torch.multinomial(x[0].abs(), 2) - x[0, :, :2],
}


@pytest.mark.parametrize("way", ["jit", "torch.compile"])
@pytest.mark.parametrize("name", NOISE)
def test_noise_is_drawn_in_the_order_of_the_strides(name: str, way: str) -> None:
    program = NOISE[name]
    torch.compiler.reset()
    ours = jit(program, lower="aten") if way == "jit" else compiled(program)
    for k in range(3):
        given = torch.randn(5, 6, 3).permute(2, 0, 1)
        found = []
        for call in (ours, program):
            torch.manual_seed(k)
            x = given.detach().requires_grad_()
            result = call(x)
            result.square().sum().backward()
            found.append((result, x.grad, torch.rand(2)))
        assert_same(*found)


@pytest.mark.parametrize("args", [(0.3, False), (0.0, True)])
@pytest.mark.parametrize("op", ["dropout", "alpha_dropout"])
def test_an_operator_that_drops_nothing_behind_torch_compile_gives_its_argument(
    op: str, args: tuple[float, bool]
) -> None:
    ours = compiled(lambda x: getattr(torch.ops.aten, op)(x, *args))
    x = torch.ones(3, requires_grad=True)
    assert ours(x) is x


def test_an_operator_that_is_not_told_whether_it_drops_is_refused_and_leaves_no_mark() -> None:
    program = jit(lambda x: torch.ops.aten.native_dropout(x, 0.3, None)[0] - x, lower="aten", on_refusal="eager")
    for _ in range(3):
        x = torch.ones(3, requires_grad=True)
        program(x).sum().backward()
        assert x.is_leaf and x.grad is not None
    assert "is not told whether it is on" in str(program.explain())


@pytest.mark.parametrize("p", [0.3, 0.93, 1.0])
def test_attention_drops_what_eager_drops(p: float) -> None:
    pair = Pair(lambda net: lambda x: net(x, x - 1, x * 2)[0], nn.MultiheadAttention(8, 2, p, dtype=torch.bfloat16))
    for _ in range(3):
        pair.act(train, torch.randn(4, 2, 8).bfloat16())
    assert pair.jitted.statistics().replays == 2


def test_dropout_of_a_trace_is_not_that_of_others() -> None:
    op = torch.ops.aten.dropout.default
    before = dict(op.py_kernels)
    with dropout_as_eager():
        assert op.py_kernels != before
        kernel = op.py_kernels[torch._C.DispatchKey.Autograd]
        with ThreadPoolExecutor(1) as pool:
            others = pool.submit(make_fx(lambda x: kernel(x, 0.3, True)), torch.ones(3)).result()
        own = make_fx(lambda x: kernel(x, 0.3, True))(torch.ones(3))
    assert op.py_kernels == before
    assert ["div" in graph.code for graph in (own, others)] == [True, False]


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
