"""What the compilers of one captured graph share: layouts, numbers, verdict, and what is told to an inner compiler."""

from __future__ import annotations

import copy
import logging
import threading
import weakref

import pytest
import torch
from torch import nn
from torch._functorch.partitioners import default_partition
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import annotate

from support.compiled import compiled
from treeplay.backend import job as job_module
from treeplay.backend import wrapped as wrapped_module
from treeplay.backend.account import graph_reports
from treeplay.backend.inner import boxed, compile_inner
from treeplay.backend.options import Options
from treeplay.errors import InternalError, Refusal
from treeplay.observe import counters, records
from treeplay.torch_compile import compile_graph
from treeplay.values.refusal import Reason
from treeplay.wrap.aot import wrap_function
from treeplay.wrap.aot.compilers import VISIBLE, Compilers


class Spy:
    """An inner compiler that notes what it is told."""

    def __init__(self):
        self.told = []

    def __call__(self, module, inputs, **told):
        names = [node.name for node in module.graph.find_nodes(op="placeholder")]
        self.told.append({**told, "names": names, "inputs": inputs, "module": copy.deepcopy(module)})
        return boxed(module)


def wave(x, w):
    x.add_(1)
    return torch.sin(x @ w).cos()


def sizes_from_values():
    return torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)


def eager_gradient(program, x, w):
    twin = w.detach().clone().requires_grad_()
    program(x.clone(), twin).sum().backward()
    return twin.grad


# D15, D16, D17


@pytest.mark.parametrize("inner", ["aten", "inductor"])
def test_D15_an_argument_is_written_once_in_every_mode(inner):
    def h(x):
        x.add_(1)
        return x * 2

    for context in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        torch._dynamo.reset()
        run = compiled(h, inner)
        with context():
            x = torch.zeros(3)
            for call in (1, 2, 3):
                before = None if x.is_inference() else x._version
                assert run(x).tolist() == [2 * call] * 3 and x.tolist() == [call] * 3
                assert before is None or x._version > before


def test_D15_three_compilers_for_three_uses():
    spy = Spy()
    w = torch.randn(3, 3, requires_grad=True)
    run = compiled(wave, spy)
    run(torch.randn(2, 3), w).sum().backward()
    with torch.no_grad():
        run(torch.randn(2, 3), w)
    flags = [(told["is_inference"], told["is_backward"]) for told in spy.told]
    assert flags == [(False, False), (False, True), (True, False)]


def test_D15_an_inference_graph_writes_its_arguments_itself():
    spy = Spy()
    x, w = torch.randn(2, 3), torch.randn(3, 3)
    wanted = wave(x.clone(), w)
    torch.testing.assert_close(compiled(wave, spy)(x, w), wanted)
    module = spy.told[0]["module"]
    assert module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert len(module.graph.output_node().args[0]) == 1


def test_D15_a_custom_decomposition_is_seen_inside():
    spy = Spy()

    def sine(x):
        return torch.cos(x) * 5

    compiled(lambda x: x.sin(), spy, decompositions={torch.ops.aten.sin.default: sine})(torch.ones(2))
    names = [str(node.target) for node in spy.told[0]["module"].graph.nodes]
    assert "aten.cos.default" in names and "aten.sin.default" not in names


def test_D16_the_order_of_results_and_inputs():
    spy = Spy()
    x, w = torch.randn(2, 3), torch.randn(3, 3, requires_grad=True)
    wanted = eager_gradient(wave, x, w)
    compiled(wave, spy)(x, w).sum().backward()
    torch.testing.assert_close(w.grad, wanted)
    forward, backward = spy.told
    results = forward["module"].graph.output_node().args[0]
    saved = [node.name for node in results[2:]]
    assert results[0].target is torch.ops.aten.add.Tensor and results[1].target is torch.ops.aten.cos.default
    assert backward["names"] == [*saved, "tangents_1"]


def test_D16_a_partition_that_saves_everything_gives_right_gradients():
    x, w = torch.randn(2, 3), torch.randn(3, 3, requires_grad=True)
    wanted = eager_gradient(wave, x, w)
    compiled(wave, partition=lambda joint, inputs, **known: default_partition(joint, inputs, **known))(
        x, w
    ).sum().backward()
    torch.testing.assert_close(w.grad, wanted)


