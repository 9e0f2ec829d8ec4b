"""Operators of a trace: most results follow from the first run, and torch's rules for running without data are asked once."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from support import Twins, assert_same, call_of, jit, training
from treeplay.errors import Refusal
from treeplay.torch_seam.fakes import PLAIN_VIEWS, FakeTensor, FakeTensorMode, device_of, new_fake, view_fake
from treeplay.torch_seam.tensors import storage_of
from treeplay.trace.jit import trace
from treeplay.trace.observe import observe
from treeplay.trace.run import on_fakes

aten = torch.ops.aten


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """How often torch's rule of each operator is asked."""
    counts: Counter[Any] = Counter()
    ask = on_fakes.run_on_fakes

    def run_on_fakes(tape: Any, func: Any, *rest: Any) -> Any:
        counts[func] += 1
        return ask(tape, func, *rest)

    monkeypatch.setattr(on_fakes, "run_on_fakes", run_on_fakes)
    return counts


def _traced(program: Any, *args: Any) -> torch.fx.Graph:
    _, log = observe(program, call_of(*args))
    return trace(program, call_of(*args), first_run=log).graph


def test_a_rule_is_asked_once_in_a_trace(asked: Counter[Any]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = torch.sin(x) @ x.t().clone() - 3.0
            x.mul_(0.5)
        return x

    graph = _traced(program, torch.randn(4, 4))
    assert sum(node.target is aten.sin.default for node in graph.nodes) == 5
    for op in (aten.sin.default, aten.mm.default, aten.mul_.Tensor, aten.sub.Tensor, aten.clone.default):
        assert asked[op] == 1
    assert not asked.keys() & PLAIN_VIEWS


def test_the_rules_of_an_optimizer_over_all_parameters_are_not_asked(asked: Counter[Any]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    Twins(training, model, optimizer).calls(4, lambda: (torch.randn(2, 4), torch.randn(2, 4)))
    assert asked[aten.mm.default] >= 1
    assert not [op for op in asked if "_foreach_" in str(op)]


def test_a_rule_is_asked_again_where_the_first_run_had_no_such_call(asked: Counter[Any]) -> None:
    times = [0]

    def program(x: torch.Tensor) -> torch.Tensor:
        times[0] += 1
        return torch.sin(x) + (torch.sin(x[1:]).sum() if times[0] % 2 else torch.sin(x[:1]) + torch.sin(x[1:2]))

    x = torch.randn(4)
    _, log = observe(program, call_of(x))
    with pytest.raises(Refusal, match="times"):  # after all of it was traced
        trace(program, call_of(x), first_run=log)
    assert asked[aten.sin.default] == 3


def test_a_rule_that_was_wrong_is_asked_each_time(asked: Counter[Any]) -> None:
    def program(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            gradient = aten.hardtanh_backward(gradient, x, -1.0, 1.0) * 0.5
        return gradient

    _traced(program, torch.randn(2, 4, 3), torch.randn(2, 3, 4).transpose(1, 2))
    assert asked[aten.hardtanh_backward.default] == 3
    assert asked[aten.mul.Tensor] == 1


def test_no_guard_is_on_code_by_which_torch_asks_a_fake_for_its_device() -> None:
    model = nn.Linear(3, 3)

    def program(x: torch.Tensor) -> None:
        model.zero_grad()
        model(x).sum().backward()

    args = torch.randn(2, 3)
    program(args)
    _, log = observe(program, call_of(args))
    guarded = trace(program, call_of(args), first_run=log).signature.guarded
    codes = [guard.code.co_filename for guard in guarded._dependencies.functions]
    assert codes and not [file for file in codes if "_subclasses" in file]


def test_lengths_that_follow_from_numbers_are_those_of_each_call() -> None:
    def make(scale: torch.Tensor):
        def program(x: torch.Tensor) -> torch.Tensor:
            parts = [torch.arange(0.0, end) * scale for end in (4.0, 6.0, 6.0, 4.0, 6.0, 5.0)]
            return torch.cat([*parts, x])

        return program

    Twins(make, torch.randn(1)).calls(4, lambda: (torch.randn(3),))


def test_what_depends_on_data_is_refused_whatever_the_first_run_gave() -> None:
    jitted = jit(lambda x: torch.nonzero(x - x[0]) + torch.nonzero(x - x[0]), on_refusal="raise")
    x = torch.tensor([3.0, 1.0, 2.0])
    jitted(x)
    with pytest.raises(Refusal, match="depends on data"):
        jitted(x)


@pytest.mark.parametrize("other", [torch.float64, torch.int32, torch.complex64])
def test_questions_about_dtypes_alone_are_no_part_of_a_recording(other: torch.dtype) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 if torch.can_cast(x.dtype, other) else x - 1
        return y.to(torch.promote_types(x.dtype, other)) - 0.5

    jitted = jit(program)
    for dtype in (torch.float32, torch.float32, torch.int64, torch.int64):
        x = torch.tensor([1, 2]).to(dtype)
        assert_same(jitted(x), program(x))
    assert jitted.statistics().replays == 2 and jitted.statistics().recordings == 2


def test_a_view_is_as_torch_makes_it_where_its_first_dimension_is_one() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x[:, 1:].transpose(1, 2).view(1, 6, 2, 2) * 2.0

    x = torch.randn(1, 5, 6)
    graph = _traced(program, x)
    node = next(node for node in graph.nodes if node.target is aten.view.default)
    assert node.meta["spec"].stride == x[:, 1:].transpose(1, 2).view(1, 6, 2, 2).stride()


@pytest.mark.parametrize(
    ("draw", "args"), [("exponential_", (2.0,)), ("geometric_", (0.3,)), ("cauchy_", ()), ("log_normal_", ())]
)
def test_noise_is_drawn_from_a_generator_that_torchs_rules_do_not_take(draw: str, args: Any) -> None:
    generator = torch.Generator().manual_seed(3)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x / getattr(torch.empty_like(x), draw)(*args, generator=generator) - 1

    jitted = jit(program)
    for _ in range(4):
        before = generator.get_state()
        x = torch.randn(5)
        found = jitted(x)
        after = generator.get_state()
        generator.set_state(before)
        assert_same(found, program(x))
        assert torch.equal(after, generator.get_state())
    assert jitted.statistics().replays == 3


@pytest.fixture
def rule_of_sin_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with torch's rule for `grouped_mm`, which wants bfloat16 where the operator itself does not."""
    ask = on_fakes.run_on_fakes

    def run_on_fakes(tape: Any, func: Any, *rest: Any) -> Any:
        if func is aten.sin.default:
            raise RuntimeError("Expected inputs of BF16 type")
        return ask(tape, func, *rest)

    monkeypatch.setattr(on_fakes, "run_on_fakes", run_on_fakes)


def test_what_a_rule_is_too_strict_for_lies_as_in_the_first_run(rule_of_sin_raises: None) -> None:
    Twins(lambda scale: lambda x: torch.sin(x.t() - scale) * 2, torch.randn(1)).calls(4, lambda: (torch.randn(3, 4),))
    graph = _traced(lambda x: torch.sin(x.t()), torch.randn(3, 4))
    assert next(node for node in graph.nodes if node.target is aten.sin.default).meta["spec"].stride == (1, 4)


def test_a_rule_that_raises_is_named_where_the_first_run_had_no_such_call(rule_of_sin_raises: None) -> None:
    seen = [0]

    def program(x: torch.Tensor) -> torch.Tensor:
        seen[0] += 1
        return x - 1 if seen[0] == 1 else torch.sin(x)

    x = torch.randn(4)
    _, log = observe(program, call_of(x))
    with pytest.raises(
        Refusal, match=r"sin: torch cannot tell the shape of its result without data\. .*BF16"
    ) as caught:
        trace(program, call_of(x), first_run=log)
    assert caught.value.advice.startswith("use other operators")


def test_a_rule_that_raises_is_not_logged_as_well() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            return torch.mm(x, x)
        except RuntimeError:
            return x * 2 - 1

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(handler)
    try:
        jitted = jit(program)
        for _ in range(3):
            x = torch.randn(2, 3)
            assert_same(jitted(x), program(x))
        assert jitted.statistics().replays == 2 and not lines
        with FakeTensorMode(), pytest.raises(RuntimeError):
            torch.mm(torch.empty(2, 3), torch.empty(2, 3))
        assert lines  # outside of our runs torch says what it always says
    finally:
        logger.removeHandler(handler)


def test_scripted_objects_among_an_operators_arguments_are_not_compared() -> None:
    quantize = torch.ao.quantization.quantize_dynamic
    model = quantize(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).eval(), {nn.Linear}, dtype=torch.qint8)
    jitted = jit(model)
    for call in range(6):
        if call == 3:
            weight = torch.quantize_per_tensor(torch.randn(6, 6), 0.1, 0, torch.qint8)
            model[0].set_weight_bias(weight, torch.randn(6))
        with torch.no_grad():
            x = torch.randn(2, 6)
            assert_same(jitted(x), model(x))
    assert jitted.statistics().replays == 4


_VIEWS: tuple[tuple[Any, ...], ...] = (
    (aten.view.default, [2, 12]),
    (aten.t.default,),
    (aten.transpose.int, 0, 1),
    (aten.permute.default, [1, 0]),
    (aten.expand.default, [5, 4, 6]),
    (aten.detach.default,),
    (aten.alias.default,),
    (aten.unsqueeze.default, 1),
    (aten.squeeze.dim, 0),
    (aten.slice.Tensor, 1, 1, 6, 2),
    (aten.select.int, 1, -2),
    (aten.split.Tensor, 3, 1),
    (aten.split_with_sizes.default, [1, 5], 1),
    (aten.unbind.int, 1),
    (aten._unsafe_view.default, [24]),
)


@pytest.mark.parametrize("called", _VIEWS, ids=lambda called: str(called[0]))
def test_plain_views_of_fakes_lie_as_those_of_tensors(called: tuple[Any, ...]) -> None:
    op, *rest = called
    real, mode = torch.randn(4, 6), FakeTensorMode()
    fake = new_fake(mode, real.shape, real.stride(), real.dtype, real.device)
    wanted, found = op(real, *rest), view_fake(mode, op, (fake, *rest), {})
    one = isinstance(wanted, torch.Tensor)
    for is_so, is_faked in zip([wanted] if one else wanted, [found] if one else found, strict=True):
        assert type(is_faked) is FakeTensor and device_of(is_faked) == real.device
        assert (is_faked.shape, is_faked.stride()) == (is_so.shape, is_so.stride())
        assert is_faked.storage_offset() == is_so.storage_offset()
        assert storage_of(is_faked) == storage_of(fake)


def test_every_plain_view_is_tried() -> None:
    assert {called[0] for called in _VIEWS} == PLAIN_VIEWS


def test_what_an_operator_makes_anew_is_new_though_its_rule_gives_the_argument_back() -> None:
    """The rule of this one takes None for False, the operator itself for True."""

    def program(x: torch.Tensor) -> torch.Tensor:
        noisy, _ = aten.native_dropout(x, 0.3, None)
        return noisy.mul_(2) - x

    jitted = jit(program, lower="aten")
    for seed in range(3):
        x, twin = torch.arange(6.0), torch.arange(6.0)
        torch.manual_seed(seed)
        found = jitted(x)
        torch.manual_seed(seed)
        assert_same((found, x), (program(twin), twin))
    assert jitted.statistics().replays == 2
