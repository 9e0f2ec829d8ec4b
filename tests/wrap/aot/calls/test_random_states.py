"""Random numbers that the backward draws again are those of its own forward."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy

from treeplay.wrap.aot.calls.random_states import RecomputeGenerators, draw_seeds
from treeplay.wrap.aot.calls.redrawn import has_own_generators
from wrap.aot.oracle import boxed, min_cut, numbers, wrapped


def noisy(x: Any, count: int = 1) -> Any:
    """A function with masks; a dropped number shows as cos(0) = 1."""
    for _ in range(count):
        x = torch.nn.functional.dropout(x.sin(), 0.5)
    return [x.cos()]


def stored(graph: Any, inputs: Any, **options: Any) -> Any:
    """Torch's split, told to compute the whole forward again in the backward, as a checkpoint would be."""
    late: set[Any] = set()
    for node in graph.graph.nodes:
        if "tangents" in node.name or late.intersection(node.all_input_nodes):
            late.add(node)
        elif node.op == "call_function":
            node.meta.update(recompute=CheckpointPolicy.MUST_RECOMPUTE, ac_graph_id=0)
    return min_cut(graph, inputs, **options)


def with_generators(graph: Any, inputs: Any, **options: Any) -> Any:
    """Torch's split for CUDA, made from the one that it has for the CPU: generators instead of stored states."""
    forward, backward = stored(graph, inputs, **options)
    results = list(forward.graph.output_node().args[0])
    saving = [node for node in forward.graph.nodes if node.target is torch.ops.higher_order.run_and_save_rng_state]
    for k, node in enumerate(saving):
        _give_generator(forward, node, node.args[0], node.args[1:], f"fwd_rng_state_{k}")
        results = [item for item in results if not (_is_state(item) and item.args[0] is node)]
    forward.graph.output_node().args = (tuple(results),)
    for k, node in enumerate(
        node for node in list(backward.graph.nodes) if node.target is torch.ops.higher_order.run_with_rng_state
    ):
        state = node.args[0]
        _give_generator(backward, node, node.args[1], node.args[2:], f"bwd_rng_state_{k}")
        backward.graph.erase_node(state)
    for module in (forward, backward):
        module.graph.eliminate_dead_code()
        module.recompile()
    return forward, backward


def _is_state(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and "getitem" in str(node.target) and node.args[1] == 0


def _give_generator(module: Any, node: Any, op: Any, args: Any, name: str) -> None:
    last = [item for item in module.graph.nodes if item.op == "placeholder"][-1]
    with module.graph.inserting_after(last):
        generator = module.graph.placeholder(name)
    generator.meta["val"] = torch.Generator()
    with module.graph.inserting_before(node):
        drawn = module.graph.call_function(_drawn, (op, generator, *args))
    if node.target is torch.ops.higher_order.run_with_rng_state:
        node.replace_all_uses_with(drawn)
        module.graph.erase_node(node)
        return
    for user in list(node.users):
        if not _is_state(user):
            user.replace_all_uses_with(drawn)


def _drawn(op: Any, generator: torch.Generator, *args: Any) -> Any:
    """An operator on the default generator, drawn from another one."""
    assert isinstance(generator, torch.Generator)
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        return op(*args)
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


SPLITS = {"stored": stored, "generators": with_generators}


def leaf(size: int = 40) -> torch.Tensor:
    return numbers(size, grad=True)


def agrees(x: torch.Tensor, y: torch.Tensor, gradient: torch.Tensor) -> bool:
    is_dropped = y.detach() == 1.0
    assert 0 < is_dropped.sum() < len(x)
    return torch.equal(is_dropped, gradient == 0)


@pytest.fixture(params=SPLITS)
def call(request: Any) -> Callable[[list[Any]], list[Any]]:
    return wrapped(noisy, lambda: [leaf()], partition=SPLITS[request.param])


def test_W18_the_mask_of_the_gradient_is_that_of_the_result(call: Any) -> None:
    for _ in range(3):
        x = leaf()
        (y,) = call([x])
        y.sum().backward()
        assert agrees(x, y, x.grad)


def test_W18_backwards_in_another_order_than_the_forwards(call: Any) -> None:
    runs = [(x, call([x])[0]) for x in (leaf(), leaf(), leaf())]
    for at in (1, 2, 0):
        x, y = runs[at]
        y.sum().backward()
        assert agrees(x, y, x.grad)
    masks = [y.detach() == 1.0 for _, y in runs]
    assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[1], masks[2])


