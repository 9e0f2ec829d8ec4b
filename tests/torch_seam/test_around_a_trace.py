"""The private parts of torch that tracing uses exist and behave."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from treeplay.torch_seam import autograd, dynamo, flags, layers, modes, patched, symbols
from treeplay.trace.numbers import scalars


def test_active_modes_and_transforms_are_seen() -> None:
    seen = []
    assert not modes.is_mode_active()
    with FakeTensorMode():
        assert modes.is_mode_active()
    with torch.device("meta"):
        assert modes.is_mode_active() and modes.foreign_mode() is None
        with TorchFunctionMode():
            assert modes.foreign_mode() == "the mode TorchFunctionMode"
    with TorchDispatchMode():
        assert modes.is_mode_active() and modes.foreign_mode() == "the mode TorchDispatchMode"
    torch.func.vmap(lambda x: seen.append(modes.foreign_mode()) or x)(torch.ones(2))
    assert seen == ["the function transform vmap"] and not modes.is_mode_active()
    assert modes.foreign_mode() is None


def test_version_counters_can_be_read_and_put_back() -> None:
    tensor = torch.ones(2)
    tensor.add_(1)
    assert autograd.version_of(tensor) == 1
    autograd.set_version(tensor, 0)
    assert autograd.version_of(tensor) == 0
    with torch.inference_mode():
        inference = torch.ones(2)
    assert autograd.version_of(inference) == 0
    autograd.set_version(inference, 5)


def test_a_call_hook_sees_every_module() -> None:
    seen: list[nn.Module] = []
    model = nn.Sequential(nn.ReLU())
    with layers.call_hook(lambda module, args: seen.append(module)):
        model(torch.ones(1))
    model(torch.ones(1))
    assert seen == [model, model[0]]


def test_a_compiled_module_finds_no_hook_but_a_users(recwarn: pytest.WarningsRecorder) -> None:
    def hook(module: nn.Module, args: Any) -> None:
        pass

    compiled, x = torch.compile(nn.ReLU(), backend="eager"), torch.ones(1)
    patched.stand_in(hook)
    with layers.call_hook(hook):
        compiled(x)
        assert not [warning for warning in recwarn if "global hooks" in str(warning.message)]
        handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
        with pytest.warns(UserWarning, match="global hooks"):
            compiled(x)
        handle.remove()
    assert not nn.modules.module._has_any_global_hook()


def test_hooks_are_counted_and_global_ones_can_be_seen() -> None:
    before = layers.hooks_made()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert layers.hooks_made() > before and sum(map(len, layers.global_hook_tables())) == 1
    handle.remove()
    assert sum(map(len, layers.global_hook_tables())) == 0


def test_dynamo_is_off_for_a_while() -> None:
    ran: list[bool] = []

    @torch.compile(backend="eager")
    def part(x: torch.Tensor) -> torch.Tensor:
        ran.append(torch.compiler.is_compiling())
        return x + 1

    with dynamo.dynamo_off():
        part(torch.ones(1))
    assert ran == [False]
    with pytest.raises(ValueError, match="as told"), dynamo.dynamo_off():
        raise ValueError("as told")
    assert dynamo.watching() is None


def test_dynamo_is_on_again_when_the_last_of_two_threads_has_left() -> None:
    """Whoever entered first leaves first."""
    ran: list[bool] = []

    @torch.compile(backend="eager")
    def part(x: torch.Tensor) -> torch.Tensor:
        ran.append(torch.compiler.is_compiling())
        return x + 1

    has_entered, may_leave = threading.Event(), threading.Event()

    def other() -> None:
        with dynamo.dynamo_off():
            has_entered.set()
            may_leave.wait(30)

    thread = threading.Thread(target=other)
    with dynamo.dynamo_off():
        thread.start()
        has_entered.wait(30)
    part(torch.ones(1))  # the other thread is in it still
    may_leave.set()
    thread.join()
    part(torch.ones(1))
    assert ran == [False, True]


def test_dynamo_looks_away_where_it_is_told_to() -> None:
    seen: list[tuple[bool, bool]] = []

    def look() -> None:
        seen.append((dynamo.watching() is not None, torch.compiler.is_compiling()))

    def program(x: torch.Tensor) -> torch.Tensor:
        dynamo.without_dynamo(look)()
        return x + 1

    torch.compile(program, backend="eager")(torch.ones(1))
    assert seen == [(False, False)]


def test_native_layers_say_no_of_plain_tensors_in_this_thread_only() -> None:
    x, unusual = (torch.ones(1), None), (torch.ones(1).as_subclass(Other),)
    before = torch.overrides.has_torch_function
    with modes.native_layers(), TorchFunctionMode():
        assert not torch.overrides.has_torch_function(x)
        assert torch.overrides.has_torch_function(unusual)
    assert torch.overrides.has_torch_function is before


class Other(torch.Tensor):
    pass


def test_a_scaled_step_is_replaced_for_a_while() -> None:
    seen: list[Any] = []

    def step(optimizer: Any, found: Any, args: Any, kwargs: Any) -> str:
        seen.append((optimizer, list(found), args, kwargs))
        return "stepped"

    weight = torch.ones(2, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), torch.amp.GradScaler("cpu")

    def step_scaled() -> Any:
        scaler.scale(weight.sum()).backward()
        result = scaler.step(optimizer)
        scaler.update()
        return result

    with layers.scaled_step_replaced(step), ThreadPoolExecutor(1) as other:
        step_scaled()
        result = other.submit(step_scaled).result()
    assert result is None and weight[0] != 1  # in another thread: torch's own step
    [(who, found, args, kwargs)] = seen
    assert who is optimizer and found[0].item() == 0.0 and (args, kwargs) == ((), {})
    before = weight.detach().clone()
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    assert not torch.equal(weight, before) and len(seen) == 1


def test_torch_functions_are_unwatched_in_a_block() -> None:
    heard: list[Any] = []

    class Listener(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            heard.append(func)
            return func(*args, **(kwargs or {}))

    with Listener():
        torch.ones(1)
        with modes.DisableTorchFunction():
            torch.ones(1) + 1
    assert len(heard) == 1


def test_autocast_is_read_and_put_back() -> None:
    before = flags.autocast_state()
    entered = torch.autocast("cpu", torch.float16, cache_enabled=False)
    entered.__enter__()
    assert flags.autocast_state() != before
    flags.set_autocast_state(before)
    assert flags.autocast_state() == before and not torch.is_autocast_enabled("cpu")


def test_a_graph_is_used_up_by_its_backward() -> None:
    weight = torch.ones(3, requires_grad=True)

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return grad * 2 * x

    for made in (lambda: (weight * weight).sum(), lambda: weight.exp().sum(), lambda: Own.apply(weight).sum()):
        for retain_graph in (True, False):
            loss = made()
            assert not autograd.is_used_up(loss.grad_fn)
            loss.backward(retain_graph=retain_graph)
            assert autograd.is_used_up(loss.grad_fn) is not retain_graph


def test_hooks_on_saved_tensors_are_seen() -> None:
    assert not modes.is_mode_active()
    with torch.autograd.graph.save_on_cpu():
        assert modes.is_mode_active() and modes.foreign_mode() == "hooks on saved tensors"
    assert not modes.is_mode_active()


def test_backward_hooks_of_modules_are_seen() -> None:
    model = torch.nn.Linear(1, 1)
    assert not layers.has_backward_hooks([model])
    for register in (model.register_full_backward_hook, model.register_full_backward_pre_hook):
        handle = register(lambda *given: None)
        assert layers.has_backward_hooks([model])
        handle.remove()
    assert not layers.has_backward_hooks([model])


def test_arguments_of_autograd_functions_are_replaced_for_a_while() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    leaf, other = torch.ones(1, requires_grad=True), torch.full((1,), 3.0, requires_grad=True)
    original = vars(torch.autograd.Function)["apply"]
    with autograd.autograd_function_arguments(lambda args: tuple(other for _ in args) if args else args):
        result = Double.apply(leaf)
    result.backward()
    assert leaf.grad is None and other.grad is not None and result.item() == 6
    assert vars(torch.autograd.Function)["apply"] is original


def test_arguments_of_transforms_are_replaced_for_a_while() -> None:
    leaf, other = torch.ones(2, requires_grad=True), torch.full((2,), 3.0, requires_grad=True)
    with autograd.transformed_arguments(lambda tensor: other if tensor is leaf else tensor):
        mapped = torch.func.vmap(lambda x: x * 2)(leaf)
        differentiated = torch.func.grad(lambda x: (x**3).sum())(leaf)
    assert mapped.tolist() == [6, 6] and differentiated.tolist() == [27, 27]
    (mapped - differentiated).sum().backward()
    assert leaf.grad is None and other.grad is not None
    assert torch.func.vmap(lambda x: x * 2)(leaf).tolist() == [2, 2]


def test_numpy_asks_what_it_makes_of_a_symbolic_number() -> None:
    asked = []
    number = torch.SymFloat(scalars.Scalar(scalars.ScalarWorld(torch.fx.Graph()), text="s0", value=2.0, node=2.0))

    def meet(symbol: Any, ufunc: Any, method: str, *operands: Any) -> str:
        asked.append((ufunc.__name__, method, len(operands)))
        return "met"

    with symbols.numpy_asks(meet):
        assert numpy.float32(3) * number == number - numpy.float64(1) == "met"
    assert asked == [("multiply", "__call__", 2), ("subtract", "__call__", 2)]
    assert not hasattr(torch.SymFloat, "__array_ufunc__")


def test_without_function_modes_nothing_follows_a_default_device() -> None:
    with torch.device("meta"), TorchFunctionMode() as mode:
        with modes.without_function_modes():
            assert torch.ones(2).device.type == "cpu" and not modes.is_mode_active()
        assert torch.overrides._get_current_function_mode_stack()[-1] is mode


def test_a_mode_of_a_trace_is_told_from_those_of_others() -> None:
    from treeplay.trace.observe import Observer

    with TorchFunctionMode():
        assert not modes.is_traced()
        with Observer():
            assert modes.is_traced()
