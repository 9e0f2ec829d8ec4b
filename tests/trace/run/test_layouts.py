"""A trace lays tensors out as the operators did when the program ran eagerly."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support import Twins, assert_same, jit, training
from treeplay.trace.run.layouts import answer, laid_out, numbers_not_asked, question

aten = torch.ops.aten


@pytest.mark.parametrize("function", [F.hardtanh, F.hardswish, F.hardsigmoid, F.elu, F.softplus])
def test_a_gradient_that_comes_transposed_may_be_viewed_as_eager_views_it(function) -> None:
    """torch's rules make these backwards contiguous; then a view is recorded that the real gradient does not allow."""

    def make(w: torch.Tensor):
        def step(g: torch.Tensor) -> None:
            w.grad = None
            y = function((w * 1.5).view(2, 4, 8)).transpose(1, 2)
            (y.reshape(2, 32) * g).sum().backward()

        return step

    twins = Twins(make, torch.randn(64).requires_grad_())
    twins.calls(4, lambda: (torch.randn(2, 32),))


class Listener(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ears = nn.Sequential(
            nn.Conv2d(1, 4, (11, 5), stride=(2, 1), padding=(5, 2)), nn.BatchNorm2d(4), nn.Hardtanh(0, 20)
        )
        self.head = nn.Linear(32, 7)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        return self.head(self.ears(sound).flatten(1, 2).transpose(1, 2))


def test_sums_over_a_layout_round_as_eager_rounds_them() -> None:
    model = Listener()
    twins = Twins(training, model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    twins.calls(4, lambda: (torch.randn(2, 1, 16, 8), torch.randn(2, 8, 7)))


def test_numbers_are_no_part_of_the_question_and_strides_are() -> None:
    x = torch.ones(2, 3)
    assert question(aten.hardtanh.default, (x, 0.0, 1.0), {}) == question(aten.hardtanh.default, (x, 0.5, 2.0), {})
    assert question(aten.cumsum.default, (x, 0), {}) != question(aten.cumsum.default, (x, 1), {})
    assert question(aten.sin.default, (x,), {}) != question(aten.sin.default, (torch.ones(3, 2).t(),), {})


@pytest.mark.parametrize(("first", "second"), [(2.5, 3 + 1j), (3 + 1j, 2.5)])
def test_a_real_and_a_complex_number_beside_like_tensors_give_results_of_their_own_dtypes(first, second) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one = x * first - 0.5
        other = x * second - 1.5
        return one.sum() * 2.0 - one, other.sum() - one * other

    twins = Twins(lambda: program)
    twins.calls(4, lambda: (torch.randn(3),))


def test_an_integer_that_varies_and_a_float_beside_like_tensors_give_results_of_their_own_dtypes() -> None:
    def make(state: SimpleNamespace):
        def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            whole = x.long() * state.n
            parts = x.long() * 2.5
            state.n += 1
            return (whole - 4).sum() * 2 - whole, parts.sum() - whole * parts

        return program

    twins = Twins(make, SimpleNamespace(n=3))
    twins.calls(5, lambda: (torch.randn(3) * 10,))
    assert twins.statistics.recordings == 1


def test_bools_are_no_numbers_to_a_question() -> None:
    x = torch.ones(3).bool()
    assert question(aten.add.Tensor, (x, True), {}) != question(aten.add.Tensor, (x, 1), {})


def test_nothing_is_asked_of_operators_that_give_views_of_what_they_were_given() -> None:
    x = torch.ones(2, 3)
    assert question(aten.view.default, (x, [6]), {}) is None
    assert question(aten.squeeze_.default, (x,), {}) is None
    assert question(aten.mul_.Tensor, (x, 2.0), {}) is not None


def test_an_answer_tells_all_of_new_memory_and_of_what_was_given_back() -> None:
    x = torch.ones(2, 3)
    assert answer(aten.sin.default, x.sin(), (x,)).is_new
    assert answer(aten.sort.default, tuple(x.sort()), (x,)).is_new
    assert answer(aten.mul_.Tensor, x.mul_(2.0), (x, 2.0)).gives_back
    assert answer(aten._foreach_mul_.Scalar, None, ([x], 2.0)).is_new  # nothing at all
    lying = aten._unsafe_view.default  # whose schema says that the result is new
    assert not answer(lying, lying(x, [6]), (x, [6])).tells_all
    part = torch.ones(4)[1:]
    assert not answer(aten.sin.default, part, (x,)).tells_all


def test_numbers_that_a_question_leaves_out_are_with_the_answer() -> None:
    def told(end: float):
        return answer(aten.arange.start, torch.arange(0.0, end), (0.0, end), {"dtype": torch.float32})

    assert question(aten.arange.start, (0.0, 2.0), {}) == question(aten.arange.start, (0.0, 3.0), {})
    assert told(2.0).numbers == told(2.0).numbers == numbers_not_asked((0.0, 2.0), {}) != told(3.0).numbers
    symbol = object()
    assert numbers_not_asked((symbol,), {}) != numbers_not_asked((symbol,), {})


def test_a_result_of_other_strides_is_laid_out_anew() -> None:
    wanted = answer(aten.sort.default, (torch.ones(3, 2).t(), None))
    made = laid_out((torch.ones(2, 3), None), wanted)
    assert made[0].stride() == (1, 2) and made[1] is None
    same = (torch.ones(3, 2).t(), None)
    assert laid_out(same, wanted) is same
    assert laid_out(same, None) is same


def test_a_program_with_nested_tensors_inside_is_refused_and_runs_as_it_is() -> None:
    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nested.to_padded_tensor(torch.nested.nested_tensor([a, b]) * 2, 0.0)

    jitted = jit(run, on_refusal="eager")
    for _ in range(4):
        a, b = torch.randn(2, 3), torch.randn(1, 3)
        assert_same(jitted(a, b), run(a, b))
    assert set(jitted.statistics().not_replayed) == {"observed", "refused"}


@pytest.mark.parametrize("is_training", [True, False])
def test_a_batch_norm_under_autocast_keeps_its_statistics_in_the_dtype_of_its_weight(is_training: bool) -> None:
    """torch's rule gives them the dtype of the input, which is bfloat16."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2)).train(is_training)

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        model.zero_grad()
        loss.backward()
        return loss.detach()

    inference = jit(lambda x: model(x) * 2)  # which uses no statistics of the batch
    recorded, weight = jit(step), model[0].weight
    for _ in range(3):
        state = {name: value.clone() for name, value in model.state_dict().items()}
        x = torch.randn(2, 3, 6, 6)
        found = recorded(x), weight.grad, model[1].running_var.clone()
        model.load_state_dict(state)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert_same(inference(x), model(x) * 2) if not is_training else None
        assert_same(found, (step(x), weight.grad, model[1].running_var))
    assert recorded.statistics().replays == 2
    assert is_training or inference.statistics().replays == 2