def test_W18_a_kept_graph_gives_the_same_again(call: Any) -> None:
    x = leaf()
    (y,) = call([x])
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    z = leaf()
    (other,) = call([z])
    other.sum().backward()
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], first) and agrees(x, y, first)


def test_W18_seeding_makes_it_repeatable(call: Any) -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append([call([leaf()])[0], call([leaf()])[0]])
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    assert not torch.equal(results[0][0], results[0][1])


def test_W18_stored_states_draw_what_eager_draws() -> None:
    call = wrapped(lambda x: noisy(x, 3), lambda: [leaf()], partition=stored)
    torch.manual_seed(2)
    (y,), after = call([leaf()]), torch.rand(2)
    torch.manual_seed(2)
    (wanted,) = noisy(leaf(), 3)
    assert torch.equal(y, wanted) and torch.equal(after, torch.rand(2))


def test_W18_generators_come_last_and_several_are_told_apart() -> None:
    seen: dict[str, Any] = {}

    def spied(name: str) -> Any:
        def compiler(module: Any, inputs: Any) -> Any:
            run = boxed(module, inputs)

            def spy(args: list[Any]) -> Any:
                seen[name] = list(args)
                return run(args)

            assert len(inputs) == len([node for node in module.graph.nodes if node.op == "placeholder"])
            return spy

        return compiler

    changes = {"forward": spied("forward"), "backward": spied("backward"), "partition": with_generators}
    call = wrapped(lambda x: noisy(x, 2), lambda: [leaf()], **changes)
    assert call.plan.node.generators == ("cpu", "cpu")
    x = leaf()
    (y,) = call([x])
    y.sum().backward()
    assert agrees(x, y, x.grad)
    for args in seen.values():
        assert [type(value) for value in args[-2:]] == [torch.Generator] * 2
        assert args[-1].initial_seed() != args[-2].initial_seed()
    assert [g.initial_seed() for g in seen["forward"][-2:]] == [g.initial_seed() for g in seen["backward"][-2:]]


def test_W18_the_lines_are_straight() -> None:
    call = wrapped(noisy, lambda: [leaf()], partition=with_generators)
    node = call.__globals__["run"].__self__
    assert "ctx.seeds = draw_seeds(1)" in inspect.getsource(node.forward)
    assert "args += generators.seeded(ctx.seeds)" in inspect.getsource(node.backward)


def test_W18_generators_stay_the_same_objects() -> None:
    generators = RecomputeGenerators(("cpu", "cpu"))
    first, second = generators.seeded([1, 2]), generators.seeded(draw_seeds(2))
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_W18_threads_do_not_share_generators() -> None:
    import threading

    generators, found = RecomputeGenerators(("cpu",)), []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(generators.seeded([1])[0]))
        thread.start()
        thread.join()
    assert found[0] is not found[1]


def test_W18_values_kept_without_a_check_come_before_the_states() -> None:
    def split(graph: Any, inputs: Any, **options: Any) -> Any:
        forward, backward = stored(graph, inputs, **options)
        kept = forward.graph.output_node().args[0][-2]
        assert kept.name == "primals_2"
        kept.meta["saved_tensor_with_no_vc_check"] = True  # as Dynamo notes it for `ctx.w = w`
        return forward, backward

    call = wrapped(lambda x, w: [noisy(x)[0] * w], lambda: [leaf(), numbers(40)], partition=split)
    x, w = leaf(), numbers(40)
    (y,) = call([x, w])
    is_dropped = (y / w).detach() == 1.0
    w.add_(1)
    y.sum().backward()
    assert call.plan.node.unchecked == 2 and torch.equal(is_dropped, x.grad == 0)


@pytest.mark.parametrize(("share", "draws"), [(0.0, False), (0.5, True)])
@pytest.mark.parametrize("is_saved", [False, True])
def test_attention_draws_only_with_dropout(is_saved: bool, share: float, draws: bool) -> None:
    attention = torch.ops.aten._scaled_dot_product_flash_attention.default
    inner = torch.fx.Graph()
    parts = [inner.placeholder(name) for name in "qkv"]
    run = torch.ops.higher_order.run_and_save_rng_state
    inner.call_function(run, (attention, *parts, share)) if is_saved else inner.call_function(
        attention, (*parts, share)
    )
    inner.output(())
    root, outer = torch.nn.Module(), torch.fx.Graph()
    root.body = torch.fx.GraphModule({}, inner)
    outer.create_node("get_attr", "body")
    outer.output(())
    assert has_own_generators(torch.fx.GraphModule(root, outer)) is draws
