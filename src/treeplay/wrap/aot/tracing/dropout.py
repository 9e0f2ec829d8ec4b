"""Dropout and recurrent layers as eager does them, where torch's tracing takes them apart in another way.

    dropout that is off            its argument: the very tensor, so that a write to one is a write to both
    dropout of everything          zeros, and no random numbers are drawn
    other dropout on the CPU       a product with noise, which is rounded to the tensor's dtype, and by which the gradient is
                                   multiplied too. A trace by itself would use the operator of other devices, which scales by
                                   1 / (1 - p), and in place it would draw in another order where strides are not contiguous
    noise of zeros and ones        `bernoulli_`, of which alpha dropout is made, draws in an order that depends on the strides.
                                   A trace by itself would draw as where they are contiguous
    recurrent layers on the CPU    eager's operators. A trace by itself would not use the library's kernel for LSTMs where the
                                   input needs a gradient, but a dozen operators for each step of the sequence
    other recurrent layers         one layer at a time, with the dropout between them; a trace by itself would leave it out

        lstm(x, [h, c], weights, num_layers=2, dropout=p)
          ─▶  x = dropout(lstm(x, [h[0], c[0]], weights of the first layer), p);  lstm(x, [h[1], c[1]], the others)

On the CPU that draws the numbers that eager draws.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from treeplay.observe.lines import user_location
from treeplay.torch_seam.modes import as_eager
from treeplay.torch_seam.operators import written_out
from treeplay.torch_seam.patched import all_wanted
from treeplay.torch_seam.schemas import leaves_of
from treeplay.torch_seam.symbols import has_symbols
from treeplay.wrap.aot.tracing.findings import refusal_to_wrap

_PLAIN = {torch.dropout: ("input", "p", "train"), torch.nn.functional.dropout: ("input", "p", "training", "inplace")}
_DEFAULTS: dict[str, Any] = {"p": 0.5, "training": True, "inplace": False}
_NATIVE = (torch.native_dropout, torch.ops.aten.native_dropout, torch.ops.aten.native_dropout.default)
_LAYERS = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
_REST = ("params", "has_biases", "num_layers", "dropout", "train", "bidirectional")
_PADDED = ("input", "hx", *_REST, "batch_first")
_PACKED = ("data", "batch_sizes", "hx", *_REST)


def done_as_eager(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What eager's call of `func` would return; None where a trace gets that right by itself."""
    if func in _PLAIN:
        return _dropout({**dict(zip(_PLAIN[func], args, strict=False)), **kwargs})
    if func in _NATIVE and None in (*args[2:], kwargs.get("train", True)):
        why = "is not told whether it is on: eager drops, and gives other gradients than where it is told"
        raise refusal_to_wrap("native_dropout", why, user_location(), "pass True or False for `train`")
    if func in _LAYERS:
        is_packed = "batch_sizes" in kwargs or (len(args) > 3 and isinstance(args[3], (list, tuple)))
        names = _PACKED if is_packed else _PADDED
        return _layers(func, {**dict(zip(names, args, strict=False)), **kwargs})
    return None


def _dropout(given: Mapping[str, Any]) -> torch.Tensor | None:
    given = {**_DEFAULTS, **given}
    tensor, p, is_on = given["input"], given["p"], given.get("train", given["training"])
    if not isinstance(tensor, torch.Tensor) or not 0 <= p <= 1:
        return None  # an error, which torch tells
    return tensor if not is_on or p == 0 or tensor.numel() == 0 else None


_ALPHA = 1.7580993408473766
"""What alpha dropout gives for what it drops, but for the sign: torch's own constant."""


_Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _dropped_by(draw: Callable[[torch.Tensor, float], torch.Tensor | None]) -> Callable[..., Any]:
    """Dropout that is on as `draw` gives it; None where torch's own will do."""

    def make(original: Callable[..., Any], is_wanted: Callable[[], Any]) -> Callable[..., Any]:
        def dropout(tensor: torch.Tensor, p: float, train: bool | None) -> Any:
            if not is_wanted():
                return original(tensor, p, train)
            if p == 0 or not train:
                return tensor
            dropped = draw(tensor, p)
            return original(tensor, p, train) if dropped is None else dropped

        return dropout

    return make


