"""Gradients through recorded callables: they fill `.grad` as eager would, or say why they cannot."""

from __future__ import annotations

import copy
import dataclasses
import threading

import pytest
import torch
from torch import nn

from treeplay.errors import StaleOutput, UsageError
from treeplay.graphs import make_graphed_callables
from treeplay.graphs import record as record_module


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def same_gradients(module: nn.Module, twin: nn.Module) -> None:
    for (name, a), (_, b) in zip(module.named_parameters(), twin.named_parameters(), strict=True):
        assert (a.grad is None) is (b.grad is None), name
        if a.grad is not None and b.grad is not None:
            close(a.grad, b.grad)


class TwoHeads(nn.Module):
    """Two outputs of one trunk; gradients of the heads must not be mixed up."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        trunk = torch.tanh(self.trunk(x))
        return self.first(trunk) * 2, self.second(trunk) - 1


@pytest.fixture
def heads(dev: str) -> tuple[nn.Module, nn.Module]:
    """A recorded module and its eager twin."""
    module = TwoHeads().to(dev)
    twin = copy.deepcopy(module)
    make_graphed_callables(module, (torch.randn(5, 4, device=dev),))
    return module, twin


def test_G30_only_one_of_two_outputs_is_used(heads, dev: str) -> None:
    for weights in ((1, 3), (1, 0), (0, 2), (1, 3)):
        x = torch.randn(5, 4, device=dev)
        for part in heads:
            part.zero_grad()
            outputs = part(x)
            sum(out.sum() * weight for out, weight in zip(outputs, weights, strict=True) if weight).backward()
        module, twin = heads
        for name, parameter in twin.named_parameters():
            if parameter.grad is None:  # eager leaves it out, and a recording gives the zero that it counts as
                assert not module.get_parameter(name).grad.any()
            else:
                close(module.get_parameter(name).grad, parameter.grad)


def test_G30_a_gradient_that_does_not_lie_densely(heads, dev: str) -> None:
    x = torch.randn(5, 4, device=dev)
    for part in heads:
        first, _ = part(x)
        first.backward(torch.randn(1, device=dev, generator=torch.Generator(dev).manual_seed(0)).expand(5, 2))
    close(heads[0].first.weight.grad, heads[1].first.weight.grad)


def test_G31_unused_tensors_get_none_if_that_is_allowed(dev: str) -> None:
    class Spare(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 3)
            self.unused = nn.Parameter(torch.ones(2))

    module = Spare().to(dev)
    twin = copy.deepcopy(module)
    make_graphed_callables(module, (torch.randn(2, 3, device=dev),), allow_unused_input=True)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (module, twin)]
    for _ in range(3):
        x = torch.randn(2, 3, device=dev)
        for part, optimizer in zip((module, twin), optimizers, strict=True):
            optimizer.zero_grad()
            part(x).pow(2).sum().backward()
            optimizer.step()
        same_gradients(module, twin)
    assert module.unused.grad is None
    close(module.weight.detach(), twin.weight.detach())


def test_G33_a_second_derivative_is_refused(dev: str) -> None:
    graphed = make_graphed_callables(lambda x: x.pow(3), (torch.randn(3, device=dev, requires_grad=True),))
    x = torch.randn(3, device=dev, requires_grad=True)
    (first,) = torch.autograd.grad(graphed(x).sum(), x, create_graph=True)
    close(first.detach(), 3 * x.detach() ** 2)
    with pytest.raises(RuntimeError, match="first-order only"):
        torch.autograd.grad(first.sum(), x)


def test_G33_a_gradient_penalty_does_not_train_on_half_of_itself(dev: str) -> None:
    module = nn.Linear(3, 3).to(dev)
    make_graphed_callables(module, (torch.randn(2, 3, device=dev, requires_grad=True),))
    x = torch.randn(2, 3, device=dev, requires_grad=True)
    out = module(x)
    (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    # Whichever of the two ways back to the module the engine takes first.
    with pytest.raises(RuntimeError, match=r"first-order only|came too late"):
        (out.mean() + gradient.norm()).backward()


def test_Gplus1_accumulated_gradients_are_sums(dev: str) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).to(dev)
    twin = copy.deepcopy(module)
    make_graphed_callables(module, (torch.randn(3, 4, device=dev, requires_grad=True),))
    first = torch.randn(3, 4, device=dev, requires_grad=True)
    second = torch.randn(3, 4, device=dev, requires_grad=True)
    leaves = first.detach().clone().requires_grad_(), second.detach().clone().requires_grad_()
    for part, inputs in ((module, (first, second)), (twin, leaves)):
        for x in inputs:
            part(x).pow(2).sum().backward()
    same_gradients(module, twin)
    close(first.grad, leaves[0].grad)
    close(second.grad, leaves[1].grad)


def pool_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The pool of the allocator that a tensor lies in; recordings have pools of their own."""
    if not tensor.is_cuda:
        return 0, 0
    for segment in torch.cuda.memory_snapshot():
        if segment["address"] <= tensor.data_ptr() < segment["address"] + segment["total_size"]:
            return tuple(segment["segment_pool_id"])
    raise AssertionError("in no segment")


