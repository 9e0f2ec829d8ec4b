"""What a graph returns is found again from new memory and from the arguments of the day."""

from __future__ import annotations

import pytest
import torch

from treeplay.backend.recording.returns import ResultMaker, Returns, survey_returns
from treeplay.codegen import Writer
from treeplay.values.layout import Layout
from treeplay.values.output import Fresh, SameAsInput, Static, View


def program(x: torch.Tensor, w: torch.Tensor, size: int) -> list[object]:
    hidden = x * 2 - w
    rest = torch.empty(10)[2:8].copy_(x.reshape(-1)[:6])
    return [hidden, w, w.t(), hidden.t(), None, size, x[1:], rest, torch.empty(0)]


def test_each_result_is_told_by_its_memory() -> None:
    x, w = torch.randn(3, 4), torch.randn(12)[2:6]
    returns = survey_returns([x, w, 7], program(x, w, 7))
    assert isinstance(returns, Returns)
    assert returns.refs == (
        Fresh(0),
        SameAsInput(1),
        View(SameAsInput(1), Layout((4,), (1,), 0)),
        View(Fresh(0), Layout((4, 3), (1, 4), 0)),
        Static(None),
        Static(7),
        View(SameAsInput(0), Layout((2, 4), (4, 1), 4)),
        View(Fresh(1), Layout((6,), (1,), 2)),
        Fresh(2),
    )
    assert returns.owners == (0, 7, 8)


def test_one_tensor_given_twice_is_one_tensor_again() -> None:
    hidden = torch.randn(3) * 2
    returns = survey_returns([], [hidden, hidden, hidden[:]])
    assert isinstance(returns, Returns) and returns.owners == (0,)
    assert returns.refs == (Fresh(0), Fresh(0), View(Fresh(0), Layout((3,), (1,), 0)))


def test_results_are_put_together_from_other_arguments_and_new_memory() -> None:
    x, w = torch.randn(3, 4), torch.randn(12)[2:6]
    returns = survey_returns([x, w, 7], program(x, w, 7))
    assert isinstance(returns, Returns)
    writer = Writer()
    text = map(ResultMaker.of_text(writer, [f"made[{at}]" for at in range(len(returns.owners))]), returns.refs)
    x2, w2 = torch.randn(20)[5:17].view(3, 4), torch.randn(4)
    expected = program(x2, w2, 7)
    found = eval(f"[{', '.join(text)}]", writer.names | {"args": [x2, w2, 7], "made": returns.bases_of(expected)})
    for one, other in zip(found, expected, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other
            continue
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert one.stride() == other.stride() and one.data_ptr() == other.data_ptr()
    assert found[1] is w2


def test_one_argument_at_two_places_is_either_of_them() -> None:
    x = torch.randn(3)
    assert survey_returns([x, x], [x]) == Returns((SameAsInput(0),), ())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x: ([x[:2], x[1:]], [x[1:2].view(1, 1)]), "memory that inputs 0, 1 share"),
        (lambda x: ([x], [x.view(torch.int32)]), "another dtype"),
        (lambda x: ([], [y := x * 1, y.view(torch.int32)]), "an earlier result with another dtype"),
        (lambda x: ([], [(x + 1).to_sparse()]), "more than memory"),
    ],
)
def test_what_cannot_be_told_has_a_reason(make, text) -> None:
    args, results = make(torch.randn(3))
    found = survey_returns(args, results)
    assert isinstance(found, str) and text in found
