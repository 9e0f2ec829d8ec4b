"""A functional graph after no-ops were left out of it: values that would lie in another's memory get their own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from treeplay.lower.functional import apart, fresh
from treeplay.lower.inductor.memory import keep_apart, sharing_groups

Tensor = torch.Tensor
aten = torch.ops.aten


def graph_of(program: Callable[..., Any], count: int) -> torch.fx.GraphModule:
    """A functional graph that ends in copies, without its no-ops."""
    with FakeTensorMode():
        fakes = [torch.empty(3, 3) for _ in range(count)]
        functional = torch.func.functionalize(lambda *args: program(*args) or [], remove="mutations")
        module = make_fx(functional, tracing_mode="real")(*fakes)
    groups = sharing_groups(module)
    for target, source in ((aten.clone.default, 0), (aten.copy.default, 1)):
        for node in module.graph.find_nodes(op="call_function", target=target):
            node.replace_all_uses_with(node.args[source])
            module.graph.erase_node(node)
    keep_apart(module.graph, groups)
    module.graph.lint()
    module.recompile()
    return module


def exchange(x: Tensor, y: Tensor) -> None:
    before = x.clone()
    x.copy_(y)
    y.copy_(before)


def rotate(x: Tensor, y: Tensor, z: Tensor) -> None:
    before = x.clone()
    x.copy_(y.t())
    y.copy_(z)
    z.copy_(before.t())


def turn(x: Tensor) -> None:
    x.copy_(x.t().clone())


def keep_and_write(x: Tensor, y: Tensor) -> list[Tensor]:
    before = x.clone()
    x.copy_(y * 2 - 1)
    return [before, before.t()]


def results(x: Tensor) -> list[Tensor]:
    made = x * 2 - 1
    return [made, made.clone(), made.t().clone(), x.clone(), x[1:].clone()]


def restored(x: Tensor) -> None:
    before = x.clone()
    x.diagonal().add_(1)
    x.copy_(before)


def filled(x: Tensor) -> None:
    x.scatter_(0, torch.zeros(1, 3, dtype=torch.int64), 0.5)
    x[x > 0] = 0.25
    x[x[0] < 0.5] = -1.0


@pytest.mark.parametrize("program", [exchange, rotate, turn, keep_and_write, results, filled])
def test_values_are_those_of_the_program_and_share_no_memory(program: Callable[..., Any]) -> None:
    count = program.__code__.co_argcount
    mine = [torch.randn(3, 3) for _ in range(count)]
    theirs = [tensor.clone() for tensor in mine]
    found, expected = graph_of(program, count)(*mine), program(*theirs) or []
    assert all(map(torch.equal, [*found, *mine], [*expected, *theirs]))
    assert [_memory(tensor, found, mine) for tensor in found] == [_memory(t, expected, theirs) for t in expected]


def _memory(tensor: Tensor, results: list[Tensor], given: list[Tensor]) -> int:
    storages = [other.untyped_storage()._cdata for other in (*given, *results)]
    return storages.index(tensor.untyped_storage()._cdata)


def test_an_assignment_under_a_mask_is_a_choice() -> None:
    assert not graph_of(filled, 1).graph.find_nodes(op="call_function", target=aten.index_put.default)


def shifted(x: Tensor) -> None:
    x.unsqueeze(0).copy_(x.unsqueeze(0)[:, [1, 2, 0]])


def flattened(x: Tensor) -> None:
    x.view(-1).sub_(x.view(-1) * 0.5)


@pytest.mark.parametrize(("program", "is_kept"), [(shifted, True), (flattened, False)])
def test_a_view_of_what_is_computed_late_is_computed_before_it_is_copied(
    program: Callable[..., Any], is_kept: bool
) -> None:
    assert bool(graph_of(program, 1).graph.find_nodes(op="call_function", target=fresh)) is is_kept


def test_what_needs_no_copy_gets_none() -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        x.copy_(y)
        y.copy_(y * 2 - 1)
        made = x + y
        return [made, made.t(), y[1:]]

    assert not graph_of(program, 2).graph.find_nodes(op="call_function", target=fresh)


def part_then_exchange(x: Tensor, y: Tensor) -> None:
    x.index_put_((torch.tensor([1, 2]),), y[1:])
    before = x.clone()
    x.copy_(y)
    y.copy_(before)


def part_then_overwritten(x: Tensor) -> list[Tensor]:
    x.index_put_((torch.tensor([1, 2]),), x[:2].clone())
    before = x.clone()
    x.zero_()
    return [before]


def part_and_result(x: Tensor) -> list[Tensor]:
    x.diagonal().add_(1)
    return [x.clone(), x.t().clone()]


def rows_by_rows(x: Tensor) -> list[Tensor]:
    x.index_put_((torch.tensor([1, 2]),), x[:2].clone(), accumulate=True)
    made = x * 2 - 1
    made.index_put_((torch.tensor([1, 2]),), made[:2].clone())
    return [made]


def part_then_turned(x: Tensor) -> None:
    x.index_put_((torch.tensor([1, 2]),), x[:2].clone())
    x.copy_(x.flip(0) - 1)


def part_then_elementwise(x: Tensor) -> None:
    x.index_put_((torch.tensor([1, 2]),), x[:2].clone())
    x.copy_(x * 2 - 1)


@pytest.mark.parametrize(("program", "is_kept"), [(part_then_turned, True), (part_then_elementwise, False)])
def test_what_is_copied_to_another_place_of_its_memory_is_computed_elsewhere(
    program: Callable[..., Any], is_kept: bool
) -> None:
    """Two writes to one input, of which the second reads other elements than it writes: one kernel would do both at once."""
    (node,) = graph_of(program, 1).graph.find_nodes(op="call_function", target=aten.index_put.default)
    assert any(user.target is apart for user in node.users) is is_kept


def lists_then_exchange(x: Tensor, y: Tensor) -> list[Tensor]:
    torch._foreach_mul_([x, y], 0.5)
    before = x.clone()
    x.copy_(y)
    y.copy_(before)
    return [x.clone()]


def lists_exchanged(x: Tensor, y: Tensor) -> None:
    torch._foreach_copy_([x, y], [y.clone(), x.clone()])


def means_and_sizes(x: Tensor, y: Tensor, z: Tensor) -> None:
    for mean in (x, y):
        mean.mul_(0.9).addcmul_(z, z, value=0.1)
    z.sub_(x)  # before the list is read
    first, second = torch._foreach_abs([x, y])
    z.sub_(first / (second + 1))


def sizes_of_other_means(x: Tensor, y: Tensor) -> None:
    x.mul_(0.9)
    first, second = torch._foreach_abs([x, y * 0.5])
    y.sub_(first / (second + 1))


@pytest.mark.parametrize(("program", "is_stored"), [(means_and_sizes, True), (sizes_of_other_means, False)])
def test_what_inputs_become_and_a_list_reads_is_stored_by_one_kernel(
    program: Callable[..., Any], is_stored: bool
) -> None:
    graph = graph_of(program, program.__code__.co_argcount).graph
    (sizes,) = graph.find_nodes(op="call_function", target=aten._foreach_abs.default)
    read = {node.args[0] for node in sizes.args[0]}
    stored = set(graph.find_nodes(op="call_function", target=aten._foreach_mul.Scalar))
    assert (read == stored) is is_stored and len(stored) == is_stored
    copied = {node.args[1] for node in graph.find_nodes(op="call_function", target=aten.copy_.default)}
    assert copied.issuperset(sizes.args[0]) is is_stored


def test_a_list_written_from_its_own_elements_needs_no_copy() -> None:
    def program(x: Tensor, y: Tensor) -> None:
        torch._foreach_lerp_([x, y], torch._foreach_mul([x, y], 2.0), 0.5)

    assert not graph_of(program, 2).graph.find_nodes(op="call_function", target=fresh)


def written_in_place(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """As Inductor's last pass leaves it."""
    from torch._inductor.fx_passes import reinplace
    from torch._inductor.virtualized import V

    fakes = (node.meta.get("val") for node in module.graph.nodes)
    mode = next(fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor))
    with V.set_fake_mode(mode):
        reinplace.canonicalize_view_scatter_ops(module.graph)
        reinplace.reinplace_inplaceable_ops_core(module.graph)
        reinplace.decompose_generalized_scatter(module.graph)
    for node in module.graph.find_nodes(op="call_function", target=operator.getitem):
        if not node.users:  # of an operator over lists that returns nothing any more
            module.graph.erase_node(node)
    module.recompile()
    return module


