"""Tensors in the memory of others that are no views for autograd: detached ones, `x.data`, the parts of unsafe splits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

import treeplay

Program = Callable[[torch.Tensor], Any]


def both(x: torch.Tensor) -> Any:
    d = x.detach()
    return d, d[1:], x[1:], d.view(-1)


def new(x: torch.Tensor) -> Any:
    y = x.detach() * 3 - 1
    return y, y.detach(), y[1:], y.detach()[1:]


def new_in_another_order(x: torch.Tensor) -> Any:
    y = x.detach() * 3 - 1
    d = y.detach()
    return d[1:], y[1:], y[1:].detach(), d, y


def data_of_data(x: torch.Tensor) -> Any:
    d = x.data
    return d, d.detach(), d.data, d[1:]


def without_gradients(x: torch.Tensor) -> Any:
    with torch.no_grad():
        return x.detach(), x[1:].detach(), x.data


PROGRAMS: dict[str, Program] = {
    "detach": lambda x: (x.detach(),),
    "view of detach": lambda x: (x.detach()[1:],),
    "detach of view": lambda x: (x[1:].detach(),),
    "leaf": lambda x: (x.detach().requires_grad_(),),
    "data": lambda x: (x.data, x),
    "data of view": lambda x: (x[1:].data, x.data[1:]),
    "data of data": data_of_data,
    "both": both,
    "new": new,
    "new in another order": new_in_another_order,
    "data of new": lambda x: (lambda y: (y, y.data))(x.detach() * 3 - 1),
    "unsafe split": lambda x: (torch.unsafe_split(x.detach(), 2), torch.unsafe_chunk(x.detach(), 2)),
    "no_grad": without_gradients,
}
KINDS = ("plain", "leaf", "view")
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def tensors_of(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [tensor for part in value for tensor in tensors_of(part)]


def an_input(kind: str) -> torch.Tensor:
    if kind == "view":
        return torch.arange(24.0).view(8, 3)[2:6]
    return torch.arange(12.0).view(4, 3).requires_grad_(kind == "leaf")


def seen(tensor: torch.Tensor) -> Any:
    try:
        return tensor.requires_grad, tensor.is_leaf, tensor._is_view(), tensor._version, tensor.tolist()
    except RuntimeError as error:
        return str(error)[:40]


def told_of(action: Callable[[], object], tensors: list[torch.Tensor]) -> Any:
    """What becomes of all of them when one is used: which others get a history, whose versions move, what is raised."""
    if any(tensor.is_inference() for tensor in tensors):  # outside of the mode nothing may be done with them
        return [(tensor.is_inference(), tensor.tolist()) for tensor in tensors]
    try:
        action()
        error = ""
    except RuntimeError as raised:
        error = str(raised)[:40]
    return error, [seen(tensor) for tensor in tensors]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_caller_does_to_one_reaches_those_that_it_reaches_in_eager(name: str, kind: str, mode: str) -> None:
    program = PROGRAMS[name]
    jitted: Any = treeplay.jit(lambda x: program(x), lower="aten", on_refusal="raise")
    if mode == "inference" and name == "unsafe split":
        pytest.skip("eager takes it apart there, and a trace sees it whole")

    def story(call: Program, at: int, how: str) -> Any:
        x, w = an_input(kind), torch.full((), 2.0, requires_grad=True)
        with MODES[mode]():
            tensors = [*tensors_of(call(x)), x]
        target = tensors[at % len(tensors)]
        actions: dict[str, Callable[[], object]] = {
            "written": lambda: target.mul_(w),
            "detached": target.detach_,
            "marked": lambda: target.requires_grad_().mul(3).sum().backward(),
        }
        return told_of(actions[how], tensors)

    for _ in range(2):
        with MODES[mode]():
            jitted(an_input(kind))
    for at in range(len(tensors_of(program(an_input(kind)))) + 1):
        for how in ("written", "detached", "marked"):
            assert story(jitted, at, how) == story(program, at, how), (at, how)
    assert jitted.statistics().replays > 3


def test_a_detached_tensor_in_state_gets_no_history() -> None:
    class Keeps:
        kept: torch.Tensor | None = None

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            self.kept = x.detach()
            return x * 3 - 1

    keeps = Keeps()
    jitted: Any = treeplay.jit(keeps, lower="aten", on_refusal="raise")
    for _ in range(4):
        x, w = torch.ones(3), torch.full((3,), 2.0, requires_grad=True)
        jitted(x)
        x.mul_(w)
        assert keeps.kept is not None and not keeps.kept.requires_grad
        (x * keeps.kept).sum().backward()
        assert w.grad is not None and w.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_write_to_the_data_of_parameters_is_none_to_what_is_saved_for_a_backward() -> None:
    layer = torch.nn.Linear(2, 2)
    jitted: Any = treeplay.jit(lambda: [p.data for p in layer.parameters()], lower="aten", on_refusal="raise")
    for _ in range(4):
        given = jitted()
        loss = layer(torch.ones(1, 2, requires_grad=True)).square().sum()
        for data in given:
            data.mul_(1.0)
        loss.backward()
        assert [data.data_ptr() for data in given] == [p.data_ptr() for p in layer.parameters()]
    assert jitted.statistics().replays >= 2


def test_opaque_programs_give_detached_tensors_as_well() -> None:
    jitted: Any = treeplay.jit(lambda x: (x.detach(), x.data), lower="capture", on_refusal="raise")
    for _ in range(4):
        x, w = torch.ones(3), torch.full((3,), 2.0, requires_grad=True)
        detached, data = jitted(x)
        version = x._version
        x.mul_(w)
        assert not detached.requires_grad and not data.requires_grad
        assert (detached._version, data._version) == (version + 1, 0)


def data_and_itself(x: torch.Tensor) -> None:
    x.data.mul_(3)
    x.sub_(1)


def data_of_a_view(x: torch.Tensor) -> None:
    x[1:].data.mul_(3).sub_(1)


def lists_of_data(x: torch.Tensor) -> None:
    torch._foreach_mul_([x.data], 3.0)


def statistics(x: torch.Tensor) -> None:
    torch.nn.functional.batch_norm(torch.ones(2, 3), x, torch.ones(3), training=True)


WRITES: dict[str, Callable[[torch.Tensor], None]] = {
    "data and itself": data_and_itself,
    "data of a view": data_of_a_view,
    "lists of data": lists_of_data,
    "detached": lambda x: x.detach().mul_(3).sub_(1),
    "statistics": statistics,
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_moves_the_versions_that_eagers_moves(name: str) -> None:
    jitted: Any = treeplay.jit(lambda x: WRITES[name](x), lower="aten", on_refusal="raise")
    for _ in range(4):
        mine, eagers = torch.arange(3.0), torch.arange(3.0)
        both = [(one, one[1:], one.data) for one in (mine, eagers)]
        jitted(mine)
        WRITES[name](eagers)
        assert torch.equal(mine, eagers)
        ours, theirs = ([tensor._version > 0 for tensor in tensors] for tensors in both)
        assert ours == theirs
    assert jitted.statistics().replays >= 2


def test_what_a_loss_has_saved_may_be_written_through_data() -> None:
    jitted: Any = treeplay.jit(lambda x: x.data.mul_(3).sub_(1), lower="aten", on_refusal="raise")
    for _ in range(4):
        x, w = torch.ones(3), torch.full((3,), 2.0, requires_grad=True)
        loss = (w * x).sum()
        jitted(x)
        loss.backward()
        assert w.grad is not None and w.grad.tolist() == [2.0, 2.0, 2.0]


def taken_with(x: torch.Tensor) -> Any:
    with torch.enable_grad():
        y = x.detach() * 3 - 1
        return x[1:], x.detach()[1:], y[1:]


def taken_without(x: torch.Tensor) -> Any:
    with torch.no_grad():
        return x[1:], x.detach()[1:]


def may_be_written(view: torch.Tensor) -> bool:
    try:
        view.mul_(torch.tensor(2.0, requires_grad=True))
    except RuntimeError as error:
        assert "no_grad mode" in str(error)
        return False
    return view.requires_grad


@pytest.mark.parametrize("around", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("is_tracked", [False, True])
@pytest.mark.parametrize(("program", "count"), [(taken_with, 3), (taken_without, 2)])
def test_a_view_may_get_a_history_where_it_was_taken_with_gradients_on(
    program: Program, count: int, is_tracked: bool, around: Callable[[], AbstractContextManager[Any]]
) -> None:
    jitted: Any = treeplay.jit(program, lower="aten", on_refusal="raise")
    for call in range(4 * count):
        x = torch.arange(4.0)
        if is_tracked:
            x = x.requires_grad_() * 1
        with around():
            view = jitted(x)[call % count]
        assert may_be_written(view) == (program is taken_with), call
    assert jitted.statistics().replays >= count


class KeepsItsArgument(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(d)
        return w * d

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (d,) = ctx.saved_tensors
        return gradient * d, None


def data_of_result(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = (x * w).exp()
    return y, y.data


def data_that_the_backward_needs(x: torch.Tensor, w: torch.Tensor) -> Any:
    d = x.data
    return d * w - 1, d


def data_of_which_the_backward_needs_a_view(x: torch.Tensor, w: torch.Tensor) -> Any:
    d = x.data
    return (d[1:] * w[1:]).sum(), d


def data_that_a_custom_function_keeps(x: torch.Tensor, w: torch.Tensor) -> Any:
    d = x.data
    return KeepsItsArgument.apply(w, d), d  # type: ignore[no-untyped-call]


def computed_of_data(x: torch.Tensor, w: torch.Tensor) -> Any:
    d = x.data * 2
    return d * w, d


def data_and_a_view_of_it(x: torch.Tensor, w: torch.Tensor) -> Any:
    d = (x * 2).data
    return x * w, d, d[1:]


BESIDE_GRADIENTS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "result": data_of_result,
    "argument": lambda x, w: (x * w, x.data),
    "parameter": lambda x, w: (x * w, w.data),
    "view": lambda x, w: (x * w, x.data[1:]),
    "part": lambda x, w: (x * w, x.data.chunk(3)[1]),
    "with a history of its own": lambda x, w: (x * w, x.data.mul(2).mul_(w)),
    "computed": computed_of_data,
    "and a view": data_and_a_view_of_it,
    "detached": lambda x, w: (x * w, x.detach()),
}


@pytest.mark.parametrize("name", BESIDE_GRADIENTS)
def test_a_write_to_a_result_moves_the_versions_that_eagers_moves_beside_gradients(name: str) -> None:
    program = BESIDE_GRADIENTS[name]
    jitted: Any = treeplay.jit(program, lower="aten", on_refusal="raise")
    for _ in range(4):
        found = []
        for call in (jitted, program):
            x, w = torch.arange(3.0), torch.full((3,), 2.0, requires_grad=True)
            results = call(x, w)
            before = [tensor._version for tensor in (x, w, *results)]
            results[1].detach().add_(1)
            moved = [tensor._version - version for tensor, version in zip((x, w, *results), before, strict=True)]
            try:
                results[0].sum().backward()
                gradient = w.grad
            except RuntimeError:
                gradient = None
            found.append(str((moved, gradient, [result.requires_grad for result in results])))
        assert found[0] == found[1]
    assert jitted.statistics().replays >= 2


@pytest.mark.parametrize(
    "program",
    [data_that_the_backward_needs, data_of_which_the_backward_needs_a_view, data_that_a_custom_function_keeps],
)
def test_a_write_to_a_result_that_came_through_data_is_seen_by_the_backward_that_needs_it(program: Any) -> None:
    jitted: Any = treeplay.jit(program, lower="aten", on_refusal="raise")
    for _ in range(4):
        for call in (jitted, program):
            result, d = call(torch.arange(3.0), torch.full((3,), 2.0, requires_grad=True))
            d.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                result.sum().backward()
    assert jitted.statistics().replays >= 2
