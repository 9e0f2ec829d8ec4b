"""Strategies for random programs: what they draw is a value that prints itself as the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

# --- training ---------------------------------------------------------------------------------------------------

_STATELESS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "dropout": lambda: nn.Dropout(0.3),
}
_NORMS: dict[str, Callable[[int], nn.Module]] = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
_DISTURBANCES: dict[str, Callable[[nn.Module, Any], None]] = {
    "nothing": lambda model, optimizer: None,
    "another lr": lambda model, optimizer: optimizer.param_groups[0].update(lr=0.3),
    "eval": lambda model, optimizer: model.train(False) and None,
    "weights moved": lambda model, optimizer: setattr(
        next(model.parameters()), "data", next(model.parameters()).data * 2
    ),
    "gradients gone": lambda model, optimizer: optimizer.zero_grad(),
    "state reloaded": lambda model, optimizer: optimizer.load_state_dict(optimizer.state_dict()),
    "frozen": lambda model, optimizer: setattr(next(model.parameters()), "requires_grad", False),
}


@dataclass(frozen=True)
class Training:
    """A model, an optimizer and a step over both."""

    layers: tuple[Any, ...]
    rows: int
    width: int
    image: bool
    algorithm: str
    options: tuple[tuple[str, Any], ...]
    clip: str
    zeroing: str
    disturbance: str

    def model(self) -> nn.Module:
        """Made anew, from torch's random state."""
        if self.image:
            made: list[nn.Module] = [nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Flatten()]
            width = 3 * self.width * self.width
        else:
            made, width = [], self.width
        for layer in self.layers:
            if isinstance(layer, int):
                made.append(nn.Linear(width, layer))
                width = layer
            else:
                if layer == "relu in place":  # what it overwrites, the layer before must not need
                    made.append(nn.Linear(width, width))
                made.append(_NORMS[layer](width) if layer in _NORMS else _STATELESS[layer]())
        return nn.Sequential(*made, nn.Linear(width, 2))

    def optimizer(self, params: Any) -> torch.optim.Optimizer:
        return _OPTIMIZERS[self.algorithm](params, **dict(self.options))

    def batch(self) -> torch.Tensor:
        return torch.randn(self.rows, 2, self.width, self.width) if self.image else torch.randn(self.rows, self.width)

    def disturb(self, model: nn.Module, optimizer: Any) -> None:
        """Something between two calls."""
        _DISTURBANCES[self.disturbance](model, optimizer)

    def step(self, model: nn.Module, optimizer: Any) -> Callable[..., Any]:
        """The program."""

        def step(x: torch.Tensor) -> Any:
            if self.zeroing != "end":
                optimizer.zero_grad(set_to_none=self.zeroing == "start none")
            out = model(x)
            loss = (out - 1).pow(2).mean()
            loss.backward()
            norm = None
            if self.clip == "norm":
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            elif self.clip == "value":
                nn.utils.clip_grad_value_(model.parameters(), 0.1)
            optimizer.step()
            if self.zeroing == "end":
                optimizer.zero_grad()
            return {"loss": loss.detach(), "out": out.detach(), "norm": norm}

        return step


@st.composite
def training_programs(draw: st.DrawFn) -> Training:
    """Training steps of small models."""
    layer = st.one_of(st.integers(1, 5), st.sampled_from([*_STATELESS, *_NORMS]))
    algorithm = draw(st.sampled_from(list(_OPTIMIZERS)))
    options: dict[str, Any] = {
        "lr": draw(st.sampled_from([0.1, 0.01])),
        "weight_decay": draw(st.sampled_from([0.0, 0.1])),
        "foreach": draw(st.booleans()),
    }
    if algorithm in ("sgd", "rmsprop"):
        options["momentum"] = draw(st.sampled_from([0.0, 0.9]))
    if algorithm in ("adam", "adamw"):
        options["amsgrad"] = draw(st.booleans())
    if algorithm == "rmsprop":
        options["centered"] = draw(st.booleans())
    return Training(
        layers=tuple(draw(st.lists(layer, max_size=4))),
        rows=draw(st.integers(2, 5)),
        width=draw(st.integers(1, 4)),
        image=draw(st.booleans()),
        algorithm=algorithm,
        options=tuple(options.items()),
        clip=draw(st.sampled_from(["none", "norm", "value"])),
        zeroing=draw(st.sampled_from(["start none", "start zero", "end"])),
        disturbance=draw(st.sampled_from(list(_DISTURBANCES))),
    )


# --- views and writes -------------------------------------------------------------------------------------------

