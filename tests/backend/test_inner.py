"""One flat graph becomes a boxed callable, and a graph without work is not compiled."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx

from support.compiled import Inner
from treeplay.backend import inner as inner_module
from treeplay.backend.inner import boxed, compile_inner
from treeplay.backend.options import Options
from treeplay.errors import LoweringError
from treeplay.torch_seam.fx import lazy_module


def test_D7_a_graph_without_work_gives_the_very_same_tensor_and_is_not_compiled():
    inner, x = Inner(), torch.ones(3)
    run = compile_inner(torch.fx.symbolic_trace(lambda x: (x,)), [x], Options(inner=inner))
    assert run([x])[0] is x and not inner.graphs


def test_D7_a_graph_without_results_is_not_compiled():
    inner = Inner()
    assert tuple(compile_inner(torch.fx.symbolic_trace(lambda: ()), [], Options(inner=inner))([])) == ()
    assert not inner.graphs


def test_D8_a_result_that_is_no_tuple_is_refused_with_the_graph():
    with pytest.raises(LoweringError, match="placeholder"):
        compile_inner(torch.fx.symbolic_trace(lambda x: x + 1), [torch.ones(3)], Options(inner="aten"))


def test_D8_none_and_numbers_stay_in_their_places():
    module = torch.fx.symbolic_trace(lambda x: (x + 1, None, x.shape[0]))
    run = compile_inner(module, [torch.ones(3)], Options(inner="aten"))
    result = run([torch.ones(3)])
    assert result[0].tolist() == [2, 2, 2] and result[1:] == (None, 3)


def test_the_list_of_arguments_is_emptied():
    args = [torch.ones(3)]
    compile_inner(torch.fx.symbolic_trace(lambda x: (x + 1,)), args, Options(inner="aten"))(args)
    assert args == []


def test_D14_autocast_is_off_while_a_graph_is_lowered():
    seen = []

    def inner(module, inputs):
        seen.append(torch.is_autocast_enabled("cpu"))
        return boxed(module)

    with torch.autocast("cpu", torch.bfloat16):
        compile_inner(torch.fx.symbolic_trace(lambda x: (x + 1,)), [torch.ones(3)], Options(inner=inner))
        assert torch.is_autocast_enabled("cpu")
    assert seen == [False]


def test_without_a_compiler_operators_run_as_they_are(monkeypatch):
    monkeypatch.setattr(inner_module, "find_compiler", lambda: SimpleNamespace(path=None))
    monkeypatch.setattr("treeplay.lower.inductor.artifact.compile_artifact", None)
    module = torch.fx.symbolic_trace(lambda x: (x + 1,))
    assert compile_inner(module, [torch.ones(3)], Options())([torch.ones(3)])[0].tolist() == [2, 2, 2]


def test_the_graph_given_to_inductor_stays_as_it_is_for_others(monkeypatch):
    if inner_module.find_compiler().path is None:
        pytest.skip("needs a C++ compiler")
    from treeplay.lower.inductor import artifact

    monkeypatch.setattr(
        artifact, "compile_artifact", lambda module, fakes, **_: module.graph.erase_node(module.graph.output_node())
    )
    module = make_fx(lambda x: (x * 3,))(torch.ones(2))
    before = module.code
    compile_inner(module, [torch.ones(2)], Options(inner="inductor"))
    assert str(module.graph.python_code("self").src).strip() == before.strip()


def test_a_graph_that_inductor_fails_on_runs_as_it_is(monkeypatch):
    pytest.importorskip("torch._inductor")
    if inner_module.find_compiler().path is None:
        pytest.skip("needs a C++ compiler")
    from treeplay.lower.inductor import artifact

    def fail(module, fakes, **options):
        for node in list(module.graph.nodes):  # it rewrites what it is given before it fails
            if node.op == "call_function":
                node.args = (node.args[0], 7)
        raise AssertionError("an operator that it does not know")

    monkeypatch.setattr(artifact, "compile_artifact", fail)
    module = make_fx(lambda x: (x * 3,))(torch.ones(2))
    with pytest.warns(UserWarning, match="an operator that it does not know"):
        run = compile_inner(module, [torch.ones(2)], Options(inner="inductor"))
    assert run([torch.full((2,), 2.0)])[0].tolist() == [6.0, 6.0]


@pytest.mark.parametrize(
    "program", [lambda x, w: x @ w, lambda x, w: (x * w[0]).transpose(0, 1).reshape(-1)], ids=["product", "reshaped"]
)
def test_a_result_that_eager_makes_as_a_tensor_of_its_own_can_be_written(program):
    """Operators as they are take views for reshapes, and torch refuses a write to a view that a node gave."""
    x, w = torch.randn(2, 3, 4), torch.randn(4, 4, requires_grad=True)
    compiled = torch.compile(program, backend="treeplay", options={"inner": "aten"})
    found = []
    for run in (program, compiled):
        result = run(x, w)
        assert not result._is_view()
        result.mul_(2)
        result.sum().backward()
        found.append((result.detach(), w.grad))
        w.grad = None
    torch.testing.assert_close(found[1], found[0])


def test_a_write_to_a_result_that_the_backward_needs_is_noticed():
    w = torch.randn(4, 4, requires_grad=True)

    def program(x):
        y = x @ w
        return y, y.sin()

    for run in (program, torch.compile(program, backend="treeplay", options={"inner": "aten"})):
        y, z = run(torch.randn(2, 3, 4))
        y.detach().mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


def test_an_operator_whose_overload_is_named_by_a_keyword_of_python_is_called():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(getattr(torch.ops.aten.random, "from"), (x, 2, 9)),))
    run = compile_inner(lazy_module(torch.nn.Module(), graph), [torch.ones(3)], Options(inner="aten"))
    torch.manual_seed(0)
    (found,) = run([torch.ones(3)])
    torch.manual_seed(0)
    assert torch.equal(found, torch.empty(3).random_(2, 9))
