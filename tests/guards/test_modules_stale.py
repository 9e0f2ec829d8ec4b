"""Modules whose mode, numbers, parts and hooks change between calls, used in any way but by calling the whole module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support import assert_same, jit, state_of
from support.follows import Story, follows


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))
        self.head = nn.Linear(3, 3)
        self.temperature = 2.0
        self.steps = 2
        self.smoothing = 0.25

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x) / self.temperature - 1

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return (self.head(self.block(x)) / self.temperature - x).pow(2).mean() - self.smoothing

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.steps):
            x = self.head(self.block(x)) / self.temperature - x
        return x

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        y = self.encode(x)
        return y * 3 - self.smoothing if self.training else y / 5


ENTRIES = ["encode", "loss", "generate", "training_step"]


@pytest.mark.parametrize("entry", ENTRIES)
@follows()
def test_eval_and_train_of_a_model_used_by_a_method(entry: str) -> Story:
    model = Model()
    yield getattr(model, entry), lambda: dict(state_of(model))
    model.eval()
    yield
    model.train()
    yield


@pytest.mark.parametrize("entry", ENTRIES)
@follows()
def test_eval_of_a_part_of_a_model(entry: str) -> Story:
    model = Model()
    yield lambda x: getattr(model, entry)(x), lambda: dict(state_of(model))
    model.block[1].eval()
    yield
    model.block[2].training = False
    yield


@pytest.mark.parametrize("entry", ENTRIES)
@follows()
def test_a_number_of_a_model_used_by_a_method(entry: str) -> Story:
    model = Model().eval()
    yield lambda x: getattr(model, entry)(x)
    model.temperature, model.steps, model.smoothing = 4.0, 3, 0.5
    yield
    model.temperature, model.steps, model.smoothing = 2.0, 2, 0.25
    yield


@pytest.mark.parametrize("entry", ENTRIES)
@follows()
def test_a_part_of_a_model_replaced(entry: str) -> Story:
    model = Model().eval()
    yield lambda x: getattr(model, entry)(x)
    model.block = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    yield


@follows(grad=True)
def test_a_model_trained_and_evaluated_by_its_methods() -> Story:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model.loss(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    yield step, lambda: list(state_of(model, optimizer))
    model.eval()
    yield
    model.train()
    model.temperature = 3.0
    yield


def _dropout(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, model.p, model.training) - 1


def _batch_norm(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(
        x, model.running_mean, model.running_var, model.weight, model.bias, model.training, model.momentum, model.eps
    )


def _layer_norm(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, model.normalized_shape, model.weight, model.bias, model.eps)


def _linear(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, model.weight, model.bias) - model.in_features


@pytest.mark.parametrize(
    ("make", "use", "changes"),
    [
        (lambda: nn.Dropout(0.5), _dropout, {"training": False}),
        (lambda: nn.Dropout(0.5), _dropout, {"p": 0.75}),
        (lambda: nn.BatchNorm1d(3), _batch_norm, {"training": False}),
        (lambda: nn.BatchNorm1d(3), _batch_norm, {"momentum": 0.5}),
        (lambda: nn.BatchNorm1d(3), _batch_norm, {"eps": 0.5}),
        (lambda: nn.LayerNorm(3), _layer_norm, {"eps": 0.5}),
        (lambda: nn.LayerNorm(3), _layer_norm, {"weight": None}),
        (lambda: nn.Linear(3, 3), _linear, {"bias": None}),
        (lambda: nn.Linear(3, 3), _linear, {"in_features": 7}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
@follows()
def test_a_module_handed_to_a_functional(make: Any, use: Any, changes: dict[str, Any]) -> Story:
    model = make()
    yield lambda x: use(model, x), lambda: dict(state_of(model))
    for name, value in changes.items():
        setattr(model, name, value)
    yield


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (lambda: nn.LayerNorm(3), "eps", 0.5),
        (lambda: nn.BatchNorm1d(3), "eps", 0.5),
        (lambda: nn.BatchNorm1d(3), "momentum", 0.5),
        (lambda: nn.BatchNorm1d(3), "track_running_stats", False),
        (lambda: nn.Dropout(0.5), "p", 0.25),
        (lambda: nn.LeakyReLU(0.5), "negative_slope", 0.125),
        (lambda: nn.ELU(1.0), "alpha", 0.5),
        (lambda: nn.GELU(), "approximate", "tanh"),
        (lambda: nn.Softmax(0), "dim", 1),
        (lambda: nn.Threshold(0.1, 20.0), "value", 3.0),
        (lambda: nn.Hardtanh(), "max_val", 0.25),
        (lambda: nn.Flatten(0), "start_dim", 1),
        (lambda: nn.CosineSimilarity(), "eps", 100.0),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@pytest.mark.parametrize("is_inner", [False, True], ids=["itself", "inside of another"])
@follows()
def test_a_setting_of_a_module_of_torch(make: Any, name: str, value: Any, is_inner: bool) -> Story:
    module = make()
    pairs = isinstance(module, nn.CosineSimilarity)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return (self.inner(x, x + 1) if pairs else self.inner(x)) - 1

    outer = Outer()
    if is_inner:
        yield outer.encode, lambda: dict(state_of(module))
    else:
        yield lambda x: module(x, x + 1) if pairs else module(x), lambda: dict(state_of(module))
    setattr(module, name, value)
    yield


@follows()
def test_the_order_of_a_sequence_of_modules() -> Story:
    layers = nn.ModuleList([nn.Linear(3, 3), nn.Tanh(), nn.Softplus()])

    def use(x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(layers):
            x = layer(x) * 2 - number
        return x

    yield use
    layers[1], layers[2] = layers[2], layers[1]
    yield
    layers.insert(0, nn.Sigmoid())
    yield
    del layers[1]
    yield


@follows()
def test_a_slice_of_a_sequence_of_modules() -> Story:
    layers = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Softplus())
    yield lambda x: layers[:2](x) - len(layers)
    layers.append(nn.Sigmoid())
    yield
    layers[1] = nn.Sigmoid()
    yield


@follows()
def test_modules_by_name_in_a_dict_of_modules() -> Story:
    heads = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Tanh()})
    chosen = {"name": "a"}
    yield lambda x: heads[chosen["name"]](x) - len(heads)
    chosen["name"] = "b"
    yield
    heads["b"] = nn.Sigmoid()
    yield
    heads["c"] = nn.Identity()
    yield


@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
@follows()
def test_the_number_that_a_hook_of_a_module_reads(kind: str) -> Story:
    model, scale = nn.Linear(3, 3), 2.0

    def after(module: nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:
        return result * scale - 1

    def before(module: nn.Module, args: Any) -> Any:
        return (args[0] * scale - 1,)

    handle = model.register_forward_hook(after) if kind == "forward" else model.register_forward_pre_hook(before)
    yield lambda x: model(x) * 2 - 1
    scale = 3.0
    yield
    handle.remove()
    yield


@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
@follows()
def test_a_hook_of_a_part_put_on_later(kind: str) -> Story:
    model = Model().eval()
    yield model.encode
    part = model.block[0]
    if kind == "forward":
        part.register_forward_hook(lambda module, args, result: result * 3 - 1)
    else:
        part.register_forward_pre_hook(lambda module, args: (args[0] * 3 - 1,))
    yield


@follows()
def test_a_forward_of_its_own_on_one_module_of_torch() -> Story:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    yield lambda x: first(x) * 2 - second(x)
    second.forward = lambda x: x * 5  # type: ignore[method-assign]
    yield
    del second.forward
    yield


@follows()
def test_a_parametrization_put_on_later() -> Story:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = 2.0

        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight * self.factor - 1

    model = nn.Linear(3, 3)
    yield lambda x: model(x) - 1
    nn.utils.parametrize.register_parametrization(model, "weight", Doubled())
    yield
    model.parametrizations["weight"][0].factor = 5.0
    yield


@follows()
def test_a_module_shared_by_two_that_is_taken_from_one() -> Story:
    shared = nn.Linear(3, 3)
    first, second = nn.Sequential(shared, nn.Tanh()), nn.Sequential(shared, nn.Sigmoid())
    yield lambda x: first(x) * 2 - second(x)
    second[0] = nn.Linear(3, 3)
    yield
    first[0] = second[0]
    yield


def test_a_setting_of_torchs_is_guarded_by_what_it_is_and_not_by_all_others() -> None:
    from torch._dynamo import config

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * (2 if config.verbose else 3) - 1

    jitted = jit(program)
    x = torch.ones(2)
    for is_verbose in (False, False, True, True, False, False):
        with config.patch(verbose=is_verbose, cache_size_limit=8 + is_verbose):
            assert_same(jitted(x), program(x))
    (key,) = jitted.statistics().keys
    assert jitted.statistics().recordings == 2
    assert [line for line in key.recordings[0].guarded if "_dynamo" in line] == ["torch._dynamo.config.verbose = False"]
