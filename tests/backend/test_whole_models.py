"""Models that need more than a graph run compiled, without a warning, and do what they do in eager mode."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from support.compiled import Inner, new_reports
from treeplay.errors import UsageError
from treeplay.torch_compile import backend
from wrap.aot.effects import LOG, twice
from wrap.aot.oracle import device as current_device
from wrap.aot.oracle import numbers, same
from wrap.aot.pairs import Pair, pair

EACH = pytest.mark.usefixtures("on_each_device")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def no_fallback() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="treeplay runs")
        yield


def train(program: Callable[..., Any], net: nn.Module, batches: list[torch.Tensor]) -> list[Any]:
    """Losses of a few steps."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = program(batch).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def agree(net: nn.Module, batches: list[torch.Tensor], **options: Any) -> Inner:
    """Train a model compiled and a copy of it in eager mode, and compare all that remains."""
    inner, twin = Inner(), copy.deepcopy(net)
    torch.manual_seed(5)
    wanted = train(twin, twin, batches)
    torch.manual_seed(5)
    run = torch.compile(net, backend=backend, options={"inner": options.pop("inner", inner)}, **options)
    found = train(run, net, batches)
    for k, (left, right) in enumerate(zip(wanted, found, strict=True)):
        same(f"loss {k}", left, right)
    for (name, left), (_, right) in zip(twin.state_dict().items(), net.state_dict().items(), strict=True):
        same(name, left, right)
    return inner


class Paired(nn.Module):
    """Two layers whose weights are made of two tensors each."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(pair(3, 4) / 5)
        self.second = nn.Parameter(pair(4, 2) / 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.first) @ self.second


def batches(*size: int, count: int = 3) -> list[torch.Tensor]:
    return [numbers(*size) / 3 + k for k in range(count)]


@EACH
def test_W15_a_model_with_parameters_made_of_tensors_trains() -> None:
    net = Paired()
    inner = agree(net, batches(5, 3))
    assert len(inner.graphs) == 2 and isinstance(net.first.grad, Pair)


@pytest.mark.compile
def test_W15_the_same_with_inductor() -> None:
    agree(Paired(), batches(5, 3), inner="inductor")


@EACH
def test_W15_a_model_with_parameters_made_of_tensors_in_inference() -> None:
    net, inner = Paired(), Inner()
    run = torch.compile(net, backend=backend, options={"inner": inner})
    with torch.no_grad():
        for batch in batches(5, 3):
            same("result", net(batch), run(batch))
    assert len(inner.graphs) == 1


class Deep(nn.Module):
    """A parameter made of tensors that are made of tensors, three deep, and one that stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        deep = [Pair(pair(3, 2) / (k + 2), pair(3, 2) * k / 9) for k in (1, 2)]
        self.weight = nn.Parameter(Pair(*deep))
        self.register_buffer("scale", pair(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight)


@EACH
def test_W15_parameters_made_of_nested_tensors_train() -> None:
    agree(Deep(), batches(5, 3))


@EACH
def test_W15_parameters_made_of_tensors_that_are_frozen_stay_as_they_are() -> None:
    net = Paired()
    net.first.requires_grad_(False)
    before = net.first.a.clone(), net.first.b.clone()
    inner = agree(net, batches(5, 3))
    assert len(inner.graphs) == 2 and net.first.grad is None and type(net.second.grad) is Pair
    assert torch.equal(net.first.a, before[0]) and torch.equal(net.first.b, before[1])


class Checkpointed(nn.Module):
    """A layer with dropout whose inside is computed again in the backward."""

    def __init__(self, dropouts: int = 1) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 6)
        self.dropouts = dropouts

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sin(self.first(x))
        for _ in range(self.dropouts):
            x = nn.functional.dropout(x, 0.4)
        return self.second(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inside, x, use_reentrant=False) * 2


@pytest.mark.parametrize("dropouts", [1, 3])
@pytest.mark.parametrize("device", DEVICES)
def test_W18_checkpointed_dropout_is_eagers_bit_for_bit(dropouts: int, device: str) -> None:
    torch.manual_seed(0)
    inner = agree(Checkpointed(dropouts).to(device), [batch.to(device) for batch in batches(4, 6)])
    assert len(inner.graphs) == 2


@pytest.mark.parametrize("inner", ["aten", "inductor"])
@pytest.mark.parametrize("device", DEVICES)
def test_W18_the_mask_of_the_gradient_is_that_of_the_result(inner: str, device: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: nn.functional.dropout(x.sin(), 0.5).cos(), x, use_reentrant=False)

    run = torch.compile(program, backend=backend, options={"inner": inner})
    for seed in range(3):
        torch.manual_seed(seed)
        x = numbers(40).to(device).requires_grad_()
        y = run(x)
        torch.rand(7, device=device)  # others draw too
        y.sum().backward()
        is_dropped = y.detach() == 1.0
        assert 0 < is_dropped.sum() < 40 and torch.equal(is_dropped, x.grad == 0)


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrized_weights_train(kind: str) -> None:
    torch.manual_seed(0)
    make = getattr(nn.utils.parametrizations, kind)
    agree(nn.Sequential(make(nn.Linear(6, 8)), nn.Tanh(), make(nn.Linear(8, 6))), batches(4, 6))


