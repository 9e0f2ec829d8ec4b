"""Small functions, each wrapped and compared with eager by the oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from wrap.aot.oracle import alike, grown, min_cut, numbers, twin


def no_grad_write(x: Any, w: Any) -> Any:
    with torch.no_grad():
        x.mul_(2)
    return [x * w]


def transposed_and_written(x: Any) -> Any:
    x.t_()
    x[0].mul_(2)
    return [x.reshape(-1) + 1, x.view(3, 2, 1)]


def twice(x: Any) -> Any:
    y = x * 2
    return [y, y]


def statistics(x: Any, w: Any, mean: Any, var: Any) -> Any:
    return [torch.nn.functional.batch_norm(x * w, mean, var, training=True)]


CASES: dict[str, tuple[Any, Any]] = {
    "W21_plain_sum": (lambda x, y: [x + y], lambda: [numbers(2, 3), numbers(2, 3)]),
    "W22_write": (lambda x, y: [x.mul_(2) + y], lambda: [numbers(2, 3), numbers(2, 3)]),
    "W22_write_on_a_view": (lambda x: [x.mul_(2) + 1], lambda: [numbers(4, 3)[1:3]]),
    "W22_hidden_write": (lambda x: (x.detach().mul_(2), [x + 1])[1], lambda: [numbers(4, 3)]),
    "W22_batch_norm": (statistics, lambda: [numbers(4, 3, grad=True), numbers(3, grad=True), numbers(3), numbers(3)]),
    "W23_strided_view": (lambda x: [x.mul_(2).sum()], lambda: [numbers(4, 6)[:, ::2]]),
    "W23_non_leaf": (lambda x: (x.mul_(2), [x * 3])[1], lambda: [grown(2, 3)]),
    "W23_three_inputs": (lambda x, y, z: (x.mul_(2), z.add_(y), [x * z])[2], lambda: [numbers(2), grown(2), grown(2)]),
    "W23_flag_from_write": (lambda x, y: [x.mul_(y) * 1], lambda: [numbers(2), numbers(2, grad=True)]),
    "W23_scalar": (lambda x: [x.add_(1) * 2], lambda: [alike(2)]),
    "W23_empty": (lambda x: [x.add_(1) * 2], lambda: [alike(1, 0, 3)]),
    "W24_hidden_on_leaf": (lambda x: (x.detach().mul_(4), [x + 2])[1], lambda: [numbers(2, 3, grad=True)]),
    "W24_no_grad_on_leaf": (no_grad_write, lambda: [numbers(2, 3, grad=True), numbers(2, 3)]),
    "W24_no_grad_on_non_leaf": (no_grad_write, lambda: [grown(2, 3), grown(2, 3)]),
    "W25_transpose": (lambda x: [x.transpose_(1, 0) + 1], lambda: [numbers(2, 3)]),
    "W25_transpose_non_leaf": (lambda x: [x.transpose_(1, 0) * 2], lambda: [grown(2, 3)]),
    "W25_and_data": (transposed_and_written, lambda: [numbers(2, 3)]),
    "W25_unsqueeze": (lambda x: [x.unsqueeze_(-1).mul_(2) + 1], lambda: [numbers(2, 3)]),
    "W29_itself": (lambda x, y: [x, y, x + y], lambda: [numbers(2), grown(2)]),
    "W29_twice": (twice, lambda: [numbers(2)]),
    "W29_twice_training": (twice, lambda: [numbers(2, grad=True)]),
    "W29_number_and_none": (lambda x: [3, None, x * 2], lambda: [numbers(2, grad=True)]),
    "W29_max": (lambda x: list(x.max(0)), lambda: [numbers(2, 3, grad=True)]),
    "W29_detached": (lambda x: [x * 2, (x * 3).detach()], lambda: [numbers(2, 3, grad=True)]),
    "W30_view": (lambda x: [x.view(-1), x.t()], lambda: [numbers(2, 3)]),
    "W30_view_of_leaf": (lambda x: [x.view(-1), x * 2], lambda: [numbers(2, 3, grad=True)]),
    "W30_view_of_non_leaf": (lambda x: [x.view(-1), x * 2], lambda: [grown(2, 3)]),
    "W30_view_of_written": (lambda x: [x.mul_(3).view(-1)], lambda: [grown(2, 3)]),
    "W30_diagonal": (lambda x: [x.diagonal(), x[1:, :2], x.expand(2, 2, 3)], lambda: [numbers(2, 3)]),
    "W30_view_as_real": (lambda x: [torch.view_as_real(x)], lambda: [torch.complex(numbers(3), numbers(3))]),
    "W30_dtype": (lambda x: [x.view(torch.int32)], lambda: [numbers(4)]),
    "W30_unbind": (lambda x: [*x.unbind(0)], lambda: [numbers(2, 3)]),
    "W31_two_views": (lambda x: (lambda y: [y.view(-1), y.t()])(x * 2), lambda: [numbers(2, 3, grad=True)]),
    "W31_base_and_view": (lambda x: (lambda y: [y, y.view(-1)])(x * 2), lambda: [numbers(2, 3, grad=True)]),
    "W31_view_and_base": (lambda x: (lambda y: [y.view(-1), y])(x * 2), lambda: [numbers(2, 3, grad=True)]),
    "W31_detached": (lambda x: (lambda y: [y, y.detach()])(x * 2), lambda: [numbers(2, 3, grad=True)]),
    "W31_inference": (lambda x: (lambda y: [y, y.view(-1), y.t()])(x * 2), lambda: [numbers(2, 3)]),
    "W32_lone_view": (lambda x: [(x * 2).view(-1)], lambda: [numbers(2, 3, grad=True)]),
    "W34_flags_tf": (lambda x, y: [x * y, x + 1, y + 1], lambda: [numbers(2, grad=True), numbers(2)]),
    "W34_flags_tt": (lambda x, y: [x * y, x + 1, y + 1], lambda: [numbers(2, grad=True), numbers(2, grad=True)]),
    "W36_unused": (lambda x, y: [x.sin()], lambda: [numbers(2, grad=True), numbers(2, grad=True)]),
    "W37_channels_last": (
        lambda x: [x.sin()],
        lambda: [numbers(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()],
    ),
    "W37_transposed": (lambda x: [x.t() * 2, x.sin().t()], lambda: [numbers(2, 3, grad=True)]),
    "W7_twice_not_written": (lambda a, b: [a * b], lambda: [numbers(2, grad=True)] * 2),
    "W7_twice_returned": (lambda a, b: [a, b.view(-1)], lambda: [numbers(2, 3)] * 2),
    "W8_twice_written": (lambda a, b: (a.mul_(2), [a + b])[1], lambda: [numbers(2, 3)] * 2),
    "W8_written_and_returned": (lambda a, b: (a.mul_(2), [b, a + b])[1], lambda: [grown(2, 3)] * 2),
    "W8_transposed": (lambda a, b: (a.t_(), [b + 1])[1], lambda: [numbers(2, 3)] * 2),
    "Wplus2_both_transposed": (lambda a, b: (a.t_(), b.t_(), [a + b])[2], lambda: [numbers(2, 3)] * 2),
}


def _test_of(row: str, names: list[str], **changes: Any) -> Any:
    @pytest.mark.parametrize("name", names)
    def test(name: str) -> None:
        twin(*CASES[name], **changes)

    test.__name__ = test.__qualname__ = f"test_{row}_behaves_like_eager"
    return test


def _tests_by_row() -> dict[str, Any]:
    """One test for each row, so that each row can be run by its name; where saving matters once more with the min cut."""
    rows: dict[str, list[str]] = {}
    for name in CASES:
        rows.setdefault(name.split("_")[0], []).append(name)
    tests = {f"test_{row}_behaves_like_eager": _test_of(row, names) for row, names in rows.items()}
    for row, names in rows.items():
        if row[1:3] >= "29" or row == "W22":
            tests[f"test_{row}_behaves_like_eager_with_the_min_cut"] = _test_of(row, names, partition=min_cut)
    return tests


globals().update(_tests_by_row())