@pytest.mark.parametrize("inner", ["aten", "inductor"])
def test_D17_results_have_the_strides_of_eager(inner):
    def program(x, w):
        return (x.t() * 2).relu(), (x @ w).t(), x.unsqueeze(0).expand(2, 3, 4) + 1

    x, w = torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)
    for mine, wanted in zip(compiled(program, inner)(x, w), program(x, w), strict=True):
        assert mine.stride() == wanted.stride()
        torch.testing.assert_close(mine, wanted)
    assert compiled(program, inner)(x, w)[0].stride() == (1, 4)


def test_D17_the_visible_results_are_marked_between_writes_and_saved():
    spy = Spy()
    w = torch.randn(3, 3, requires_grad=True)
    compiled(wave, spy)(torch.randn(2, 3), w).sum().backward()
    assert [told["visible"] for told in spy.told] == [(1,), ()]


@pytest.mark.parametrize(
    ("options", "visible"), [({"keep_strides": False}, [(), ()]), ({"keep_gradient_strides": True}, [(1,), None])]
)
def test_D17_marks_can_be_switched(options, visible):
    spy = Spy()
    w = torch.randn(3, 3, requires_grad=True)
    compiled(wave, spy, **options)(torch.randn(2, 3), w).sum().backward()
    assert [told["visible"] for told in spy.told] == visible


def test_D17_marks_survive_a_pass_that_makes_another_output_node():
    spy = Spy()

    def another_output(module, is_inference):
        old = module.graph.output_node()
        with module.graph.inserting_before(old):
            module.graph.output(old.args[0])
        module.graph.erase_node(old)

    w = torch.randn(3, 3, requires_grad=True)
    compiled(wave, spy, after_autograd=[another_output])(torch.randn(2, 3), w).sum().backward()
    assert spy.told[0]["visible"] == (1,)


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU())


@pytest.mark.compile
def test_D17_what_is_saved_lies_as_inductor_likes_and_the_backward_is_compiled_for_that(monkeypatch):
    from treeplay.lower.inductor import artifact

    reported, taken = [], []
    original = artifact.compile_artifact

    def noting(module, fakes, *, strides, **known):
        taken.append([tuple(fake.stride()) for fake in fakes])
        try:
            return original(module, fakes, strides=strides, **known)
        finally:
            reported.append(list(strides))

    monkeypatch.setattr(artifact, "compile_artifact", noting)
    net, x = convolutions(), torch.randn(2, 3, 10, 10)
    twin = copy.deepcopy(net)
    out, wanted = compiled(net, "inductor")(x), twin(x)
    assert out.stride() == wanted.stride()
    out.square().sum().backward()
    wanted.square().sum().backward()
    for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-3)
        assert mine.grad.stride() == other.grad.stride()
    free = [stride for stride in reported[0] if stride and len(stride) == 4 and stride[1] == 1]
    assert free, "this model was chosen because Inductor saves activations with channels last"
    assert all(stride in taken[1] for stride in free)


def test_a_saved_tensor_that_lies_otherwise_than_traced_reaches_the_backward_as_it_is():
    """An inner compiler of the user's may lay out what is saved as it likes."""

    def transposing(module, inputs, *, is_backward, visible):
        run = boxed(module)
        if is_backward:
            assert any(tensor.stride() == (1, 2) for tensor in inputs)
            return run

        def call(args):
            return [
                value if at in visible or value.dim() != 2 else value.t().contiguous().t()
                for at, value in enumerate(run(args))
            ]

        return call

    def program(x, w):
        return (x @ w).tanh().view(-1).sin()

    x, w = torch.randn(2, 3), torch.randn(3, 3, requires_grad=True)
    wanted = eager_gradient(program, x, w)
    compiled(program, transposing)(x, w).sum().backward()
    torch.testing.assert_close(w.grad, wanted)


# D18


def reported(module, inputs, options):
    context = TracingContext(None)
    context.output_strides = []
    with tracing(context):
        compile_inner(module, inputs, options)
    return context.output_strides


