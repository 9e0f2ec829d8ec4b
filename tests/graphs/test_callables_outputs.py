"""What a call returns: memory of its own, static memory, or static memory that knows when it is stale."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

from support import assert_same
from treeplay import StaleOutput
from treeplay.graphs import make_graphed_callables


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def pair(dev: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, device=dev), torch.randn(3, device=dev)


def test_Gplus7_copies_by_default(dev: str) -> None:
    graphed = make_graphed_callables(twice, (torch.randn(3, device=dev),))
    x, y = pair(dev)
    a, b = graphed(x), graphed(y)
    assert torch.equal(a, twice(x))
    assert torch.equal(b, twice(y))
    assert a.data_ptr() != b.data_ptr()
    a.add_(100)  # in the caller's own memory
    assert torch.equal(graphed(x), twice(x))


def test_G35_alias_gives_the_static_memory(dev: str) -> None:
    graphed = make_graphed_callables(twice, (torch.randn(3, device=dev),), outputs="alias")
    x, y = pair(dev)
    a = graphed(x)
    assert torch.equal(a, twice(x))
    b = graphed(y)
    assert torch.equal(a, b)
    assert a.data_ptr() == b.data_ptr()
    assert type(a) is torch.Tensor


def test_G35_autograd_notices_that_an_alias_was_overwritten(dev: str) -> None:
    graphed = make_graphed_callables(twice, (torch.randn(3, device=dev),), outputs="alias")
    w = torch.randn(3, device=dev, requires_grad=True)
    x, y = pair(dev)
    loss = (graphed(x) * w).sum()
    graphed(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def guarded(dev: str):
    return make_graphed_callables(twice, (torch.randn(3, device=dev),), outputs="guard")


READS = [
    lambda a: a + 1,
    lambda a: a[0],
    lambda a: a.sum(),
    lambda a: torch.stack([a, a]),
    lambda a: a.tolist(),
    lambda a: a.cpu().numpy(),
    lambda a: repr(a),
    lambda a: a.data_ptr(),
    lambda a: a.clone(),
    lambda a: float(a[0]),
    lambda a: list(a),
    lambda a: a.add_(1),
    lambda a: torch.equal(a, torch.ones_like(a)),
    lambda a: copy.deepcopy(a),
    lambda a: a.view(1, 3),
]


@pytest.mark.parametrize("read", READS)
def test_Gplus7_a_stale_output_raises_on_use(dev: str, read) -> None:
    graphed = guarded(dev)
    x, y = pair(dev)
    a = graphed(x)
    read(a)
    graphed(y)
    with pytest.raises(StaleOutput, match=r"output 0 of call 1 of twice .* was used after call 2 of twice"):
        read(a)


def test_Gplus7_the_message_names_both_lines(dev: str) -> None:
    graphed = guarded(dev)
    a = graphed(torch.ones(3, device=dev))
    graphed(torch.zeros(3, device=dev))
    with pytest.raises(StaleOutput) as caught:
        a + 1
    assert str(caught.value).count("test_callables_outputs.py:") == 2


def test_Gplus7_a_view_is_guarded_and_a_result_is_not(dev: str) -> None:
    graphed = guarded(dev)
    x = torch.randn(3, device=dev)
    a = graphed(x)
    view, result = a[1:].view(2, 1), a + 1
    assert type(result) is torch.Tensor
    graphed(torch.zeros(3, device=dev))
    assert torch.equal(result, twice(x) + 1)
    with pytest.raises(StaleOutput):
        view + 1


def test_Gplus7_facts_that_are_no_values_may_be_asked(dev: str) -> None:
    graphed = guarded(dev)
    a = graphed(torch.ones(3, device=dev))
    graphed(torch.zeros(3, device=dev))
    assert a.shape == (3,)
    assert (a.dtype, a.device.type, a.numel(), len(a), a.dim(), a.requires_grad) == (torch.float32, dev, 3, 3, 1, False)


def test_Gplus7_gradients_flow_through_guarded_outputs(dev: str) -> None:
    module = nn.Linear(3, 3).to(dev)
    twin = copy.deepcopy(module)
    make_graphed_callables(module, (torch.randn(2, 3, device=dev),), outputs="guard")
    for _ in range(3):
        x = torch.randn(2, 3, device=dev)
        for part in (module, twin):
            part.zero_grad()
            (part(x) ** 2).mean().backward()
        torch.testing.assert_close(module.weight.grad, twin.weight.grad)


def test_Gplus7_what_autograd_saved_is_guarded_too(dev: str) -> None:
    graphed = guarded(dev)
    w = torch.randn(3, device=dev, requires_grad=True)
    loss = (graphed(torch.ones(3, device=dev)) * w).sum()
    graphed(torch.zeros(3, device=dev))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_Gplus7_a_stale_argument_of_another_callable(dev: str) -> None:
    first, second = guarded(dev), guarded(dev)
    a = first(torch.ones(3, device=dev))
    assert torch.equal(second(a), torch.full((3,), 7.0, device=dev))
    first(torch.zeros(3, device=dev))
    with pytest.raises(StaleOutput):
        second(a)


def test_Gplus7_an_earlier_recording_of_the_pool_makes_outputs_stale(dev: str) -> None:
    """F1 ── F2: F2's output may lie where F1 has its intermediates."""
    samples = ((torch.randn(3, device=dev),), (torch.randn(3, device=dev),))
    first, second = make_graphed_callables((twice, torch.sin), samples, outputs="guard")
    x, y = pair(dev)
    b, a = second(y), first(x)
    assert torch.equal(a, twice(x))
    with pytest.raises(StaleOutput, match="used after call 1 of twice"):
        b + 1
    b = second(y)
    assert torch.equal(a, twice(x))  # a later recording leaves it alone
    assert torch.equal(b, torch.sin(y))