@pytest.mark.parametrize(
    "program",
    [
        *(part_then_exchange, part_then_overwritten, part_and_result, part_then_turned, rows_by_rows),
        *(lists_then_exchange, lists_exchanged, restored, means_and_sizes, sizes_of_other_means),
    ],
)
def test_operators_that_come_to_write_into_their_argument_leave_what_is_read(program: Callable[..., Any]) -> None:
    count = program.__code__.co_argcount
    module = written_in_place(graph_of(program, count))
    mine = [torch.randn(3, 3) for _ in range(count)]
    theirs = [tensor.clone() for tensor in mine]
    found, expected = module(*mine), program(*theirs) or []
    assert all(map(torch.equal, [*found, *mine], [*expected, *theirs]))
    assert not {item.untyped_storage()._cdata for item in found} & {item.untyped_storage()._cdata for item in mine}


def test_a_list_that_is_an_exponent_is_not_written_to() -> None:
    """As the powers of Adam's betas are."""

    def program(x: Tensor, y: Tensor) -> None:
        powers = torch._foreach_pow(0.5, [x, y])
        x.copy_(powers[1])
        y.copy_(powers[0])

    module = graph_of(program, 2)
    keep_apart(module.graph, sharing_groups(module))
    assert module.graph.find_nodes(op="call_function", target=aten._foreach_pow.ScalarAndTensor)
