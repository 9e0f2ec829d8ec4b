"""The call function: what a warm call runs, as text."""

from __future__ import annotations

import textwrap

import pytest
import torch

import treeplay


def recorded_source(program, *calls) -> str:
    jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
    for arguments in calls:
        jitted(*arguments)
    return jitted.sources()[0]


def test_an_inference_function_reads_as_if_typed_by_hand():
    weight = torch.randn(3, 3)

    def program(x):
        return x @ weight

    x = torch.randn(2, 3)
    text = recorded_source(program, (x,), (x,))
    assert text == textwrap.dedent(
        """\
        def replay(args, kwargs):
            try:
                if not (is_grad_enabled() is True and get_default_dtype() is c0 and is_anomaly_enabled() is False): return MISS
                if not (forward_ad._current_level == -1 and is_deterministic() is False and allows_tf32() is False): return MISS
                if not (get_mkldnn_enabled() is True): return MISS
                if not (len(args) == 1): return MISS
                args_0 = args[0]
                if not (not kwargs): return MISS
                if not (guards.holds()): return MISS
                v0 = c1.cell_contents
                if not (check(args_0, v0)): return MISS
            except (KeyError, IndexError, AttributeError, ValueError, TypeError, ArithmeticError, RuntimeError):
                return MISS
            try:
                set_grad_enabled(False)
                out = run([args_0, v0], ())
            finally:
                set_grad_enabled(True)
            return out[0]
        """
    )


def test_nested_arguments_are_taken_apart_and_results_put_together():
    def program(batch, *, scale):
        return {"sum": batch["a"] - scale * batch["b"][0], "same": batch["a"]}

    jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
    for seed in range(4):
        torch.manual_seed(seed)
        batch = {"a": torch.randn(2), "b": [torch.randn(2)]}
        out = jitted(batch, scale=3)
        assert torch.equal(out["sum"], batch["a"] - 3 * batch["b"][0])
        assert out["same"] is batch["a"]
    assert "type(args_0) is" in jitted.sources()[0]


def test_a_static_value_is_compared_with_its_type():
    jitted = treeplay.jit(lambda x, n: x * n - 1, lower="aten", on_refusal="raise")
    x = torch.ones(2)
    for value in (1, 1, True, True, 1.0, 1.0):
        assert torch.equal(jitted(x, value), x * value - 1)
    assert jitted.statistics().recordings == 3


def test_dynamo_does_not_trace_into_a_call_function():
    jitted = treeplay.jit(lambda x: x * 2 - 1, lower="aten", on_refusal="raise")
    x = torch.ones(3)
    for _ in range(3):
        jitted(x)
    compiled = torch.compile(lambda t: jitted(t) + 1, backend="eager")
    assert torch.equal(compiled(x), x * 2)
    assert jitted.statistics().replays >= 3


def _in_inference_mode(x):
    with torch.inference_mode():
        return (x * 2).sum()


def _doubled(x):
    return x * 2


def _may_fail(x):
    return torch.linalg.inv(torch.diag(x + 1)) * 2  # such a call is taken back


@pytest.mark.parametrize(
    ("program", "mode", "requires_grad"),
    [
        (_doubled, torch.enable_grad, False),
        (_doubled, torch.enable_grad, True),
        (_doubled, torch.no_grad, False),
        (_doubled, lambda: torch.autocast("cpu"), False),
        (_in_inference_mode, torch.enable_grad, False),
        (_may_fail, torch.enable_grad, False),
    ],
)
def test_the_emitter_tells_which_line_ends_the_launch(program, mode, requires_grad):
    jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
    x = torch.eye(2)[0].requires_grad_(requires_grad)
    with mode():
        for _ in range(2):
            jitted(x)
    (recording,) = (found for entry in jitted._manager.cache.table for found in entry.recordings)
    lines = [line.strip() for line in recording.source.splitlines()]
    (launch,) = (at for at, line in enumerate(lines, 1) if line.startswith("out = run("))
    put_back = ["finally:", "set_grad_enabled(True)"]
    assert lines[launch : recording.launched] in ([], put_back)
    assert lines[recording.launched] not in put_back


def test_an_argument_that_moves_is_given_as_a_copy_and_returned_as_itself():
    from dataclasses import replace

    from support import call_of
    from treeplay.codegen import load_source
    from treeplay.trace.jit import trace
    from treeplay.values.signature import MoveTo
    from treeplay.wrap.ambience import Ambience
    from treeplay.wrap.emit import CallParts, emit_recording_call

    x, y = torch.ones(2), torch.arange(2.0)
    signature = trace(lambda x, y: (x - y.double(), x), call_of(x, y)).signature
    inputs = list(signature.inputs)
    at = next(at for at, item in enumerate(inputs) if item.source.index == 1)
    move = MoveTo(torch.device("cpu"), non_blocking=True)
    inputs[at] = replace(inputs[at], source=replace(inputs[at].source, moves_to=move))
    given = []

    def run(tensors, numbers):
        given.extend(tensors)
        return ["a new tensor"]

    parts = CallParts(run=run, check=lambda *tensors: True)
    source = emit_recording_call(replace(signature, inputs=tuple(inputs)), Ambience.now(), parts, name="moving")
    assert "args_1.to(" in source.text and "non_blocking=True)" in source.text
    assert load_source(source)((x, y), {}) == ("a new tensor", x)
    assert given[at] is y and given[1 - at] is x
