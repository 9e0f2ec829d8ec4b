"""Wrapped callables as drop-ins: what goes in, what comes out, and training through them."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import namedtuple

import pytest
import torch
from torch import nn

import treeplay
from support import assert_same
from treeplay.graphs import buffers as buffers_module
from treeplay.graphs import make_graphed_callables
from treeplay.graphs import record as record_module

Pair = namedtuple("Pair", "first second")


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def mlp(dev: str) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dev)


def halve_then_add(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 + 3


def test_G23_one_in_one_out_and_a_module_stays_itself(dev: str) -> None:
    module, x = mlp(dev), torch.randn(2, 4, device=dev)
    assert make_graphed_callables(module, (x,)) is module
    function = make_graphed_callables(halve_then_add, (x,))
    assert function is not halve_then_add
    assert function.__name__ == "halve_then_add"


def test_G23_a_tuple_gives_a_tuple_of_the_same_order(dev: str) -> None:
    x = torch.randn(2, 4, device=dev)
    a, b = mlp(dev), nn.Linear(4, 4).to(dev)
    expected = [fn(x).detach() for fn in (a, halve_then_add, b, torch.sin)]
    graphed = make_graphed_callables((a, halve_then_add, b, torch.sin), ((x,), (x,), (x,), (x,)))
    assert isinstance(graphed, tuple)
    assert len(graphed) == 4
    assert graphed[0] is a
    assert graphed[2] is b
    for fn, value in zip(graphed, expected, strict=True):
        close(fn(x).detach(), value)


def test_G24_nested_samples_fix_the_shape_of_arguments(dev: str) -> None:
    def combine(tree: dict, rest: list) -> torch.Tensor:
        return tree["a"] * 2 - tree["b"][0] + rest[0]

    x, y, z = (torch.randn(3, device=dev) for _ in range(3))
    graphed = make_graphed_callables(combine, ({"a": x, "b": (y,)}, [z]))
    for _ in range(3):
        args = ({"b": (torch.randn(3, device=dev),), "a": torch.randn(3, device=dev)}, [torch.randn(3, device=dev)])
        close(graphed(*args), combine(*args))


@pytest.mark.parametrize("runs", [0, 1, 3, 11])
def test_G26_the_body_runs_warmup_plus_one_times_and_never_again(dev: str, runs: int) -> None:
    calls = []

    class Counted(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return super().forward(x)

    module = Counted(4, 4).to(dev)
    make_graphed_callables(module, (torch.randn(2, 4, device=dev),), num_warmup_iters=runs)
    assert len(calls) == runs + 1
    assert all(parameter.grad is None for parameter in module.parameters())
    module(torch.randn(2, 4, device=dev)).sum().backward()
    assert len(calls) == runs + 1


def test_G26_wrapping_leaves_buffers_samples_and_generators_alone(dev: str) -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).to(dev)
    x = torch.randn(5, 4, device=dev, requires_grad=True)
    before = copy.deepcopy(module.state_dict())
    sample, state = x.detach().clone(), torch.get_rng_state()
    cuda_state = torch.cuda.get_rng_state() if dev == "cuda" else None
    make_graphed_callables(module, (x,))
    assert_same(dict(module.state_dict()), dict(before))
    assert_same(x, sample)
    assert x.grad is None
    assert torch.equal(torch.get_rng_state(), state)
    assert cuda_state is None or torch.equal(torch.cuda.get_rng_state(), cuda_state)


def test_G27_forwards_in_order_then_backwards_in_the_opposite_one(dev: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    pools: set[object] = set()
    capture = record_module.capture

    def spy(manner, *given):
        pools.add(manner.pool)
        return capture(manner, *given)

    def named(kind: str, method):
        return lambda self, *args: (order.append(f"{kind}{int(self.label[-1])}"), method(self, *args))[1]

    body_class = record_module.Body
    monkeypatch.setattr(record_module, "capture", spy)
    monkeypatch.setattr(body_class, "run", named("F", body_class.run))
    monkeypatch.setattr(body_class, "gradients", named("B", body_class.gradients))
    classes = [type(f"Part{index}", (nn.Linear,), {}) for index in (1, 2, 3)]
    parts = tuple(part(4, 4).to(dev) for part in classes)
    samples = tuple((torch.randn(2, 4, device=dev, requires_grad=True),) for _ in parts)
    make_graphed_callables(parts, samples, num_warmup_iters=0)
    assert order == ["F1", "F2", "F3", "B3", "B2", "B1"]
    assert len(pools) == 1


def test_G27_a_given_pool_is_used(dev: str) -> None:
    pool = treeplay.graphs.graph_pool_handle()
    x = torch.randn(3, device=dev)
    first = make_graphed_callables(halve_then_add, (x,), pool=pool)
    second = make_graphed_callables(torch.sin, (torch.randn(3, device=dev),), pool=pool)
    y = torch.randn(3, device=dev)
    close(second(first(y)), torch.sin(halve_then_add(y)))


def test_G28_weights_are_read_where_they_are(dev: str) -> None:
    module = nn.Linear(3, 3).to(dev)
    make_graphed_callables(module, (torch.randn(2, 3, device=dev),))
    with torch.no_grad():
        module.weight.mul_(2).add_(1)
    x = torch.randn(2, 3, device=dev)
    close(module(x).detach(), torch.nn.functional.linear(x, module.weight, module.bias).detach())


def test_G28_samples_are_the_buffers_and_are_not_copied(dev: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(3, device=dev), torch.randn(3, device=dev)
    graphed = make_graphed_callables(lambda a, b: a * 2 - b, (x, y))
    copies: list[int] = []
    copy_all = buffers_module.copy_all
    monkeypatch.setattr(buffers_module, "copy_all", lambda to, of: (copies.append(len(to)), copy_all(to, of))[1])
    x.fill_(5)
    close(graphed(x, y), x * 2 - y)
    assert copies == [0]
    assert graphed.statistics().copied_tensors == 0
    close(graphed(x, y + 0), x * 2 - y)
    assert graphed.statistics().copied_tensors == 1


def test_G28_arguments_in_another_order_or_overlapping_the_buffers_are_taken_aside(dev: str) -> None:
    memory = torch.randn(9, device=dev)
    x, y = memory[:4], memory[4:8]
    graphed = make_graphed_callables(lambda a, b: a * 2 - b, (x, y))
    for args in ((y, x), (memory[1:5], memory[5:9]), (x, x), (memory[0:4].flip(0), y)):
        expected = args[0] * 2 - args[1]
        close(graphed(*args), expected)
        memory.copy_(torch.randn(9, device=dev))


def test_G28_one_sample_for_two_arguments_has_two_buffers(dev: str) -> None:
    x = torch.randn(3, device=dev)
    graphed = make_graphed_callables(lambda a, b: a * 2 - b, (x, x))
    a, b = torch.randn(3, device=dev), torch.randn(3, device=dev)
    close(graphed(a, b), a * 2 - b)
    close(graphed(x, x), x * 2 - x)


def test_G28_one_sample_for_two_callables_serves_pending_backwards(dev: str) -> None:
    x = torch.randn(2, 4, device=dev)
    a, b = nn.Linear(4, 4).to(dev), nn.Linear(4, 4).to(dev)
    twins = copy.deepcopy((a, b))
    make_graphed_callables(a, (x,))
    make_graphed_callables(b, (x,))
    data = torch.randn(2, 4, device=dev), torch.randn(2, 4, device=dev)
    for first, second in ((a, b), twins):
        (first(data[0]) * second(data[1])).sum().backward()
    close(a.weight.grad, twins[0].weight.grad)
    close(b.weight.grad, twins[1].weight.grad)


def test_G28_a_sample_that_is_a_parameter_is_never_written(dev: str) -> None:
    weight = nn.Parameter(torch.randn(3, device=dev))
    graphed = make_graphed_callables(lambda w: w * 3, (weight,))
    kept = weight.detach().clone()
    other = torch.randn(3, device=dev, requires_grad=True)
    close(graphed(other).detach(), (other * 3).detach())
    assert_same(weight.detach(), kept)


def test_G29_ten_inputs_and_every_kind_of_container(dev: str) -> None:
    def nested(x: torch.Tensor) -> dict:
        return {"pair": Pair(x + 1, [x * 2, x]), "t": (x - 1, 7, None)}

    graphed = make_graphed_callables(nested, (torch.randn(4, device=dev),))
    for _ in range(10):
        x = torch.randn(4, device=dev)
        found, expected = graphed(x), nested(x)
        assert type(found["pair"]) is Pair
        assert type(found["pair"].second) is list
        assert type(found["t"]) is tuple
        assert_same(found, expected)


def test_G29_two_input_sets_in_turn(dev: str) -> None:
    module = mlp(dev)
    twin = copy.deepcopy(module)
    make_graphed_callables(module, (torch.randn(2, 4, device=dev),))
    sets = [torch.randn(2, 4, device=dev) for _ in range(2)]
    for index in (0, 1, 0, 0, 1):
        close(module(sets[index]).detach(), twin(sets[index]).detach())


def test_G29_a_non_contiguous_argument_has_its_values_copied(dev: str) -> None:
    graphed = make_graphed_callables(lambda x: x * 2 + 1, (torch.randn(3, 3, device=dev),))
    x = torch.randn(3, 3, device=dev)
    for value in (x.t(), x[:, :1].expand(3, 3), x.flip(0)):
        close(graphed(value), value * 2 + 1)


def test_G29_the_transpose_of_the_sample_is_not_the_sample(dev: str) -> None:
    x = torch.randn(3, 3, device=dev)
    graphed = make_graphed_callables(lambda a: a * 2, (x,))
    expected = x.t() * 2
    close(graphed(x.t()), expected)


def test_an_argument_written_in_place_is_written_for_the_caller_too(dev: str) -> None:
    def bump(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(by)
        return x + 1

    graphed = make_graphed_callables(bump, (torch.ones(3, device=dev), torch.ones(3, device=dev)))
    x, twin, by = torch.ones(3, device=dev), torch.ones(3, device=dev), torch.full((3,), 5.0, device=dev)
    for _ in range(3):
        close(graphed(x, by), bump(twin, by))
        close(x, twin)


def test_autograd_notices_that_a_sample_was_written_in_place(dev: str) -> None:
    def bump(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x - 1

    sample, weight = torch.ones(3, device=dev), torch.ones(3, device=dev, requires_grad=True)
    graphed = make_graphed_callables(bump, (sample,))
    loss = (weight * sample).sum()
    for _ in range(2):
        graphed(sample)
    assert sample.tolist() == [4, 4, 4]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_G30_modules_and_functions_train_like_eager(dev: str) -> None:
    first, second = mlp(dev), nn.Linear(3, 2).to(dev)
    twins = copy.deepcopy((first, second))
    samples = [torch.randn(5, 4, device=dev)]
    samples += [torch.randn(5, size, device=dev, requires_grad=True) for size in (3, 3, 2)]

    def squash(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 1.5 - x

    parts = make_graphed_callables((first, squash, second, torch.sin), tuple((sample,) for sample in samples))
    optimizers = [torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1) for a, b in ((first, second), twins)]
    for _ in range(10):
        x = torch.randn(5, 4, device=dev)
        for chain, optimizer in zip((parts, (twins[0], squash, twins[1], torch.sin)), optimizers, strict=True):
            value = x
            for part in chain:
                value = part(value)
            optimizer.zero_grad()
            value.pow(2).mean().backward()
            optimizer.step()
    for a, b in zip(
        [*first.parameters(), *second.parameters()], [*twins[0].parameters(), *twins[1].parameters()], strict=True
    ):
        close(a.detach(), b.detach())


def test_G32_without_anything_differentiable_there_is_no_backward(dev: str) -> None:
    class Gather(nn.Module):
        def forward(self, tree: dict) -> dict:
            return {"picked": tree["values"][tree["at"]], "at": tree["at"] + 1}

    def tree(requires_grad: bool) -> dict:
        values = torch.randn(5, device=dev, requires_grad=requires_grad)
        return {"values": values, "at": torch.tensor([3, 0, 1], device=dev)}

    for requires_grad in (False, True):
        module = make_graphed_callables(Gather(), (tree(requires_grad),))
        given = tree(requires_grad)
        found = module(given)
        close(found["picked"].detach(), given["values"].detach()[given["at"]])
        assert found["picked"].requires_grad is requires_grad
        assert not found["at"].requires_grad
        if requires_grad:
            found["picked"].sum().backward()
            assert given["values"].grad.tolist() == [1, 1, 0, 1, 0]


def test_G32_outputs_without_gradient_come_back_without(dev: str) -> None:
    graphed = make_graphed_callables(
        lambda x: (x * 2, x.argmax(), x.detach() + 1), (torch.randn(4, device=dev, requires_grad=True),)
    )
    outputs = graphed(torch.randn(4, device=dev, requires_grad=True))
    assert [out.requires_grad for out in outputs] == [True, False, False]


def test_G34_another_training_flag_runs_the_original(dev: str) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(dev)
    x = torch.randn(3, 4, device=dev)
    make_graphed_callables(module, (x,))
    replays = []
    for flag in (True, False, True):
        module.train(flag)
        before = module.forward.statistics().replays
        out = module(x)
        replays.append(module.forward.statistics().replays - before)
        if not flag:
            close(out, module[0](x))
            out.sum().backward()
    assert replays == [1, 0, 1]


def test_G34_the_flag_of_a_function_s_module_counts_too(dev: str) -> None:
    module = nn.Dropout(0.5)
    graphed = make_graphed_callables(lambda x: module(x) * 2, (torch.ones(100, device=dev),))
    module.eval()
    assert graphed(torch.ones(100, device=dev)).eq(2).all()
    assert graphed.statistics().eager_calls == 1


def test_G18_the_callable_keeps_what_it_reads(dev: str) -> None:
    weight = torch.full((1000,), 2.0, device=dev)
    graphed = make_graphed_callables((lambda w: lambda x: x * w)(weight), (torch.ones(1000, device=dev),))
    del weight
    gc.collect()
    noise = [torch.full((1000,), float("nan"), device=dev) for _ in range(100)]
    assert graphed(torch.full((1000,), 3.0, device=dev)).eq(6).all()
    del noise


def test_a_wrapped_module_is_copied_and_pickled_as_the_original(dev: str) -> None:
    module = mlp(dev)
    make_graphed_callables(module, (torch.randn(2, 4, device=dev),))
    x = torch.randn(2, 4, device=dev)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        with torch.no_grad():
            twin[0].weight.zero_()
        assert not torch.equal(twin(x), module(x))
        close(twin(x), nn.Sequential(*twin)(x))


def test_wrapping_again_starts_from_the_original(dev: str) -> None:
    module = mlp(dev)
    twin = copy.deepcopy(module)
    for rows in (2, 5):
        make_graphed_callables(module, (torch.randn(rows, 4, device=dev),))
    x = torch.randn(5, 4, device=dev)
    close(module(x).detach(), twin(x).detach())


def test_inside_of_a_capture_the_original_is_captured(dev: str) -> None:
    inner = make_graphed_callables(halve_then_add, (torch.ones(3, device=dev),))
    outer = make_graphed_callables(lambda x: inner(x) * 10, (torch.ones(3, device=dev),), num_warmup_iters=0)
    x = torch.full((3,), 4.0, device=dev)
    close(outer(x), torch.full((3,), 50.0, device=dev))


def test_grad_modes_of_calls(dev: str) -> None:
    module = mlp(dev)
    twin = copy.deepcopy(module)
    make_graphed_callables(module, (torch.randn(2, 4, device=dev),))
    x = torch.randn(2, 4, device=dev)
    with torch.no_grad():
        out = module(x)
    assert not out.requires_grad
    with torch.inference_mode():
        inferred = module(x)
    close(out, twin(x).detach())
    close(inferred.clone(), out)


def test_no_tensors_at_all_is_a_recording_too() -> None:
    graphed = make_graphed_callables(lambda: torch.ones(2) * 3, ())
    assert graphed().tolist() == [3, 3]


def test_Gplus5_what_a_wrapped_callable_reads_lives_as_long_as_it(dev: str) -> None:
    t = torch.full((5,), 3.0, device=dev)
    table = {"t": t}
    graphed = make_graphed_callables(lambda x: x * table["t"] - 1, (torch.zeros(5, device=dev),))
    del t
    table.clear()
    junk = [torch.full((5,), float("nan"), device=dev) for _ in range(50)]
    x = torch.arange(5.0, device=dev)
    assert torch.equal(graphed(x), x * 3 - 1) and len(junk) == 50