def test_Gplus1_gradients_do_not_lie_in_static_memory(dev: str) -> None:
    module = nn.Linear(4, 4).to(dev)
    make_graphed_callables(module, (torch.randn(3, 4, device=dev),))
    recorded = module.forward._entries[None].recorded
    static = {tensor.data_ptr() for tensor in recorded.backward.gradients}
    module(torch.randn(3, 4, device=dev)).sum().backward()
    assert static.isdisjoint({module.weight.grad.data_ptr(), module.bias.grad.data_ptr()})
    assert {pool_of(tensor.grad) for tensor in module.parameters()} == {(0, 0)}
    kept = module.weight.grad.clone()
    gradient = module.weight.grad
    module.zero_grad()
    module(torch.randn(3, 4, device=dev) * 7).sum().backward()
    close(gradient, kept)


def test_Gplus1_static_gradients_only_on_request(dev: str) -> None:
    module = nn.Linear(4, 4).to(dev)
    make_graphed_callables(module, (torch.randn(3, 4, device=dev),), gradients="alias")
    static = {tensor.data_ptr() for tensor in module.forward._entries[None].recorded.backward.gradients}
    module(torch.randn(3, 4, device=dev)).sum().backward()
    assert module.weight.grad.data_ptr() in static


def test_hooks_of_parameters_run_once_per_backward(dev: str) -> None:
    module = nn.Linear(3, 3).to(dev)
    twin = copy.deepcopy(module)
    seen: list[int] = []
    for part in (module, twin):
        part.weight.register_hook(lambda gradient: (seen.append(1), gradient * 10)[1])
    make_graphed_callables(module, (torch.randn(2, 3, device=dev),))
    assert not seen
    x = torch.randn(2, 3, device=dev)
    for part in (module, twin):
        part(x).sum().backward()
    assert len(seen) == 2
    same_gradients(module, twin)


def test_tensors_of_the_closure_are_trained(dev: str) -> None:
    weight = torch.randn(3, device=dev, requires_grad=True)
    layer = nn.Linear(3, 3).to(dev)
    graphed = make_graphed_callables(lambda x: layer(x) * weight, (torch.randn(2, 3, device=dev),))
    for _ in range(2):
        x = torch.randn(2, 3, device=dev)
        found = torch.autograd.grad(graphed(x).sum(), [weight, layer.weight, layer.bias])
        expected = torch.autograd.grad((layer(x) * weight).sum(), [weight, layer.weight, layer.bias])
        for a, b in zip(found, expected, strict=True):
            close(a, b)
    weight.data = weight.data.clone()
    with pytest.raises(UsageError, match="at another address"):
        graphed(torch.randn(2, 3, device=dev))


