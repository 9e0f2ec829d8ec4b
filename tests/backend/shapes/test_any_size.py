"""Graphs with symbolic sizes on the CPU are compiled once for all sizes, where a call has nothing to do beside the graph."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional as F

from support.compiled import Inner
from treeplay.backend.account import graph_reports
from treeplay.backend.options import Options
from treeplay.driver import compile_captured
from treeplay.lower.inductor import artifact
from treeplay.observe import counters
from treeplay.settings import settings
from treeplay.torch_compile import backend
from treeplay.torch_seam.symbols import has_symbols

pytestmark = pytest.mark.compile
SIZES = 3, 5, 8, 4, 17, 64, 2, 33
weight = torch.randn(6, 6)


def many_results(x):
    rows = x.shape[0]
    y = x.clone().add_(1).mul_(rows)
    return (
        y.t(),
        y.softmax(0) @ weight,
        (x @ x.t()).tril()[1:, :-1] * (1 / (rows + 1)) + rows**0.5 - (1 - rows) // 2 + (1 - rows) % 3,
        torch.cat([x, x[:1] * 2]).reshape(-1) * min(rows, 6),
        torch.arange(rows) + x.argmax(0).sum(),
        rows * 2 + 1,
    )


def equal_results(x):
    return x * 2, x * 2, x + 0, x.clone()


PROGRAMS = {
    "a mean over rows": lambda x: x.sum(0) / x.shape[0],
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "a convolution": lambda x: F.conv1d(x.t()[None], weight[:, :, None]),
    "rows in another order": lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)],
    "permuted": lambda x: (x.unsqueeze(1).expand(-1, 3, -1) + 1).permute(2, 0, 1) * 2,
    "a slice": lambda x: (x * 2)[1:-1],
    "fewer dimensions of one": lambda x: (x[None] * 2 - 1).squeeze(0),
    "transposed": lambda x: (x * 2 - 1).t(),
    "padding": lambda x: F.pad(x, (0, 0, 0, x.shape[0])),
    "sizes twice as large": lambda x: torch.zeros(x.shape[0] * 2, 3) + x.sum(),
    "interpolated": lambda x: F.interpolate(x[None, None], scale_factor=2.0),
    "the largest two": lambda x: x.topk(2, 0),
    "a tensor of the size": lambda x: x * torch.tensor(x.shape[0]),
}


def compiled(program, **options):
    return torch.compile(program, backend=backend, dynamic=True, options=options)


def flat(results):
    return results if isinstance(results, tuple) else (results,)


def check(program, run, sizes=SIZES):
    for rows in sizes:
        x = torch.randn(rows, 6)
        given = x.clone()
        for mine, wanted in zip(flat(run(given)), flat(program(x)), strict=True):
            assert type(mine) is type(wanted)
            torch.testing.assert_close(mine, wanted)
            assert not isinstance(mine, torch.Tensor) or mine.stride() == wanted.stride()
        assert torch.equal(given, x)


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_what_is_compiled_once_is_right_for_all_sizes(recwarn):
    before = graphs()
    with torch.no_grad(), settings.changed(compile_budget=0.0):
        check(many_results, compiled(many_results), [rows for rows in SIZES if rows > 2])  # of 2, a part has size 1
    assert counters["sizes"] == {"compiled for all": 1} and graphs() == before + 1
    assert not [str(item.message) for item in recwarn if "treeplay" in str(item.message)]


@pytest.mark.soak
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_is_right_for_all_sizes(name):
    check(PROGRAMS[name], compiled(PROGRAMS[name]))
    assert set(counters["sizes"]) == {"compiled for all"}  # more than once where a part comes to have size 0 or 1


def test_equal_results_do_not_share_memory_with_each_other_or_with_arguments():
    run = compiled(equal_results)
    for rows in (3, 5):
        x = torch.ones(rows, 6)
        results = run(x)
        for result in results:
            result.zero_()
        assert torch.equal(x, torch.ones(rows, 6)) and len({result.data_ptr() for result in results}) == 4
    assert counters["sizes"]["compiled for all"] == 1


def test_sizes_that_change_while_others_stay():
    def program(x, cache):
        cache = torch.cat([cache, x], 1)
        return F.scaled_dot_product_attention(x, cache, cache), cache

    run = torch.compile(program, backend=backend)
    mine = wanted = torch.zeros(1, 0, 8)
    for _ in range(9):
        x = torch.randn(1, 1, 8)
        (result, mine), (eager, wanted) = run(x, mine), program(x, wanted)
        torch.testing.assert_close((result, mine), (eager, wanted))
    assert counters["sizes"] == {"compiled for all": 1}


def test_a_number_that_changes():
    run = torch.compile(lambda x, step: x * (1.0 / (step + 1)) - step // 3, backend=backend)
    for step in range(8):
        torch.testing.assert_close(run(torch.ones(3), step), torch.ones(3) / (step + 1) - step // 3)
    assert counters["sizes"] == {"compiled for all": 1}


def test_parameters_that_need_gradients_under_no_grad_inside():
    linear = torch.nn.Linear(6, 6)

    def program(x):
        with torch.no_grad():
            return linear(x).tanh()

    run = compiled(program)
    check(program, run, (3, 5))
    assert counters["sizes"] == {"compiled for all": 1} and not run(torch.ones(4, 6)).requires_grad


def test_results_in_inference_mode_are_of_it():
    run = compiled(lambda x: x * x.shape[0])
    with torch.inference_mode():
        for rows in (3, 5):
            result = run(torch.ones(rows, 2))
            assert result.is_inference() and torch.equal(result, torch.full((rows, 2), float(rows)))
    assert counters["sizes"]["compiled for all"] == 1


def test_what_fails_raises_what_eager_raises():
    run = compiled(lambda x, at: x[at] * x.shape[0])
    for rows in (3, 5):
        assert torch.equal(run(torch.ones(rows), torch.tensor([rows - 1])), torch.tensor([float(rows)]))
        with pytest.raises(IndexError, match="out of bounds"):
            run(torch.ones(rows), torch.tensor([rows]))
    assert counters["sizes"]["compiled for all"] == 1


def write(x):
    return x.add_(1) * x.shape[0]


def views(x):
    y = x * 2
    return y[0], y[1:]


def drawn(x):
    return torch.rand_like(x) * 0 + x


@pytest.mark.parametrize("program", [write, views, lambda x: (x[1:], x * 3), drawn])
def test_what_a_call_has_to_do_more_for_is_compiled_for_each_size(program):
    run = compiled(program)
    with torch.no_grad():
        for rows in (3, 5):
            mine, theirs = torch.ones(rows, 6), torch.ones(rows, 6)
            torch.testing.assert_close(run(mine), program(theirs))
            assert torch.equal(mine, theirs)
    assert counters["sizes"] == {"not for all at once": 1, "compiled": 2}


def test_gradients_are_compiled_for_each_size():
    run = compiled(lambda x: (x.sin() * x.shape[0]).sum())
    for rows in (3, 5):
        x = torch.ones(rows, requires_grad=True)
        run(x).backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * rows)
    assert counters["sizes"] == {"compiled": 2}


def test_where_inductor_cannot_each_size_is_compiled(monkeypatch, recwarn):
    original = artifact.compile_artifact

    def failing(module, fakes, **options):
        if any(has_symbols([value]) for value in fakes if isinstance(value, torch.Tensor)):
            raise NotImplementedError("of symbols")
        return original(module, fakes, **options)

    monkeypatch.setattr(artifact, "compile_artifact", failing)
    program = PROGRAMS["a mean over rows"]
    check(program, compiled(program), (3, 5))
    assert counters["sizes"] == {"not for all at once": 1, "compiled": 2}
    assert not [str(item.message) for item in recwarn if "uncompiled" in str(item.message)]


def test_where_strides_are_others_each_size_is_compiled(monkeypatch):
    original = artifact.compile_artifact

    def otherwise(module, fakes, *, strides, **options):
        run = original(module, fakes, strides=strides, **options)
        strides[:] = [tuple(reversed(stride)) for stride in strides]
        return run

    monkeypatch.setattr(artifact, "compile_artifact", otherwise)
    program = PROGRAMS["padding"]
    check(program, compiled(program), (3, 5))
    assert counters["sizes"]["not for all at once"] == 1 and counters["sizes"]["compiled"] == 2


def test_nothing_is_asked_of_symbols_of_which_nobody_makes_guards():
    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.ones(4, 3))
    run = compile_captured(torch.fx.symbolic_trace(lambda x: (x * 2 - 1,)), [fake], Options())
    for rows in (4, 5):
        torch.testing.assert_close(run(torch.ones(rows, 3))[0], torch.ones(rows, 3))
    assert counters["sizes"] == {"compiled": 2}


def test_what_the_compiler_asks_of_sizes_is_guarded(monkeypatch):
    original, program, asked = artifact.compile_artifact, PROGRAMS["a mean over rows"], []

    def asking(module, fakes, **options):
        (x,) = (value for value in fakes if isinstance(value, torch.Tensor))
        asked.append(bool(x.shape[0] < 10))
        return original(module, fakes, **options)

    monkeypatch.setattr(artifact, "compile_artifact", asking)
    run, before = compiled(program), graphs()
    check(program, run, (3, 5, 20, 9, 11))
    assert counters["sizes"] == {"compiled for all": 2} and graphs() == before + 2 and asked == [True, False]


def test_marked_sizes_stay_free():
    program, before = PROGRAMS["a mean over rows"], graphs()
    run = torch.compile(program, backend=backend)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 6)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(run(x), program(x))
    assert graphs() == before + 1 and counters["sizes"] == {"compiled for all": 1}


def test_a_users_own_compiler_and_passes_see_known_sizes():
    seen = []

    def note(module, is_inference):
        seen.extend(tuple(node.meta["val"].shape) for node in module.graph.find_nodes(op="output")[0].all_input_nodes)

    mine = Inner()
    for options in ({"after_autograd": [note]}, {"inner": mine}):
        torch._dynamo.reset()
        check(PROGRAMS["padding"], compiled(PROGRAMS["padding"], **options), (3, 5))
    assert seen == [(6, 6), (10, 6)] and len(mine.graphs) == 2


def test_reports_tell_the_sizes_of_the_first_call():
    run = compiled(lambda x: x * x.shape[0])
    run(torch.ones(7, 2))
    report = max(graph_reports(), key=lambda report: report.graph_id)
    assert [item.spec.shape for item in report.inputs if item.spec is not None] == [(7, 2)]