@pytest.mark.parametrize("inner", ["aten", "inductor"])
def test_D18_strides_of_results_are_reported_again_and_again(inner):
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(3, 4))
    for _ in range(2):
        module = make_fx(lambda x: (x + 1, 3))(torch.ones(3, 4))
        for node in module.graph.find_nodes(op="placeholder"):
            node.meta["val"] = fake
        assert reported(module, [fake], Options(inner=inner)) == [(4, 1), None]


def test_D18_a_list_that_is_not_empty_is_an_error():
    context = TracingContext(None)
    context.output_strides = [(1,)]
    with tracing(context), pytest.raises(InternalError, match="reported already"):
        compile_inner(make_fx(lambda x: (x + 1,))(torch.ones(3)), [torch.ones(3)], Options(inner="aten"))


# D19


def test_D19_the_backward_is_compiled_once_and_shares_the_number():
    spy = Spy()
    w = torch.randn(3, 3, requires_grad=True)
    run = compiled(wave, spy)
    for _ in range(3):
        run(torch.randn(2, 3), w).sum().backward()
    assert [told["is_backward"] for told in spy.told] == [False, True]
    assert spy.told[0]["graph_id"] == spy.told[1]["graph_id"]


def test_D19_another_compile_has_the_next_number():
    spy = Spy()
    compiled(lambda x: x + 1, spy)(torch.ones(2))
    compiled(lambda x: x + 2, spy)(torch.ones(2))
    first, second = (told["graph_id"] for told in spy.told)
    assert second == first + 1


def test_D19_the_backward_of_a_skipped_forward_is_not_recorded(monkeypatch):
    tried = []
    monkeypatch.setattr(job_module, "recorded", lambda run, *rest: tried.append(rest[3].direction) or run)

    def program(x):
        with annotate({"treeplay": "unrecorded"}):
            return x.sin()

    x = torch.randn(3, requires_grad=True)
    compiled(program)(x).sum().backward()
    forward, backward = graph_reports()[-2:]
    assert [skip.name for skip in forward.skips] == ["annotation"]
    assert "forward skipped" in str(backward.skips[0]) and tried == []


def test_D19_the_tracer_leaves_a_backward_alone_that_runs_inside_of_its_frame():
    def program(x):
        y = (x * 3).sin()
        torch._dynamo.graph_break()
        y.sum().backward()
        return y.detach() * 2

    x = torch.randn(3, requires_grad=True)
    torch._dynamo.utils.counters.clear()
    compiled(program)(x)
    torch.testing.assert_close(x.grad, 3 * (x * 3).cos().detach())
    frames = torch._dynamo.utils.counters["frames"]
    assert frames["total"] <= 6, "frames of ours were traced"  # the program in three parts, and some of Python's own