_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tail": lambda t: t[1:],
    "head": lambda t: t[:2],
    "every second": lambda t: t[::2],
    "flat": lambda t: t.reshape(-1),
    "turned": lambda t: t.t() if t.dim() == 2 else t,
    "column": lambda t: t.unsqueeze(-1),
    "row": lambda t: t.unsqueeze(0),
    "last": lambda t: t.select(0, -1),
    "detached": lambda t: t.detach(),
    "wide": lambda t: t.unsqueeze(0).expand(2, *t.shape),
}
_PURE: dict[str, Callable[..., torch.Tensor]] = {
    "subtract": lambda a, b: a.sum() - 2 * b,
    "multiply": lambda a, b: a * 3 - b.sum(),
    "cumulate": lambda a, b: a.cumsum(0) if a.dim() else a + 1,
    "copy": lambda a, b: a.clone(),
    "reverse": lambda a, b: a.flip(0) if a.dim() else -a,
    "stack": lambda a, b: torch.stack([a, a * 2]),
    "join": lambda a, b: torch.cat([a.reshape(-1), b.reshape(-1)]),
    "where": lambda a, b: torch.where(a > 0, a, b.sum()),
    "zeros": lambda a, b: torch.zeros_like(a),
    "sort": lambda a, b: a.sort(0).values if a.dim() else a,
}
_WRITES: dict[str, Callable[..., Any]] = {
    "add_": lambda a, b: a.add_(b.sum()),
    "mul_": lambda a, b: a.mul_(2),
    "fill_": lambda a, b: a.fill_(3),
    "copy_": lambda a, b: a.copy_(b.sum()),
    "sub_ itself": lambda a, b: a.sub_(a.sum() * 0.5),
    "set an item": lambda a, b: a.__setitem__(0, b.sum()) if a.dim() else a.zero_(),
    "set a slice": lambda a, b: a.__setitem__(slice(1, None), 7.0) if a.dim() else a.neg_(),
    "clamp_": lambda a, b: a.clamp_(-3, 3),
    "foreach": lambda a, b: torch._foreach_mul_([a], 2.0),
    "swap": lambda a, b: a.copy_(a.flip(0).clone()) if a.dim() else a,
}


@dataclass(frozen=True)
class Inference:
    """Slices of one piece of memory as arguments, some state, operators over all of them, and what is returned.

    Each operation is (name, index of its first operand, index of its second): indices count what there is so far,
    round and round.
    """

    length: int
    slices: tuple[tuple[int, int], ...]
    operations: tuple[tuple[str, int, int], ...]
    results: tuple[int, ...]

    def state(self) -> list[torch.Tensor]:
        """Two tensors of which the second is a view of a third."""
        return [torch.arange(4.0), torch.arange(6.0).view(2, 3)]

    def arguments(self, base: torch.Tensor) -> list[torch.Tensor]:
        """Slices of `base`; equal slices are one and the same tensor."""
        made = {piece: base[piece[0] : piece[1]] for piece in self.slices}
        return [made[piece] for piece in self.slices]

    @property
    def results_are_fresh(self) -> bool:
        """Whether nothing that is returned can be written to by a later call: no views of state or arguments."""
        return all(name in _PURE for name, _, _ in self.operations) and min(self.results) >= len(self.slices) + 2

    def over(self, state: list[torch.Tensor]) -> Callable[..., Any]:
        """The program over `state`."""

        def program(*args: torch.Tensor) -> list[torch.Tensor]:
            values = [*args, *state]
            for name, first, second in self.operations:
                a, b = values[first % len(values)], values[second % len(values)]
                if name in _VIEWS:
                    values.append(_VIEWS[name](a) if a.dim() else a)
                elif name in _PURE:
                    values.append(_PURE[name](a, b))
                else:
                    _WRITES[name](a, b)
            return [values[index % len(values)] for index in self.results]

        return program


@st.composite
def inference_programs(draw: st.DrawFn) -> Inference:
    """Programs of views, pure operators and writes."""
    length = draw(st.integers(4, 10))
    starts = st.integers(0, length - 2)
    slices = []
    for _ in range(draw(st.integers(1, 3))):
        start = draw(starts)
        slices.append((start, draw(st.integers(start + 1, length))))
    index = st.integers(0, 12)
    operation = st.tuples(st.sampled_from([*_VIEWS, *_PURE, *_WRITES]), index, index)
    return Inference(
        length=length,
        slices=tuple(slices),
        operations=tuple(draw(st.lists(operation, min_size=1, max_size=8))),
        results=tuple(draw(st.lists(index, min_size=1, max_size=3))),
    )