def test_an_input_that_is_the_output_of_another_operation(dev: str) -> None:
    graphed = make_graphed_callables(lambda x: x * x, (torch.randn(3, device=dev, requires_grad=True) + 0,))
    leaf = torch.randn(3, device=dev, requires_grad=True)
    graphed(leaf * 3).sum().backward()
    close(leaf.grad, 18 * leaf.detach())


def test_a_backward_after_the_next_call_says_so(heads, dev: str) -> None:
    module, _ = heads
    first = module(torch.randn(5, 4, device=dev))[0].sum()
    second = module(torch.randn(5, 4, device=dev))[0].sum()
    with pytest.raises(StaleOutput, match="the backward of call 1 of TwoHeads came too late: call 2 of TwoHeads"):
        first.backward()
    second.backward()


def test_a_second_backward_of_the_same_call_says_so(heads, dev: str) -> None:
    loss = heads[0](torch.randn(5, 4, device=dev))[0].sum()
    loss.backward(retain_graph=True)
    with pytest.raises(StaleOutput, match="the backward of call 1 of TwoHeads ran since"):
        loss.backward()


def chain(dev: str) -> tuple:
    """F1 F2 B2 B1 in one pool."""
    samples = [torch.randn(3, device=dev, requires_grad=True) for _ in range(2)]
    return make_graphed_callables((torch.tanh, torch.exp), tuple((sample,) for sample in samples))


def test_callables_of_one_pool_used_in_recorded_order(dev: str) -> None:
    first, second = chain(dev)
    x = torch.randn(3, device=dev, requires_grad=True)
    a, b = first(x), second(x)
    b.sum().backward()
    a.sum().backward()
    close(x.grad, (1 - x.detach().tanh() ** 2) + x.detach().exp())


def test_callables_of_one_pool_used_in_another_order(dev: str) -> None:
    """The backward of the first ends the life of what the second saved: its memory was free when it was captured."""
    first, second = chain(dev)
    x = torch.randn(3, device=dev, requires_grad=True)
    b, a = second(x), first(x)
    with pytest.raises(StaleOutput, match="wrap them one by one"):
        b.sum().backward()
    a.sum().backward()
    a, b = first(x), second(x)
    a.sum().backward()
    with pytest.raises(StaleOutput, match="backward of call"):
        b.sum().backward()


def test_callables_wrapped_one_by_one_are_used_in_any_order(dev: str) -> None:
    first, second = (
        make_graphed_callables(fn, (torch.randn(3, device=dev, requires_grad=True),)) for fn in (torch.tanh, torch.exp)
    )
    x = torch.randn(3, device=dev, requires_grad=True)
    b, a = second(x), first(x)
    a.sum().backward()
    b.sum().backward()
    close(x.grad, (1 - x.detach().tanh() ** 2) + x.detach().exp())


def test_a_sample_written_between_call_and_backward(dev: str) -> None:
    sample = torch.randn(3, device=dev)
    module = nn.Linear(3, 3).to(dev)
    make_graphed_callables(module, (sample,))
    loss = module(sample).sum()
    sample.zero_()
    with pytest.raises(UsageError, match="a sample tensor was written"):
        loss.backward()


def test_backwards_in_another_thread(heads, dev: str) -> None:
    x = torch.randn(5, 4, device=dev)
    losses = [part(x)[0].sum() for part in heads]
    for loss in losses:
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    close(heads[0].first.weight.grad, heads[1].first.weight.grad)


def test_checkpointing_around_a_recorded_module(dev: str) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to(dev)
    twin = copy.deepcopy(module)
    make_graphed_callables(module, (torch.randn(3, 4, device=dev, requires_grad=True),))
    x = torch.randn(3, 4, device=dev, requires_grad=True)
    for part in (module, twin):
        torch.utils.checkpoint.checkpoint(part, x, use_reentrant=True).sum().backward()
    same_gradients(module, twin)


