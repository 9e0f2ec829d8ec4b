"""A traced graph goes through every stage once and in order, and means what eager means."""

from __future__ import annotations

import copy
import importlib.metadata
import tomllib
from pathlib import Path

import pytest
import torch
import torch.fx
from torch import nn

from support.compiled import INDUCTOR_IN_SOAK, SeenOperators, compiled, small_net
from treeplay.backend import wrapped as wrapped_module
from treeplay.backend.account import graph_reports
from treeplay.errors import ArgumentError, Refusal, UsageError
from treeplay.torch_compile import backend, compile_graph
from treeplay.values.refusal import Reason


def wave(x, w):
    return torch.sin(x @ w).cos()


def test_D1_the_graph_given_is_left_as_it_is():
    module = torch.fx.symbolic_trace(lambda d: {"o": d["a"] * 2})
    before = module.code
    run = compile_graph(module, [{"a": torch.ones(2)}], inner="aten")
    assert run({"a": torch.full((2,), 3.0)})["o"].tolist() == [6, 6]
    assert module.code == before


@pytest.mark.parametrize("inner", ["aten", "inductor"])
def test_D1_a_compiled_module_computes_what_eager_does(inner):
    net, x = small_net(), torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(net, backend=backend, options={"inner": inner})(x), net(x))


@pytest.mark.parametrize("inner", ["aten", "inductor"])
def test_D1_a_compiled_module_has_the_gradients_of_eager(inner):
    net, x = small_net(), torch.randn(3, 4)
    twin = copy.deepcopy(net)
    twin(x).square().sum().backward()
    torch.compile(net, backend=backend, options={"inner": inner})(x).square().sum().backward()
    for mine, wanted in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, wanted.grad)


@INDUCTOR_IN_SOAK  # test_sizes_that_change_train has such sizes
def test_a_batch_size_that_changes(inner):
    net = small_net()
    run = torch.compile(net, backend=backend, options={"inner": inner}, dynamic=True)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(run(x), net(x))


def test_inputs_that_a_program_writes():
    def program(x):
        x.add_(1)
        return x * 2

    x = torch.zeros(3)
    assert compiled(program)(x).tolist() == [2, 2, 2] and x.tolist() == [1, 1, 1]


def test_D2_options_hold_for_the_backward_that_is_compiled_later():
    seen = []

    def note(module, is_inference):
        seen.append(is_inference)

    w = torch.randn(3, 3, requires_grad=True)
    options = {"inner": "aten", "after_autograd": [note]}
    loss = torch.compile(wave, backend=backend, options=options)(torch.randn(2, 3), w).sum()
    options["after_autograd"].clear()
    assert seen == [False]
    loss.backward()
    assert seen == [False, False]


KEEPS_PLACES = torch.fx.symbolic_trace(lambda x, y: (x * 2 - y, None, 3))


@pytest.mark.parametrize("record", [True, False])
def test_T6_results_keep_places_and_a_wrong_type_is_named_by_position(record, device):
    x = torch.arange(3.0, device=device)
    run = compile_graph(KEEPS_PLACES, [x, x], options={"inner": "aten", "record": record})
    for call in range(5):
        for bad, message in (
            ((x, "a"), r"argument 1 \(`y`\) was a tensor that needs no gradient .* and is now str"),
            (([1.0], x), r"argument 0 \(`x`\) .* is now list"),
            ((x, None), r"argument 1 \(`y`\) .* is now NoneType"),
            ((x,), "expected 2 arguments"),
        ):
            with pytest.raises(UsageError, match=message):
                run(*bad)
        first, nothing, number = run(x + call, x)
        assert first.tolist() == ((x + call) * 2 - x).tolist() and (nothing, number) == (None, 3)
    if device == "cuda":
        report = graph_reports()[-1]
        assert (report.launch is not None and report.launch.stage == "recorded") is record


def test_T6_an_inner_compiler_whose_callable_leaves_its_list_full_is_told():
    inner = lambda module, inputs: lambda args: module(*args)  # noqa: E731
    run = compile_graph(KEEPS_PLACES, [torch.ones(3)] * 2, inner=inner)
    with pytest.raises(UsageError, match="left 2 values in the list of its arguments"):
        run(torch.ones(3), torch.ones(3))


def test_D2_an_unknown_option_is_refused():
    module = torch.fx.symbolic_trace(lambda x: (x + 1,))
    with pytest.raises(ArgumentError, match="did you mean 'inner'"):
        compile_graph(module, [torch.ones(3)], options={"iner": "aten"})


