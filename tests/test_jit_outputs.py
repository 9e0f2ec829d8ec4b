"""Results: fresh on each call, or the very tensors and views that eager gives."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import assert_same, jit


def test_a_kept_result_never_changes() -> None:
    weight = torch.randn(3)
    jitted = jit(lambda x: (x - weight, (x * weight).sum()))
    given = [torch.randn(3) for _ in range(6)]
    kept = [jitted(x) for x in given]
    for x, found in zip(given, kept, strict=True):
        assert_same(found, (x - weight, (x * weight).sum()))


def test_a_kept_result_survives_being_the_next_argument() -> None:
    jitted = jit(lambda x: x * 3 - 1)
    chain = [torch.ones(2)]
    for _ in range(6):
        chain.append(jitted(chain[-1]))
    for before, after in itertools.pairwise(chain):
        assert_same(after, before * 3 - 1)


def test_writing_to_a_result_changes_no_later_one() -> None:
    jitted = jit(lambda x: (x * 2, torch.tensor([1.0, 2.0]), torch.zeros(2), torch.tensor(5.0)))
    for _ in range(5):
        found = jitted(torch.ones(2))
        assert_same(found, (torch.full((2,), 2.0), torch.tensor([1.0, 2.0]), torch.zeros(2), torch.tensor(5.0)))
        for tensor in found:
            tensor.fill_(7)


def test_a_constant_that_the_program_writes_to_starts_anew() -> None:
    def count(x: torch.Tensor) -> torch.Tensor:
        total = torch.tensor([1.0, 2.0])
        total.add_(x)
        return total

    jitted = jit(count)
    for _ in range(5):
        assert_same(jitted(torch.ones(2)), torch.tensor([2.0, 3.0]))


def test_an_argument_returned_is_that_very_tensor() -> None:
    jitted = jit(lambda x: (x, x + 1))
    for _ in range(4):
        x = torch.randn(3)
        assert jitted(x)[0] is x


def test_state_returned_is_that_very_tensor() -> None:
    model = nn.Linear(2, 2)
    jitted = jit(lambda: model.weight)
    for _ in range(4):
        assert jitted() is model.weight


def test_a_view_of_an_argument_is_a_view() -> None:
    jitted = jit(lambda x: (x[1:, 0], x.t(), x.view(-1)[::2]))
    for _ in range(4):
        x = torch.randn(3, 2)
        row, turned, flat = jitted(x)
        assert_same((row, turned, flat), (x[1:, 0], x.t(), x.view(-1)[::2]))
        x.fill_(5.0)
        assert_same((row, turned, flat), (x[1:, 0], x.t(), x.view(-1)[::2]))


def test_a_view_of_a_sliced_argument_lies_where_eager_puts_it() -> None:
    jitted = jit(lambda x: x[1:] * 1 + 0 * x[:-1] if x.dim() == 3 else x[1:])
    base = torch.arange(24.0).view(6, 4)
    for start in (0, 1, 2, 1):
        x = base[start : start + 3]
        found = jitted(x)
        assert found.data_ptr() == x[1:].data_ptr()
        assert_same(found, x[1:])


def test_a_view_of_a_parameter_carries_gradients() -> None:
    model = nn.Linear(2, 2)
    jitted = jit(lambda: model.weight[0])
    for _ in range(4):
        model.zero_grad()
        (jitted() * torch.tensor([3.0, 5.0])).sum().backward()
        assert_same(model.weight.grad, torch.tensor([[3.0, 5.0], [0.0, 0.0]]))


def modes_of_views(weight: torch.Tensor) -> list[Callable[[torch.Tensor], Any]]:
    def view(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return weight[1:]

    def view_beside_a_result(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.set_grad_enabled(True):
            return weight[1:], (weight * x).sin() - weight

    def views_in_both_modes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            tail = weight[1:]
        return tail, weight[1:], x * 2 - 1

    def view_of_a_result(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            product = weight * x - weight
            return product, product[1:]

    def complex_numbers(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return torch.view_as_complex(weight.view(2, 2))

    return [view, view_beside_a_result, views_in_both_modes, view_of_a_result, complex_numbers]


@pytest.mark.parametrize("number", range(5))
def test_a_view_taken_with_gradients_on_carries_them_where_they_are_off_around_the_call(number: int) -> None:
    weight = torch.arange(1.0, 5.0).requires_grad_()
    program = modes_of_views(weight)[number]
    jitted = jit(program)
    for k in range(4):
        seen = []
        for call in (jitted, program):
            weight.grad = None
            with torch.no_grad():
                found = call(torch.full((4,), k + 0.5))
            results = found if isinstance(found, tuple) else (found,)
            sum((one * (3 + at)).abs().sum() for at, one in enumerate(results)).backward()
            seen.append([[(one, one.requires_grad, one.is_leaf) for one in results], weight.grad])
        assert_same(*seen)
    assert jitted.statistics().replays == 3


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("take", ["detach", "row", "data"])
def test_a_view_of_a_parameter_without_history_needs_no_gradient_in_any_mode(take: str, mode: Any) -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    program = {
        "detach": lambda x: (x * 2, weight.detach()),
        "row": lambda x: (x * 2, weight[1].detach()),
        "data": lambda x: (x * 2, weight.data[0]),
    }[take]
    jitted = jit(program)
    for k in range(4):
        with mode():
            found, expected = jitted(torch.full((3,), float(k))), program(torch.full((3,), float(k)))
        assert_same(found, expected)
        assert found[1].requires_grad is expected[1].requires_grad is False
        found[1].add_(k)
    assert jitted.statistics().replays >= 2


def test_a_detached_view_of_a_parameter_needs_no_gradient() -> None:
    model = nn.Linear(2, 2)
    jitted = jit(lambda: (model.weight.detach(), model.weight.detach()[0], model.weight[1]))
    for _ in range(4):
        whole, first, second = jitted()
        assert (whole.requires_grad, first.requires_grad, second.requires_grad) == (False, False, True)
        assert whole.data_ptr() == model.weight.data_ptr()


def test_results_that_share_memory_share_it() -> None:
    def views(x: torch.Tensor) -> Any:
        made = x * 2
        return made, made[0], made.t(), made.view(-1)[1:3]

    jitted = jit(views)
    for _ in range(4):
        x = torch.randn(2, 2)
        whole, row, turned, part = jitted(x)
        assert_same((whole, row, turned, part), views(x))
        whole[0, 1] = 9.0
        assert row[1] == 9.0 and turned[1, 0] == 9.0 and part[0] == 9.0


def test_a_part_of_something_larger_is_a_result_too() -> None:
    jitted = jit(lambda x: (x * 2)[1])
    for _ in range(4):
        x = torch.randn(3, 4)
        found = jitted(x)
        assert_same(found, x[1] * 2)


def test_a_tensor_returned_twice_is_one_tensor() -> None:
    def twice(x: torch.Tensor) -> Any:
        made = x + 1
        return made, {"again": made}

    jitted = jit(twice)
    for _ in range(4):
        first, rest = jitted(torch.ones(2))
        assert first is rest["again"]


def test_in_place_changes_reach_the_callers_tensors() -> None:
    def change(x: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
        x.mul_(3).sub_(1)
        parts[0][1:].add_(x[0])
        return x + parts[0][0]

    jitted = jit(change)
    for _ in range(5):
        x, part = torch.randn(2), torch.randn(3)
        x2, part2 = x.clone(), part.clone()
        assert_same(jitted(x, [part]), change(x2, [part2]))
        assert_same((x, part), (x2, part2))


def test_one_tensor_given_twice_is_one_tensor() -> None:
    def change(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x - 2 * y

    jitted = jit(change)
    for call in range(8):
        x, y = torch.randn(3), torch.randn(3)
        given = (x, x) if call % 2 else (x, y)
        x2, y2 = x.clone(), y.clone()
        expected = change(*((x2, x2) if call % 2 else (x2, y2)))
        assert_same(jitted(*given), expected)
        assert_same(x, x2)


def test_a_program_recorded_for_two_tensors_is_right_for_one() -> None:
    jitted = jit(lambda x, y: x - 2 * y)
    x, y = torch.randn(3), torch.randn(3)
    for _ in range(4):
        assert_same(jitted(x, y), x - 2 * y)
    for _ in range(4):
        assert_same(jitted(x, x), x - 2 * x)
        assert_same(jitted(x, y), x - 2 * y)


@pytest.mark.parametrize("start", [1, 4])
def test_overlapping_views_of_one_base_behave_as_in_eager(start: int) -> None:
    def shift(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        target.mul_(2)
        source.sub_(target.flip(0))
        return target * 3 - source

    jitted = jit(shift)
    for call in range(6):
        base = torch.arange(8.0) + call
        twin = base.clone()
        expected = shift(twin[:4], twin[start : start + 4])
        assert_same(jitted(base[:4], base[start : start + 4]), expected)
        assert_same(base, twin)


def test_views_of_one_base_recorded_apart_are_right_when_they_meet() -> None:
    def shift(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        target.mul_(2)
        return target * 3 - source

    jitted = jit(shift)
    for call in range(8):
        start = (4, 2)[call >= 4]
        base = torch.arange(8.0) + call
        twin = base.clone()
        expected = shift(twin[:4], twin[start : start + 4])
        assert_same(jitted(base[:4], base[start : start + 4]), expected)
        assert_same(base, twin)


def test_an_expanded_argument_is_read_as_it_is() -> None:
    jitted = jit(lambda x: x * 2 - x.sum(0))
    for _ in range(4):
        x = torch.randn(1, 3).expand(4, 3)
        assert_same(jitted(x), x * 2 - x.sum(0))


@dataclass
class Answer:
    loss: torch.Tensor
    parts: list[torch.Tensor]
    name: str = "answer"


Point = collections.namedtuple("Point", ["x", "y"])


def test_results_come_in_the_containers_that_the_program_made() -> None:
    def make(x: torch.Tensor) -> Any:
        return {"a": [x + 1, (x - 1, None)], 3: Point(x * 2, 5), "c": Answer(x.sum(), [x * 3]), "d": []}

    jitted = jit(make)
    for _ in range(4):
        x = torch.randn(2)
        found = jitted(x)
        assert list(found) == ["a", 3, "c", "d"]
        assert type(found[3]) is Point and type(found["c"]) is Answer and found["c"].name == "answer"
        assert_same(found["a"], make(x)["a"])
        assert_same(found[3], make(x)[3])
        assert_same((found["c"].loss, found["c"].parts), (x.sum(), [x * 3]))


def test_containers_are_new_on_each_call() -> None:
    jitted = jit(lambda x: {"a": [x + 1]})
    for _ in range(4):
        found = jitted(torch.ones(1))
        assert list(found) == ["a"] and len(found["a"]) == 1
        found["a"].append(1)
        found["b"] = 2


def test_a_program_may_return_nothing_or_numbers_that_never_change() -> None:
    jitted = jit(lambda x: (x.shape[0], "name", None, x.dtype, x.shape))
    for _ in range(4):
        assert jitted(torch.ones(2)) == (2, "name", None, torch.float32, torch.Size([2]))


def test_the_result_of_max_keeps_its_type() -> None:
    jitted = jit(lambda x: x.max(0))
    for _ in range(4):
        x = torch.randn(3, 2)
        found = jitted(x)
        assert_same((found.values, found.indices), tuple(x.max(0)))


def test_a_returned_leaf_that_wants_gradients_is_a_leaf() -> None:
    jitted = jit(lambda x: (x * 2).requires_grad_())
    for _ in range(4):
        found = jitted(torch.ones(2))
        (found * 3).sum().backward()
        assert_same(found.grad, torch.full((2,), 3.0))


def test_no_result_shares_memory_with_scratch_or_state() -> None:
    weight = torch.randn(16)

    def use(x: torch.Tensor) -> Any:
        hidden = (x * weight).relu()
        return hidden.reshape(4, 4), hidden.view(-1) - 1, weight + 0

    jitted = jit(use)
    for _ in range(4):
        x = torch.randn(16)
        for found in jitted(x):
            found.fill_(float("nan"))
        assert not weight.isnan().any()
        assert_same(jitted(x), use(x))


def test_a_new_leaf_in_the_memory_of_something_else_is_a_leaf() -> None:
    def leaves(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return x.detach().requires_grad_(), y.requires_grad_(), y.detach(), y.detach()[1:].requires_grad_()

    jitted = jit(leaves)
    for _ in range(4):
        x = torch.randn(3)
        found, expected = jitted(x), leaves(x)
        assert_same(found, expected)
        assert [t.requires_grad for t in found] == [t.requires_grad for t in expected] == [True, True, False, True]
        assert all(t.is_leaf for t in found)
        assert found[0].data_ptr() == x.data_ptr()
        assert found[1].data_ptr() == found[2].data_ptr() == found[3].data_ptr() - 4


@pytest.mark.parametrize("make", [lambda x: nn.Parameter(x * 2), lambda x: nn.Buffer(x * 2), nn.Parameter])
def test_a_parameter_that_the_program_makes_is_refused(make: Any) -> None:
    def making(x: torch.Tensor) -> torch.Tensor:
        return make(x)  # type: ignore[no-any-return]

    jitted = jit(making)
    jitted(torch.ones(2))
    with pytest.raises(treeplay.Refusal, match="replay makes only plain tensors") as caught:
        jitted(torch.ones(2))
    assert caught.value.where is not None and caught.value.where.function == "making"
    assert type(treeplay.jit(making)(torch.ones(2))) is type(making(torch.ones(2)))


@dataclass
class Doubling(dict[str, torch.Tensor]):
    value: torch.Tensor

    def __post_init__(self) -> None:
        self.value = self["value"] = self.value * 2


@dataclass
class Tagged:
    value: torch.Tensor


@dataclass
class Named(Tagged):
    parts: dict[str, torch.Tensor]


def test_a_dict_with_fields_that_its_constructor_would_change_is_refused() -> None:
    jitted = jit(Doubling)
    jitted(torch.ones(2))
    with pytest.raises(treeplay.Refusal, match="constructor of Doubling"):
        jitted(torch.ones(2))


def test_a_dataclass_with_more_than_its_fields_comes_back_with_all() -> None:
    def tagged(x: torch.Tensor) -> Tagged:
        found = Tagged(x * 2)
        found.tag = x + 1  # type: ignore[attr-defined]
        return found

    jitted = jit(tagged)
    for x in (torch.ones(2), torch.ones(2) * 3, torch.arange(2.0)):
        found = jitted(x)
        assert type(found) is Tagged
        assert_same((found.value, found.tag), (x * 2, x + 1))  # type: ignore[attr-defined]
    assert jitted.statistics().replays == 2


def test_a_dataclass_is_made_of_the_containers_of_an_argument() -> None:
    def scaled(batch: Named) -> Named:
        return dataclasses.replace(batch, value=batch.value * 2 - batch.parts["a"])

    jitted = jit(scaled)
    for at in range(4):
        batch = Named(torch.arange(2.0) + at, {"a": torch.ones(2)})
        found = jitted(batch)
        assert type(found) is Named and found.parts is batch.parts
        assert_same(found.value, batch.value * 2 - 1)
    assert jitted.statistics().replays == 3


CASTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "integers": lambda x: (x * 2).view(torch.int32),
    "bytes": lambda x: (x * 2).view(torch.uint8)[:, 3:7],
    "halves of a few": lambda x: (x * 2)[1:, :].view(torch.int16)[0, 1:3],
    "wider": lambda x: (x * 2).view(torch.float64),
    "real and imaginary": lambda x: (torch.complex(x, x - 1).real, torch.complex(x, x - 1).imag),
    "pairs": lambda x: torch.view_as_real(torch.complex(x, x - 1))[1],
    "complex": lambda x: torch.view_as_complex((x * 3).view(3, 2, 2))[1:],
    "of the argument": lambda x: (x.view(torch.int32)[1], x * 2),
    "pairs of the argument": lambda x: torch.view_as_complex(x.view(3, 2, 2)),
    "beside what it is of": lambda x: [y := x * 2, y.view(torch.int32)[:, 1]],
}


@pytest.mark.parametrize("what", CASTS)
@pytest.mark.parametrize("offset", [0, 2])
def test_a_view_of_another_type_is_one_of_the_same_memory(what: str, offset: int) -> None:
    program = CASTS[what]
    jitted = jit(program)
    for call in range(4):
        x = (torch.arange(16.0) + call)[offset : offset + 12].view(3, 4)
        found, expected = jitted(x), program(x)
        assert_same(found, expected)
        for one, other in zip(_leaves(found), _leaves(expected), strict=True):
            assert one.stride() == other.stride()
            shares_argument = one.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            assert shares_argument == (other.untyped_storage().data_ptr() == x.untyped_storage().data_ptr())
    if what == "beside what it is of":
        found[0].fill_(0.0)
        assert not found[1].any()
    assert jitted.statistics().replays == 3


def _leaves(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def test_a_stored_view_of_another_type_is_stored_anew() -> None:
    box = {"bits": torch.zeros(2, dtype=torch.int32)}

    def store(x: torch.Tensor) -> torch.Tensor:
        box["bits"] = (x * 2).view(torch.int32)
        return x + 1

    jitted = jit(store)
    for call in range(4):
        x = torch.full((2,), float(call))
        jitted(x)
        assert_same(box["bits"], (x * 2).view(torch.int32))


def test_a_complex_view_of_a_parameter_is_differentiated() -> None:
    weight = nn.Parameter(torch.randn(3, 2))
    jitted = jit(lambda x: torch.view_as_complex(weight) * x)
    for _ in range(4):
        x = torch.randn(3, dtype=torch.complex64)
        found, expected = jitted(x), torch.view_as_complex(weight) * x
        assert_same(found, expected)
        gradients = [torch.autograd.grad(y.abs().sum(), weight) for y in (found, expected)]
        torch.testing.assert_close(*gradients)


PLACES: dict[str, Callable[[torch.Tensor], Any]] = {
    "read": lambda x: x.as_strided((2, 2), (1, 2), 5) * 2,
    "from a view": lambda x: x[2:].as_strided((2,), (1,), 4) - 1,
    "returned": lambda x: (x.as_strided((2,), (3,), 4), x * 2),
    "written": lambda x: (x.as_strided((2,), (2,), 5).mul_(3.0), x * 2)[1],
    "of what it makes": lambda x: (x * 2).as_strided((2, 2), (1, 2), 1),
    "copied": lambda x: torch.as_strided_copy(x * 2, (2, 2), (1, 2), 1),
    "copied from the argument": lambda x: torch.as_strided_copy(x, (2, 2), (1, 2), 5) - 1,
}


@pytest.mark.parametrize("what", PLACES)
def test_a_place_in_memory_counts_from_where_it_begins(what: str) -> None:
    program = PLACES[what]
    jitted = jit(program)
    for call in range(7):
        start = 2 if call > 3 else 3  # an argument that begins elsewhere in its own memory
        first, second = (torch.arange(12.0) + call for _ in range(2))
        assert_same(jitted(first[start : start + 8]), program(second[start : start + 8]))
        assert_same(first, second)
    statistics = jitted.statistics()
    is_of_argument = what not in ("of what it makes", "copied")
    assert statistics.recordings == 1 + is_of_argument
    assert not is_of_argument or "storage offset of $[0][0]" in statistics.keys[0].rerecorded_because[0]


def test_a_place_outside_of_the_argument_is_refused() -> None:
    jitted = jit(lambda x: x.as_strided((4,), (1,), 0) * 2)
    jitted(torch.ones(8)[2:6])
    with pytest.raises(treeplay.Refusal, match="takes what lies outside of the argument"):
        jitted(torch.ones(8)[2:6])


def test_a_copy_of_all_the_memory_around_an_argument_is_refused() -> None:
    jitted = jit(lambda x: torch.as_strided_scatter(x, x[:2] * 3, (2,), (1,), 3))
    jitted(torch.ones(8)[2:6])
    with pytest.raises(treeplay.Refusal, match="as_strided_scatter: copies an argument with all the memory around it"):
        jitted(torch.ones(8)[2:6])


@pytest.mark.parametrize("lower", ["aten", pytest.param("inductor", marks=pytest.mark.soak)])
def test_a_shape_that_stays_as_it_is_is_not_changed(lower: str, device: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.squeeze_(0).transpose_(1, 1).resize_(2, 3)
        return x * 2 - 1

    jitted = jit(program, lower=lower)
    for call in range(5):
        mine, eagers = (torch.arange(6.0, device=device).view(2, 3) + call for _ in range(2))
        assert_same(jitted(mine), program(eagers))
        assert_same(mine, eagers)
    launch = jitted.statistics().keys[0].recordings[0].launch
    assert launch.stage == ("bound" if device == "cpu" else "recorded")


@pytest.mark.parametrize("lower", ["aten", pytest.param("inductor", marks=pytest.mark.soak)])
def test_a_place_in_a_parameter_is_differentiated(lower: str) -> None:
    weight = nn.Parameter(torch.randn(12)[2:10])
    jitted = jit(lambda x: weight.as_strided((2, 2), (1, 2), 3) * x, lower=lower)
    for _ in range(4):
        x = torch.randn(2, 2)
        found, expected = jitted(x), weight.as_strided((2, 2), (1, 2), 3) * x
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad((y * y).sum(), weight) for y in (found, expected)))


@pytest.mark.parametrize("lower", ["aten", "inductor"])
def test_a_result_may_be_reshaped_in_place(lower: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned, before = x + 1, x * 2
        same = before.detach()
        turned.t_().mul_(3)
        before.unsqueeze_(0).transpose_(1, 2)
        square = x @ x.t()
        square.t_()
        return turned, before.sum(1), same, square, before

    jitted = jit(program, lower=lower)
    for _ in range(4):
        x = torch.randint(-9, 9, (3, 2)).float()
        assert_same(jitted(x), program(x))
    assert jitted.statistics().replays == 3


def test_a_view_that_is_kept_of_what_is_written_without_gradients_may_be_read() -> None:
    """Torch raises where such a view is asked for its history, and so did a trace."""

    class State:
        def __init__(self) -> None:
            self.weight = torch.nn.Parameter(torch.ones(2, 2))
            self.sink: Any = torch.zeros(2, 2)

    def step(state: State, x: torch.Tensor) -> torch.Tensor:
        state.sink.add_(0.25)
        with torch.no_grad():
            state.sink = state.weight.t()
        return x * 2 - 1

    mine, twin = State(), State()
    jitted = jit(lambda x: step(mine, x))
    with torch.no_grad():
        for k in range(5):
            x = torch.full((2,), float(k))
            assert_same(jitted(x), step(twin, x))
            assert_same(mine.weight.detach(), twin.weight.detach())