def test_D19_threads_compile_one_backward():
    spy = Spy()
    w = torch.randn(3, 3, requires_grad=True)
    run = compiled(lambda x, w: torch.sin(x @ w).cos(), spy)
    losses = [run(torch.ones(2, 3), w).sum() for _ in range(4)]
    threads = [threading.Thread(target=torch.autograd.grad, args=(loss, w)) for loss in losses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [told["is_backward"] for told in spy.told] == [False, True]


# D27


def test_D27_the_list_is_emptied_and_a_temporary_dies_before_the_last_operator():
    alive = []

    class Look(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            alive.append((func.overloadpacket.__name__, watched() is not None))
            return func(*args, **(kwargs or {}))

    def inner(module, inputs):
        return boxed(module)

    run = wrap_function(
        lambda x: [x.sin().cos().exp()],
        [torch.ones(3)],
        Compilers(forward=inner, backward=inner, inference=inner, partition=default_partition),
    )
    args = [torch.ones(3)]
    watched = weakref.ref(args[0])
    with Look():
        run(args)
    assert args == [] and alive == [("sin", True), ("cos", False), ("exp", False)]


def test_D27_boxed_callables_are_marked():
    run = boxed(torch.fx.symbolic_trace(lambda x: (x + 1,)))
    assert run._boxed_call


# D30


def test_D30_a_skip_is_reported_once_with_the_line_and_counted(caplog):
    def program(x):
        return x.nonzero() * 2  # the user's line

    with caplog.at_level(logging.INFO, "treeplay.refusals"), sizes_from_values():
        run = compiled(program)
        for _ in range(3):
            run(torch.ones(3))
    # Torch logs its sizes.
    (told,) = (record.message for record in caplog.records if record.name == "treeplay.refusals")
    assert "x.nonzero() * 2  # the user's line" in told
    assert __file__ in told and "nonzero makes a result" in told
    assert dict(counters["skips"]) == {"total": 1, "operator": 1}
    record = [item for item in records() if getattr(item, "outcome", "") == "skipped"][-1]
    assert record.skips[0].reason.where.source.startswith("return x.nonzero()")


def test_D30_every_path_fails_where_recording_is_demanded():
    def program(x):
        return x.nonzero() * 2

    with pytest.raises(Exception, match="Unrecorded: nonzero: makes a result"), sizes_from_values():
        compiled(program, record_or_fail=True)(torch.ones(3))
    with pytest.raises(Refusal, match="switched off"):
        compile_graph(
            torch.fx.symbolic_trace(lambda x: x * 2),
            [torch.zeros(3)],
            options={"inner": "aten", "record": False, "record_or_fail": True},
        )

    def marked(x):
        with annotate({"treeplay": "unrecorded"}):
            return x.sin()

    with pytest.raises(Exception, match="marked as unrecorded"):
        compiled(marked, record_or_fail=True)(torch.zeros(3, requires_grad=True))
    with pytest.raises(Exception, match="switched off"):
        compiled(lambda x: x + 1, record_or_fail=True, record=False)(torch.zeros(3))


def test_D30_a_graph_without_a_reason_is_not_reported(caplog):
    with caplog.at_level(logging.INFO, "treeplay.refusals"):
        compiled(lambda x: x * 2, record_or_fail=True)(torch.zeros(3))
    assert caplog.records == [] and "total" not in counters["skips"]


# O1


def test_O1_graphs_traces_and_compiles_are_counted_by_how_they_end_and_by_direction(monkeypatch):
    def program(x, w):
        return (x @ w).sin()

    run = compiled(program)
    for _ in range(3):
        run(torch.ones(2, 3), torch.ones(3, 3, requires_grad=True)).sum().backward()
    assert dict(counters["graphs"]) == {"captured": 1} and dict(counters["traces"]) == {"ok": 1}
    assert dict(counters["compiles"]) == {"forward": 1, "backward": 1}

    def refuse(*given, **options):
        raise Refusal(Reason("trace", "it is odd", "leave it"))

    monkeypatch.setattr(wrapped_module, "wrap_function", refuse)
    with pytest.warns(UserWarning, match="uncompiled"):
        compile_graph(lambda x: (x + 1,), [torch.ones(2)], inner="aten")
    assert dict(counters["graphs"]) == {"captured": 2} and dict(counters["traces"]) == {"ok": 1, "refused": 1}


def test_O1_what_inductors_cache_says_is_counted():
    from treeplay.lower.inductor.artifact import _counting_cache, torchs_counters

    with _counting_cache():
        torchs_counters["inductor"]["fxgraph_cache_hit"] += 2
    assert dict(counters["inductor cache"]) == {"hit": 2}


# D32


def test_D32_nothing_is_recorded_while_compiling_or_for_fakes(monkeypatch):
    ran = []

    def recorder(run, module, inputs, roles, report):
        def call(args):
            ran.append(args[0])
            return run(args)

        return call

    monkeypatch.setattr(job_module, "recorded", recorder)
    module = make_fx(lambda x: (x * 2,))(torch.ones(3))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(3))
    run = compile_graph(module, [fake], inner="aten")
    assert ran == []
    assert run(torch.ones(3))[0].tolist() == [2, 2, 2] and len(ran) == 1


def test_the_recorder_is_given_what_it_needs(monkeypatch):
    given = []
    monkeypatch.setattr(job_module, "recorded", lambda *args: given.append(args) or args[0])
    w = torch.randn(3, 3, requires_grad=True)
    compiled(lambda x, w: (x @ w).sin())(torch.ones(2, 3), w).sum().backward()
    (_, module, inputs, roles, report), backward = given
    assert report.direction == "forward" and backward[4].direction == "backward"
    assert [role.value for role in roles] == ["ordinary", "ordinary"] and len(inputs) == 2
    assert module.graph.output_node().args and report.report().outcome == "compiled"
    report.recorded()
    assert report.report().outcome == "recorded"
    assert VISIBLE in module.graph.output_node().meta