def spies(log):
    return {
        "before_autograd": [lambda module, inputs: log.append("pre")],
        "joint": [lambda module: log.append("joint")],
        "after_autograd": [lambda module, is_inference: log.append("inference" if is_inference else "training")],
    }


def test_D9_each_point_is_passed_once_in_training():
    log = []
    w = torch.randn(3, 3, requires_grad=True)
    loss = compiled(wave, **spies(log))(torch.randn(2, 3), w).sum()
    loss.backward()
    assert log == ["pre", "joint", "training", "training"]


def test_D9_each_point_is_passed_once_for_inference():
    log = []
    run = compiled(wave, **spies(log))
    run(torch.randn(2, 3), torch.randn(3, 3))
    run(torch.randn(2, 3), torch.randn(3, 3))
    assert log == ["pre", "joint", "inference"]


SINES = {torch.sin: torch.cos, torch.ops.aten.sin.default: torch.ops.aten.cos.default}


def to_cosines(module, *_):
    for node in module.graph.nodes:
        node.target = SINES.get(node.target, node.target) if node.op == "call_function" else node.target


@pytest.mark.parametrize("point", ["before_autograd", "joint", "after_autograd"])
def test_D9_a_pass_at_each_point_changes_the_result(point):
    x = torch.randn(4)
    run = compiled(lambda x: torch.sin(x) * 2, **{point: [to_cosines]})
    torch.testing.assert_close(run(x), torch.cos(x) * 2)


def test_D9_a_pass_on_the_joint_graph_reaches_the_backward():
    x = torch.randn(4, requires_grad=True)

    def double(module):
        for node in module.graph.nodes:
            if node.target is torch.ops.aten.mul.Tensor and node.args[1] == 2:
                node.args = (node.args[0], 6)

    compiled(lambda x: x * 2, joint=[double])(x).sum().backward()
    assert x.grad.tolist() == [6, 6, 6, 6]


def test_D9_a_broken_pass_is_named():
    def erase(module, inputs):
        node = next(node for node in module.graph.nodes if node.op == "call_function")
        module.graph.erase_node(node)

    module = torch.fx.symbolic_trace(lambda x: (x + 1,))
    with pytest.raises(UsageError, match="erase"):
        compile_graph(module, [torch.ones(3)], options={"inner": "aten", "before_autograd": [erase]})


def test_D10_control_flow_in_control_flow():
    def program(x):
        def inner(x):
            return torch.cond(x.sum() > 3, lambda x: x.sin(), lambda x: x * 5, (x,))

        return torch.cond(x.sum() > 0, inner, lambda x: x - 7, (x,))

    run = compiled(program, after_autograd=[to_cosines])
    for scale in (2.0, 0.5, -1.0):
        x = torch.full((3,), scale)
        wanted = x.cos() if x.sum() > 3 else x * 5 if x.sum() > 0 else x - 7
        assert torch.equal(run(x), wanted)


def test_a_partitioner_of_the_user_is_given_what_torch_gives():
    seen = []

    def split(joint, inputs, **known):
        from torch._functorch.partitioners import default_partition

        seen.append(known["num_fwd_outputs"])
        return default_partition(joint, inputs, **known)

    w = torch.randn(3, 3, requires_grad=True)
    x = torch.randn(2, 3)
    compiled(wave, partition=split)(x, w).sum().backward()
    mine, w.grad = w.grad, None
    wave(x, w).sum().backward()
    torch.testing.assert_close(mine, w.grad)
    assert seen == [1]


def test_D14_compiling_uses_up_no_random_numbers():
    run = compiled(lambda x: x + torch.rand(3), eager_random=True)
    torch.manual_seed(3)
    run(torch.zeros(3))
    mine = torch.rand(2)
    torch.manual_seed(3)
    torch.rand(3)
    assert torch.equal(mine, torch.rand(2))


def test_D14_dispatch_modes_see_no_compiling():
    module = torch.fx.symbolic_trace(lambda x: (x.sin() + 1,))
    x = torch.ones(3)
    with SeenOperators() as log:
        run = compile_graph(module, [x], inner="aten")
        assert log.seen == []
        run(x)
        first, log.seen = log.seen, []
        run(x)
    assert first == log.seen != []


def test_what_cannot_be_wrapped_runs_as_it_is_with_a_warning(monkeypatch):
    def refuse(*_, **options):
        raise Refusal(Reason("trace", "it is odd", "leave it"))

    monkeypatch.setattr(wrapped_module, "wrap_function", refuse)
    module = torch.fx.symbolic_trace(lambda x: {"o": x + 1})
    with pytest.warns(UserWarning, match="runs a graph uncompiled: .*it is odd"):
        run = compile_graph(module, [torch.ones(2)], inner="aten")
    assert run(torch.ones(2))["o"].tolist() == [2, 2]
    report = graph_reports()[-1]
    assert report.outcome == "uncompiled" and "it is odd" in str(report)