@pytest.mark.parametrize("inner", ["aten", "inductor"])
def test_W19_operators_with_side_effects(inner: str) -> None:
    effects = torch._higher_order_ops.effects
    op = torch.ops.treeplay_tests.logged.default
    handle = effects._register_effectful_op(op, effects._EffectType.ORDERED)
    LOG.clear()
    try:
        run = torch.compile(twice, backend=backend, options={"inner": inner})
        for grad in (False, True):
            x = numbers(3, grad=grad)
            (y,) = run(x)
            same("result", twice(x.detach())[0], y.detach())
            assert LOG[:2] == LOG[2:]
            LOG.clear()
        y.sum().backward()
        assert len(LOG) == 2
    finally:
        if handle is not None:
            handle.destroy()


def test_D29_effects_on_the_host_are_not_recorded() -> None:
    options = {"inner": "aten", "record_or_fail": True}
    run = torch.compile(Checkpointed(), backend=backend, options=options)
    with pytest.raises(Exception, match="has an effect on the host"):
        run(numbers(4, 6))
    effects = torch._higher_order_ops.effects
    handle = effects._register_effectful_op(torch.ops.treeplay_tests.logged.default, effects._EffectType.ORDERED)
    try:
        with pytest.raises(Exception, match="with_effects: has an effect on the host"):
            torch.compile(twice, backend=backend, options=options)(numbers(3))
    finally:
        if handle is not None:
            handle.destroy()


@EACH
def test_W38_jagged_nested_tensors_run_as_they_are_with_a_warning() -> None:
    net = nn.Linear(4, 3).to(current_device())
    rows = [torch.nested.nested_tensor([numbers(k, 4), numbers(3, 4)], layout=torch.jagged) for k in (2, 5)]
    run = torch.compile(lambda t: net(t).sin(), backend=backend, options={"inner": "aten"})
    for given in rows:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="treeplay runs")
            found = run(given)
        same("values", net(given).sin().values(), found.values())


@EACH
def test_W38_gradients_of_jagged_nested_tensors() -> None:
    net = nn.Linear(4, 3).to(current_device())
    run = torch.compile(lambda t: net(t).sin(), backend=backend, options={"inner": "aten"})
    for count in (2, 5):
        rows = [numbers(count, 4), numbers(3, 4)]
        found = []
        for program in (lambda t: net(t).sin(), run):
            net.zero_grad()
            given = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="treeplay runs")
                result = program(given)
            result.backward(torch.ones_like(result) * 2)
            found.append([given.grad.values(), net.weight.grad.clone()])
        for name, eager, ours in zip(("input", "weight"), *found, strict=True):
            same(f"gradient of the {name}", eager, ours)


@EACH
def test_W38_a_gradient_of_another_class_is_told_with_the_line_of_its_result() -> None:
    def program(x: Any) -> Any:
        y = x * 2
        return y.sin()  # this line

    run = torch.compile(program, backend=backend, options={"inner": "aten"})
    with pytest.raises(
        UsageError, match=r"output 0 .*made at .*test_whole_models.py:\d+ in program.*expected Pair.*detach"
    ):
        run(pair(2, 3, grad=True)).backward(numbers(2, 3))


class Stashed(torch.autograd.Function):
    """Keeps a tensor without telling autograd."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.w = w
        return x * w

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.w, None


@EACH
@pytest.mark.parametrize("turned", [False, True])
def test_W35_a_tensor_stashed_on_a_custom_functions_context_may_change_as_in_eager(turned: bool) -> None:
    """What was computed from it before is not computed again from what it became."""

    def program(x: Any, w: Any) -> Any:
        return (Stashed.apply(x, w).sin() * (w.t().exp().t() if turned else 2.0)) * x

    run, found = torch.compile(program, backend=backend, options={"inner": "aten"}), []
    for function in (program, run):
        x, w = (numbers(2, 3) / 4).requires_grad_(), numbers(2, 3) / 4
        y = function(x, w)
        w.add_(1)
        y.sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


@EACH
def test_W44_what_hooks_keep_of_recorded_steps_stays_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(current_device())
    twin = copy.deepcopy(net)
    run = torch.compile(net, backend=backend, options={"inner": "aten"})
    kept: list[torch.Tensor] = []
    copies: list[torch.Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda t: (kept.append(t), copies.append(t.clone()), t)[-1], lambda t: t
    )
    for batch in batches(5, 3, count=5):
        with hooks:
            result = run(batch)
        result.square().sum().backward()
        twin(batch).square().sum().backward()
    assert len(kept) >= 5 * 3 and all(map(torch.equal, kept, copies))
    for mine, eagers in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, eagers.grad)
    for report in new_reports() if current_device() == "cuda" else ():
        assert report.launch.stage == "recorded" and report.launch.launches >= 3, report


@EACH
def test_W45_a_model_trained_under_compiled_autograd_is_eagers() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(current_device())
    with warnings.catch_warnings(), torch._dynamo.config.patch(compiled_autograd=True):
        warnings.simplefilter("ignore")
        agree(net, batches(5, 3), inner="aten")
