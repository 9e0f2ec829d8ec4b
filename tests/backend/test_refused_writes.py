"""Programs that cannot be wrapped run as they are, and are right: the reason is warned once with both names or the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from treeplay.backend.options import Options
from treeplay.driver import compile_flat
from treeplay.torch_compile import compile_graph
from wrap.aot.oracle import numbers

pytestmark = pytest.mark.usefixtures("on_each_device")


def write_then_replace(x: Any, y: Any, old: Any) -> Any:
    x.mul_(2)
    x.set_(y)
    return [x + 1, old * 1]


def replace_then_write(x: Any, y: Any, old: Any) -> Any:
    x.set_(y)
    x.mul_(2)
    return [x + 1, old * 1]


@pytest.mark.parametrize("program", [write_then_replace, replace_then_write])
def test_Wplus11_the_order_of_storage_and_data_writes_is_eagers(program: Callable[..., Any]) -> None:
    def make() -> list[Any]:
        x = numbers(4)
        return [x, numbers(4) + 5, x.view(2, 2)]

    told = []
    for run in (program, None):
        args = make()
        if run is None:
            with pytest.warns(UserWarning, match="storage of argument"):
                run = compile_graph(torch.fx.symbolic_trace(program), make(), inner="aten")
        results = list(run(*args))
        told.append([*results, *args])
        assert args[0].data_ptr() == args[1].data_ptr() != args[2].data_ptr()
    for eager, ours in zip(*told, strict=True):
        assert torch.equal(eager, ours)


def one_written(a: Any, b: Any) -> Any:
    a.mul_(2)
    return [a.sum() + b * 3]


def unconnected() -> list[Any]:
    x = numbers(6, grad=True) * 1
    return [x[:4], x.detach().requires_grad_()]


def other_dtype() -> list[Any]:
    x = numbers(6, grad=True) * 1
    return [x, x.detach().view(torch.int32)]


def conjugate() -> list[Any]:
    x = torch.complex(numbers(4), numbers(4))
    return [x, x.conj()]


@pytest.mark.parametrize("make", [unconnected, other_dtype, conjugate])
def test_W11_what_is_refused_runs_eagerly_and_is_right(make: Callable[[], list[Any]]) -> None:
    with pytest.warns(UserWarning, match="arguments `a` and `b` share memory"):
        call = compile_graph(torch.fx.symbolic_trace(one_written), make(), inner="aten")
    eager, ours = make(), make()
    for left, right in zip([*one_written(*eager), *eager], [*call(*ours), *ours], strict=True):
        assert torch.equal(left, right) and left.requires_grad == right.requires_grad


def test_Wplus4_a_write_to_a_leaf_raises_what_eager_raises() -> None:
    def program(x: Any) -> Any:
        return [x.mul_(2)]

    with pytest.warns(UserWarning, match="leaf"):
        call = compile_graph(torch.fx.symbolic_trace(program), [numbers(2, grad=True)], inner="aten")
    with pytest.raises(RuntimeError, match="leaf"):
        call(numbers(2, grad=True))


def shared(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.set_(y)
    return [x + 1]


def shared_and_written(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.set_(y)
        x.mul_(2)
    return [x + 1]


def grown_and_filled(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.untyped_storage().resize_(16)
        x.copy_(y * 3)
    return [x + 1]


def used_and_emptied(x: Any, y: Any) -> Any:
    z = x * 2 - y
    with torch.no_grad():
        x.untyped_storage().resize_(0)
    return [z]


def set_and_resized(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.set_(y * 5)
        x.resize_(2)
    return [x - 1]


def there_and_back(x: Any, y: Any) -> Any:
    old = x.view(4)
    with torch.no_grad():
        x.set_(y)
        x.set_(old)
    return [x + y]


def replaced_storages(program: Callable[..., Any]) -> list[Any]:
    x = numbers(4)
    if program is grown_and_filled:
        x.untyped_storage().resize_(0)
    return [x, numbers(4) + 5]


@pytest.mark.parametrize(
    "program", [shared, shared_and_written, grown_and_filled, used_and_emptied, set_and_resized, there_and_back]
)
def test_W26_a_storage_is_replaced_or_resized_as_in_eager(program: Callable[..., Any]) -> None:
    """Such a program is refused with its line, and runs as it is."""
    told = []
    for is_ours in (False, True):
        args, run = replaced_storages(program), program
        if is_ours:
            with pytest.warns(UserWarning, match=r"storage[\s\S]*test_refused_writes.py"):
                run = compile_flat(
                    lambda *args: tuple(program(*args)), replaced_storages(program), Options(inner="aten")
                )
        results = list(run(*args))
        x, y = args
        bytes_of = [value.untyped_storage().nbytes() for value in args]
        if x.untyped_storage().nbytes():
            x.mul_(2)  # who shares the memory now sees it
            told.append([results, y, x, bytes_of, x.data_ptr() == y.data_ptr()])
        else:
            told.append([results, y, bytes_of])
    torch.testing.assert_close(told[1], told[0], rtol=0, atol=0)