def test_D7_a_program_without_work_compiles_nothing():
    def inner(module, inputs):
        raise AssertionError("compiled")

    x = torch.ones(3)
    assert compile_graph(torch.fx.symbolic_trace(lambda x: (x,)), [x], inner=inner)(x)[0] is x


def test_D3_nested_inputs_and_a_nested_result_with_gradients():
    module = torch.fx.symbolic_trace(lambda d: {"o": [d["a"] * d["b"][0]]})
    a, b = torch.ones(3, requires_grad=True), torch.full((3,), 3.0)
    run = compile_graph(module, [{"a": a, "b": (b,)}], inner="aten")
    result = run({"a": a, "b": (b,)})
    result["o"][0].sum().backward()
    assert type(result["o"]) is list and a.grad.tolist() == [3, 3, 3]


@pytest.mark.parametrize("inner", ["aten", "inductor"])
def test_a_training_step_with_running_statistics(inner):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    twin = copy.deepcopy(net)
    run = torch.compile(net, backend=backend, options={"inner": inner})
    for seed in range(3):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
        for program, module in ((run, net), (twin, twin)):
            module.zero_grad()
            program(x).square().sum().backward()
    for mine, wanted in zip(net.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(mine, wanted)
    for mine, wanted in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, wanted.grad)


ACTIVATIONS = (nn.functional.hardtanh, nn.functional.hardswish, nn.functional.elu)


@pytest.mark.parametrize(
    ("function", "inner"),
    [
        *((function, "aten") for function in ACTIVATIONS),
        (ACTIVATIONS[0], "inductor"),
        *(pytest.param(function, "inductor", marks=pytest.mark.soak) for function in ACTIVATIONS[1:]),
    ],
)
def test_D1_a_gradient_that_comes_transposed_can_be_viewed(function, inner):
    def program(w, g):
        y = function((w * 1.5).view(2, 4, 8)).transpose(1, 2)
        return (y.reshape(2, 32) * g).sum()

    w, g = torch.randn(64, requires_grad=True), torch.randn(2, 32)
    torch.compile(program, backend=backend, options={"inner": inner})(w, g).backward()
    mine, w.grad = w.grad, None
    program(w, g).backward()
    torch.testing.assert_close(mine, w.grad)


def test_D1_the_entry_point_names_the_backend():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    found = tomllib.loads(text)["project"]["entry-points"]["torch_dynamo_backends"]["treeplay"]
    module, name = found.split(":")
    assert getattr(importlib.import_module(module), name) is backend


SCRIPT = """
import sys, torch
net, x = torch.nn.Linear(4, 2), torch.randn(3, 4)
assert "treeplay" not in sys.modules
torch.testing.assert_close(torch.compile(net, backend="treeplay", options={"inner": "aten"})(x), net(x))
"""


def test_D1_torch_finds_the_backend_by_its_name(tmp_path, fresh_python):
    known = importlib.metadata.entry_points(group="torch_dynamo_backends")
    if "treeplay" not in known.names:
        pytest.skip("treeplay was installed before it had this entry point")
    fresh_python(SCRIPT, cwd=tmp_path)


def draws_for_nobody(x):
    torch.nn.functional.dropout(x, 0.5)
    dropped = torch.nn.functional.dropout(x, 0.5) * 3
    torch.rand(3)
    return dropped - torch.rand(8)


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"inner": "aten"}, pytest.param({"inner": "inductor", "eager_random": True}, marks=pytest.mark.compile)],
    ids=["aten", "inductor"],
)
def test_D14_random_numbers_that_nobody_uses_are_drawn_all_the_same(options, needs_gradient):
    def run(program):
        torch.manual_seed(0)
        x = torch.ones(8, requires_grad=needs_gradient)
        result = program(x)
        if needs_gradient:
            result.sum().backward()
        return result.detach(), x.grad, torch.rand(2)

    program = torch.compile(draws_for_nobody, backend=backend, options=options)
    torch.testing.assert_close(run(program), run(draws_for_nobody), rtol=0, atol=0)


