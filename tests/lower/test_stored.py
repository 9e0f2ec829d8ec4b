"""What an earlier process has compiled is found again. In these tests that process is an earlier part of this one."""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import assert_same, call_of
from support.interpreters import FreshPython
from treeplay.lower import stored as stored_artifacts
from treeplay.lower.inductor import lower_inductor
from treeplay.observe import counters
from treeplay.torch_seam.kept_file import folder
from treeplay.trace.jit import trace

pytestmark = pytest.mark.compile
CPU = torch.device("cpu")


def counted() -> dict[str, int]:
    return dict(counters["stored artifacts"])


def never_compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    """A program with a number in it that no other run has compiled."""
    number = random.SystemRandom().random()
    return lambda x: (x - number) / 3


def lowered(program: Callable[..., Any], device: str = "cpu", *, is_small: bool = False) -> Any:
    traced = trace(program, call_of(torch.arange(5.0, device=device)))
    return lower_inductor(traced.graph, device=torch.device(device), eager_random=False, is_small=is_small)


def kept_file(program: Callable[..., Any]) -> Path:
    """Where it is kept how the program is found again: other processes keep others meanwhile."""
    graph = trace(program, call_of(torch.arange(5.0))).graph
    key = stored_artifacts.key_of(graph, CPU, eager_random=False, is_small=False)
    assert key is not None
    return folder() / "treeplay" / key[:2] / f"{key}.json"


def test_what_was_compiled_is_loaded_and_computes_the_same(device: str) -> None:
    program, x = never_compiled(), torch.randn(5, device=device)
    first = lowered(program, device)
    assert counted() == {"miss": 1}
    again = lowered(program, device)
    assert counted() == {"miss": 1, "hit": 1}
    assert again.operators == first.operators and again.name == "inductor"
    assert_same(again.run([x], ())[0], first.run([x], ())[0])
    torch.testing.assert_close(again.run([x], ())[0], program(x))


def test_a_loaded_step_of_training_follows_eager_with_numbers_that_change() -> None:
    def pair(factor: float) -> tuple[Any, ...]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - factor).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return model, optimizer, step

    factor = random.SystemRandom().random()
    inputs = torch.randn(6, 4, 6)
    for _ in range(2):  # the first is compiled, the second loaded
        (m1, o1, eager), (m2, o2, step) = pair(factor), pair(factor)
        replayed = treeplay.jit(step, lower="inductor", on_refusal="raise")
        for at, x in enumerate(inputs):
            if at == 4:
                o1.param_groups[0]["lr"] = o2.param_groups[0]["lr"] = 0.1
            torch.testing.assert_close(replayed(x), eager(x))
        for ours, theirs in zip(m2.parameters(), m1.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert counted() == {"miss": 1, "hit": 1}


def test_a_later_process_loads_it_without_the_compiler(fresh_python: FreshPython) -> None:
    code = (
        "import sys, torch; sys.path.insert(0, sys.argv[1]); torch.set_num_threads(1)\n"
        "from lower.test_stored import counted, lowered\n"
        "number = float(sys.argv[2])\n"
        "made = lowered(lambda x: (x - number) / 3)\n"
        "x = torch.arange(5.0)\n"
        "torch.testing.assert_close(made.run([x], ())[0], (x - number) / 3)\n"
        "print(counted(), 'torch._inductor.compile_fx' in sys.modules)"
    )
    number, tests = random.SystemRandom().random(), Path(__file__).parent.parent
    lowered(lambda x: (x - number) / 3)
    assert counted() == {"miss": 1} and "torch._inductor.compile_fx" in sys.modules
    assert fresh_python(code, tests, number)[0] == "{'hit': 1} False"


def test_a_file_that_is_damaged_is_not_there() -> None:
    program = never_compiled()
    lowered(program)
    file = kept_file(program)
    assert file.exists()
    for misses, text in enumerate(["", "{", "[]", "null", '{"for": "another", "stored": {}}', '{"stored": 1}'], 2):
        file.write_text(text)
        lowered(program)
        assert counted() == {"miss": misses}, text
        assert json.loads(file.read_text())["for"] == file.stem, text  # and whole again


def test_an_artifact_that_inductor_has_no_more_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    program, x = never_compiled(), torch.randn(5)
    lowered(program)
    monkeypatch.setattr("treeplay.torch_seam.inductor_store.stored_graph", lambda key, options: None)
    again = lowered(program)
    assert counted() == {"miss": 2}
    torch.testing.assert_close(again.run([x], ())[0], program(x))


def test_an_artifact_that_cannot_be_loaded_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    program, x = never_compiled(), torch.randn(5)
    lowered(program)

    def broken(key: str, options: Any) -> None:
        raise EOFError("the file ends early")

    monkeypatch.setattr("treeplay.torch_seam.inductor_store.stored_graph", broken)
    again = lowered(program)
    assert counted() == {"miss": 2}
    torch.testing.assert_close(again.run([x], ())[0], program(x))


def test_what_is_asked_of_the_compiler_and_how_it_is_set_are_in_the_key() -> None:
    graph = trace(never_compiled(), call_of(torch.arange(5.0))).graph

    def key(**asked: Any) -> str | None:
        return stored_artifacts.key_of(graph, CPU, **asked)

    first = key(is_small=False)
    assert first is not None and first == key(is_small=False)
    others = {key(is_small=True), stored_artifacts.key_of(copy.deepcopy(graph), torch.device("cpu", 0), is_small=False)}
    from torch._inductor import config

    with config.patch({"cpp.enable_floating_point_contract_flag": "fast"}):
        others.add(key(is_small=False))
    torch.set_num_threads(2)
    others.add(key(is_small=False))
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    others.add(key(is_small=False))
    torch.use_deterministic_algorithms(False)
    assert first not in others and len(others) == 5 and None not in others


def test_the_environment_of_the_compiler_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = trace(never_compiled(), call_of(torch.arange(5.0))).graph
    first = stored_artifacts.key_of(graph, CPU)
    monkeypatch.setenv("CXX", "another-compiler")
    assert stored_artifacts.key_of(graph, CPU) != first


def test_without_inductors_store_nothing_is_kept() -> None:
    from torch._inductor import config

    program = never_compiled()
    with config.patch(fx_graph_cache=False):
        lowered(program)
    assert counted() == {} and not kept_file(program).exists()


def test_a_pass_of_the_users_is_a_bypass() -> None:
    from torch._inductor import config

    graph = trace(never_compiled(), call_of(torch.arange(5.0))).graph
    with config.patch(post_grad_custom_pre_pass=lambda graph: None):
        assert stored_artifacts.key_of(graph, CPU) is None
    assert counted() == {"bypass": 1}