def test_outputs_that_are_arguments_parameters_and_constants_of_the_closure(dev: str) -> None:
    class Passes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("fixed", torch.arange(3.0))

        def forward(self, x: torch.Tensor) -> tuple:
            return x, self.weight, self.fixed, x[1:], (x, x * self.weight)

    for outputs in ("copy", "alias", "guard"):
        module = Passes().to(dev)
        make_graphed_callables(module, (torch.randn(3, device=dev, requires_grad=True),), outputs=outputs)
        x = torch.randn(3, device=dev, requires_grad=True)
        found = module(x)
        expected = (x, module.weight, module.fixed, x[1:], (x, x * module.weight))
        if outputs != "guard":
            assert_same(found, expected)
        (found[0].sum() + found[1].sum() * 2 + found[3].sum() * 3 + found[4][1].sum() * 5).backward()
        assert x.grad.tolist() == [6, 9, 9]
        torch.testing.assert_close(module.weight.grad, 2 + 5 * x.detach())


def test_one_tensor_returned_twice_is_one_tensor(dev: str) -> None:
    def doubled(x: torch.Tensor) -> tuple:
        y = x * 2
        return y, {"again": y}

    first, second = make_graphed_callables(doubled, (torch.randn(3, device=dev),))(torch.ones(3, device=dev))
    assert first is second["again"]


def test_threads_that_call_one_recording_get_their_own_results(dev: str) -> None:
    graphed = make_graphed_callables(twice, (torch.randn(64, device=dev),))
    wrong: list[float] = []

    def work(value: float) -> None:
        x = torch.full((64,), value, device=dev)
        for _ in range(100):
            if not graphed(x).eq(value * 2 + 1).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(index),)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_parameter_that_is_returned_without_gradients(dev: str) -> None:
    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.weight, x * self.weight

    module = Returns().to(dev)
    with torch.no_grad():
        make_graphed_callables(module, (torch.ones(3, device=dev),))
        weight, product = module(torch.full((3,), 2.0, device=dev))
    assert weight.eq(1).all()
    assert product.eq(2).all()