@pytest.mark.parametrize(("mode", "dimensions"), [("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3)])
def test_operators_as_they_are_interpolate_to_the_bit(mode, dimensions):
    def run(x):
        return torch.nn.functional.interpolate(x, scale_factor=1.7, mode=mode) - 1

    program = torch.compile(run, backend=backend, options={"inner": "aten"})
    mine = torch.randn(1, 2, *(4, 5, 6)[:dimensions], requires_grad=True)
    eager = mine.detach().clone().requires_grad_()
    found, expected = program(mine), run(eager)
    found.square().sum().backward()
    expected.square().sum().backward()
    assert torch.equal(found, expected) and torch.equal(mine.grad, eager.grad)


def test_an_interpolation_of_sizes_that_change_is_followed():
    def run(x):
        return torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear") - 1

    program = torch.compile(run, backend=backend, options={"inner": "aten"}, dynamic=True)
    for size in (4, 5, 7):
        x = torch.randn(1, 2, size, size + 2)
        torch.testing.assert_close(program(x), run(x))


class DrawsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        torch.rand(2)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        torch.rand(3)
        first, second = torch.rand(8), torch.rand(8)
        torch.nn.functional.dropout(gradient, 0.5)
        return gradient * second - first


@pytest.mark.parametrize(
    "options",
    [{"inner": "aten"}, pytest.param({"inner": "inductor", "eager_random": True}, marks=pytest.mark.compile)],
    ids=["aten", "inductor"],
)
def test_D14_a_custom_backward_draws_when_it_runs(options):
    def run(program):
        torch.manual_seed(0)
        x = torch.ones(8, requires_grad=True)
        result, between = program(x) - torch.rand(8), torch.rand(2)
        torch.manual_seed(1)
        result.sum().backward()
        return result.detach(), between, x.grad, torch.rand(2)

    program = torch.compile(DrawsInBackward.apply, backend=backend, options=options)
    for _ in range(2):
        torch.testing.assert_close(run(program), run(DrawsInBackward.apply), rtol=0, atol=0)


class DrawsForBoth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, g, h):
        return g * torch.rand(8) - 1, h - torch.rand(8)


@pytest.mark.parametrize(
    ("which", "options"),
    [
        *((which, {"inner": "aten"}) for which in range(3)),
        *(
            pytest.param(which, {"inner": "inductor", "eager_random": True}, marks=pytest.mark.compile)
            for which in range(2)  # of the third's many draws, Inductor changes the order
        ),
    ],
)
def test_a_custom_backward_draws_only_where_autograd_runs_it(options, which):
    def draws_in_two_nodes(x, y):
        a, b = DrawsForBoth.apply(x * 2, y - 1)
        return a, b - x, DrawsInBackward.apply(x * 5) / y

    def run(program, wanted):
        torch.manual_seed(0)
        given = [torch.arange(8.0, requires_grad=True), torch.full((8,), 3.0, requires_grad=True)]
        result = program(*given)[which].sum()
        torch.manual_seed(1)
        return torch.autograd.grad(result, [given[k] for k in wanted], allow_unused=True), torch.rand(2)

    program = torch.compile(draws_in_two_nodes, backend=backend, options=options)
    for wanted in ((0, 1), (0,), (1,)):
        torch.testing.assert_close(run(program, wanted), run(draws_in_two_nodes, wanted), rtol=0, atol=0)


def test_a_custom_backward_that_draws_beside_tensors_made_of_others_runs_uncompiled():
    from torch.testing._internal.two_tensor import TwoTensor

    weight = torch.full((8,), 3.0, requires_grad=True)

    def program(x, y):
        return DrawsInBackward.apply(x - weight) / y

    def run(program):
        torch.manual_seed(0)
        y = torch.full((8,), 7.0, requires_grad=True)
        (gradient,) = torch.autograd.grad(program(TwoTensor(torch.ones(8), torch.ones(8)), y).sum(), [y])
        return gradient.a, torch.rand(2)

    compiled = torch.compile(program, backend=backend, options={"inner": "aten"})
    with pytest.warns(UserWarning, match="may run for some of the gradients only"):
        found = run(compiled)
    torch.testing.assert_close(found, run(program), rtol=0, atol=0)


@pytest.fixture
def logged():
    seen = []
    with torch.library._scoped_library("treeplay_test", "FRAGMENT") as library:
        library.define("logs(Tensor x) -> ()")
        library.impl("logs", lambda x: seen.append(x.sum().item()), "CompositeExplicitAutograd")
        library.impl("logs", lambda x: None, "Meta")
        yield seen


def test_what_a_custom_function_logs_by_an_operator_is_logged(logged):
    class Logs(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            torch.ops.treeplay_test.logs(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            torch.ops.treeplay_test.logs(gradient)
            return gradient * 2

    program = torch.compile(Logs.apply, backend=backend, options={"inner": "aten"})
    for k in range(3):
        program(torch.full((3,), float(k), requires_grad=True)).sum().backward()
    assert logged == [0, 3, 3, 3, 6, 3]