def test_checkpointing_inside_of_a_recorded_module(dev: str) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(self.inner, x * 2, use_reentrant=False, preserve_rng_state=False)

    module = Checkpointed().to(dev)
    twin = copy.deepcopy(module)
    make_graphed_callables(module, (torch.randn(3, 4, device=dev),))
    x = torch.randn(3, 4, device=dev)
    for part in (module, twin):
        part(x).pow(2).sum().backward()
    same_gradients(module, twin)


def test_a_frozen_parameter_gets_no_gradient(dev: str) -> None:
    module = nn.Linear(3, 3).to(dev)
    module.bias.requires_grad_(False)
    make_graphed_callables(module, (torch.randn(2, 3, device=dev),))
    module(torch.randn(2, 3, device=dev)).sum().backward()
    assert module.bias.grad is None
    assert module.weight.grad is not None


def test_tied_weights_get_the_sum(dev: str) -> None:
    module = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False)).to(dev)
    module[2].weight = module[0].weight
    twin = copy.deepcopy(module)
    make_graphed_callables(module, (torch.randn(2, 3, device=dev),))
    x = torch.randn(2, 3, device=dev)
    for part in (module, twin):
        part(x).sum().backward()
    same_gradients(module, twin)


def test_a_parameter_written_between_call_and_backward(dev: str) -> None:
    module = nn.Linear(3, 3).to(dev)
    make_graphed_callables(module, (torch.randn(2, 3, device=dev, requires_grad=True),))
    loss = module(torch.randn(2, 3, device=dev, requires_grad=True)).sum()
    with torch.no_grad():
        module.weight.mul_(2)
    with pytest.raises(UsageError, match="a parameter was written"):
        loss.backward()


def test_wrapping_while_a_loss_from_before_is_alive(dev: str) -> None:
    weight = torch.randn(3, device=dev, requires_grad=True)
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).to(dev)
    twin = copy.deepcopy(module)
    before = module(torch.randn(2, 3, device=dev)).sum() + (weight * 2).sum()
    make_graphed_callables(module, (torch.randn(2, 3, device=dev),))
    graphed = make_graphed_callables(lambda x: x * weight, (torch.randn(3, device=dev),))
    x = torch.randn(2, 3, device=dev)
    for part in (module, twin):
        part(x).pow(2).sum().backward()
    same_gradients(module, twin)
    graphed(x[0]).sum().backward()
    close(weight.grad, x[0])
    before.backward()


def test_stand_ins_train_what_they_stand_for(dev: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take = record_module._take_forward
    monkeypatch.setattr(
        record_module, "_take_forward", lambda body, manner: take(dataclasses.replace(body, has_stand_ins=True), manner)
    )
    weight = torch.randn(3, device=dev, requires_grad=True)
    modules = nn.Linear(3, 3).to(dev), nn.GRU(3, 3).to(dev)
    twins = copy.deepcopy(modules)
    parts = make_graphed_callables(
        (*modules, lambda x: (x * weight, weight)),
        tuple((torch.randn(2, 3, device=dev, requires_grad=True),) for _ in range(3)),
    )
    for _ in range(3):
        x = torch.randn(2, 3, device=dev, requires_grad=True)
        found, same = parts[2](parts[1](parts[0](x))[0])
        expected = twins[1](twins[0](x))[0] * weight
        close(found.detach(), expected.detach())
        leaves = [*modules[0].parameters(), *modules[1].parameters(), weight]
        given = torch.autograd.grad(found.sum() + same.sum() * 2, [*leaves, x])
        leaves = [*twins[0].parameters(), *twins[1].parameters(), weight]
        for a, b in zip(given, torch.autograd.grad(expected.sum() + weight.sum() * 2, [*leaves, x]), strict=True):
            close(a, b)