def _product(multiply: _Multiply, tensor: torch.Tensor, p: float) -> torch.Tensor | None:
    if p == 1:
        return multiply(tensor, tensor.new_zeros(()))  # a NaN stays one
    if tensor.device.type != "cpu":
        return None
    _, kept = torch.native_dropout(tensor, p, True)  # which draws as eager does, whatever the strides
    return multiply(tensor, kept.to(tensor.dtype).div(1 - p))


def _alpha(multiply: _Multiply, tensor: torch.Tensor, p: float) -> torch.Tensor | None:
    if p == 1 or tensor.device.type != "cpu":
        return None
    kept = bernoulli_(torch.empty_like(tensor, requires_grad=False), 1 - p)
    a = 1 / math.sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
    shift = kept.add(-1).mul(_ALPHA * a).add(_ALPHA * a * p)
    return multiply(tensor, kept.mul(a)).add_(shift)


def bernoulli_(tensor: torch.Tensor, p: float = 0.5) -> torch.Tensor:
    """Zeros and ones, drawn in the order in which eager draws them into a tensor of these strides on the CPU."""
    like = torch.empty_like(tensor, dtype=torch.float32, requires_grad=False)
    return tensor.copy_(torch.native_dropout(like, 1 - p, True)[1])


def in_eagers_order(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """`func`, or what draws its numbers in eager's order where a trace would draw as if strides were contiguous."""
    if func is not torch.Tensor.bernoulli_ or args[0].device.type != "cpu" or args[0].is_contiguous():
        return func
    p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    is_rate = type(p) in (int, float) and 0 <= p <= 1 and kwargs.get("generator") is None
    return bernoulli_ if is_rate else func


_WRITTEN_OUT = (
    written_out(torch.ops.aten.dropout.default, _dropped_by(partial(_product, torch.mul))),
    written_out(torch.ops.aten.dropout_.default, _dropped_by(partial(_product, torch.Tensor.mul_))),
    written_out(torch.ops.aten.alpha_dropout.default, _dropped_by(partial(_alpha, torch.mul))),
    written_out(torch.ops.aten.alpha_dropout_.default, _dropped_by(partial(_alpha, torch.Tensor.mul_))),
)


def dropout_as_eager() -> contextlib.AbstractContextManager[None]:
    """For a block that torch traces, in this thread: dropout, and the noise of others of its kind, is written out in operators
    as eager does it."""
    return all_wanted(_WRITTEN_OUT)


def _layers(func: Callable[..., Any], given: dict[str, Any]) -> Any:
    if "input" in given and given["input"].device.type == "cpu" and not has_symbols(leaves_of(given)):
        with as_eager():
            return func(**given)
    if not given["dropout"] or not given["train"] or given["num_layers"] < 2:
        return _of_eagers_shape(func(**given), given["hx"]) if func is torch.lstm else None
    directions = 2 if given["bidirectional"] else 1
    count = len(given["params"]) // given["num_layers"]
    source = "data" if "data" in given else "input"
    x, turned = given[source], given.pop("batch_first", False)
    x = x.transpose(0, 1) if turned else x
    options = {} if source == "data" else {"batch_first": False}
    states = []
    for layer in range(given["num_layers"]):
        x = torch.dropout(x, given["dropout"], True) if layer else x
        rows, weights = slice(layer * directions, (layer + 1) * directions), slice(layer * count, (layer + 1) * count)
        before = _rows(given["hx"], rows)
        part = {source: x, "hx": before, "params": given["params"][weights]}
        x, *after = _of_eagers_shape(func(**given | part | {"num_layers": 1, "dropout": 0.0} | options), before)
        states.append(after)
    return (x.transpose(0, 1) if turned else x, *(torch.cat(each) for each in zip(*states, strict=True)))


def _of_eagers_shape(result: Sequence[torch.Tensor], before: Any) -> tuple[torch.Tensor, ...]:
    """A layer's result, with states of the shape of those `before`: a trace by torch 2.11 gives some one dimension more."""
    x, *after = result
    likes = before if isinstance(before, (list, tuple)) else [before]
    return (x, *(state.reshape(like.shape) for state, like in zip(after, likes, strict=True)))


def _rows(state: Any, which: slice) -> Any:
    return [part[which] for part in state] if isinstance(state, (list, tuple)) else state[which]
