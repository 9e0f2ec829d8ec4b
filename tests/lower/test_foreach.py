"""Steps of optimizers over lists of tensors, where a stream is captured: eager's values, in few kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support import assert_same, call_of
from support.compiled import SeenOperators
from treeplay.lower.foreach import ON_LISTS
from treeplay.lower.stream import lower_for_stream
from treeplay.trace.jit import trace
from treeplay.wrap.found import current_inputs

LAYERS = 12
VIEWS = ("view", "reshape", "unbind", "select", "unsqueeze", "aten.t.", "detach", "expand", "alias", "transpose")


def make(name: str, dtype: torch.dtype, **options: Any) -> tuple[Callable[[Tensor], Tensor], Any]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(LAYERS))).to(dtype)
    optimizer = getattr(torch.optim, name)(model.parameters(), foreach=True, **options)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "options", "most"),  # operators for each parameter, of which the forward and the backward have five
    [
        ("AdamW", {}, 9),
        ("Adam", {"amsgrad": True, "weight_decay": 0.1}, 9),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, 6),
        ("SGD", {"lr": 0.1, "weight_decay": 0.1}, 6),
        ("RMSprop", {"momentum": 0.5, "centered": True}, 7),
        ("Adagrad", {"lr_decay": 0.1}, 9),
        ("Adadelta", {}, 7),
        ("Adamax", {}, 9),
        ("NAdam", {}, 22),
    ],
)
def test_a_step_is_eagers_in_few_operators(name: str, options: dict[str, Any], most: int, dtype: torch.dtype) -> None:
    step, optimizer = make(name, dtype, **options)
    x = torch.randn(4, 3, dtype=dtype)
    for _ in range(3):
        step(x)
    optimizer.param_groups[0]["lr"] = 0.0123
    made = trace(step, call_of(x))
    theirs = current_inputs(made.signature, call_of(x))
    mine = [tensor.detach().clone() for tensor in theirs]
    run = lower_for_stream(made.graph, torch.device("cpu")).run
    with SeenOperators() as log:
        run(list(mine), [number.value for number in made.signature.numbers])
    step(x)
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-15, torch.bfloat16: 3e-2}[dtype]
    for found, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=tolerance, atol=tolerance)
    if dtype is torch.float32 and not options:  # with some, eager adds a multiple without rounding it first
        assert_same(mine, [tensor.detach() for tensor in theirs])
    if dtype is not torch.bfloat16:
        called = Counter(op for op in log.seen if not any(view in op for view in VIEWS))
        assert called.total() <= most * 2 * LAYERS, called


def lists(*dtypes: torch.dtype) -> list[Tensor]:
    return [torch.arange(1, 4).to(dtype) + at for at, dtype in enumerate(dtypes)]


@pytest.mark.parametrize("op", ON_LISTS, ids=str)
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.float32, torch.float64)], ids=["one", "two"])
def test_each_operator_does_with_a_tensor_what_it_does_with_a_number(op: Any, dtypes: tuple[torch.dtype, ...]) -> None:
    arguments = op._schema.arguments
    tensors = [lists(*dtypes) for argument in arguments if str(argument.type) == "List[Tensor]"]
    number = arguments[len(tensors)]
    plain: Any = [0.3, 0.7] if "List" in str(number.type) else 0.3
    symbolic: Any = [torch.tensor(each, dtype=torch.float64) for each in plain] if isinstance(plain, list) else None
    symbolic = torch.tensor(plain, dtype=torch.float64) if symbolic is None else symbolic
    mine, theirs = ([[tensor.clone() for tensor in each] for each in tensors] for _ in range(2))

    def called(run: Callable[..., Any], of: list[list[Tensor]], value: Any) -> Any:
        return run(*of, **{number.name: value}) if number.kwarg_only else run(*of, value)

    found, expected = called(ON_LISTS[op], mine, symbolic), called(op, theirs, plain)
    if expected is None:
        assert found is None
    else:
        torch.testing.assert_close(list(found), list(expected))
    for left, right in zip(mine, theirs, strict=True):
        torch.testing.assert_close(left, right)
    torch.testing.assert_close(called(ON_LISTS[op], mine, plain), called(op, theirs, plain))  # as it is
