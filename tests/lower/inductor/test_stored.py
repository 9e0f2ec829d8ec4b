"""What an earlier process has compiled is found again. In these tests that process is an earlier part of this one."""

from __future__ import annotations

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
from treeplay.lower.inductor import stored as stored_artifacts
from treeplay.lower.inductor.lowering import lower_inductor
from treeplay.observe import counters
from treeplay.torch_seam import flags
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


def test_D36_what_was_compiled_is_loaded_and_computes_the_same(device: str) -> None:
    program, x = never_compiled(), torch.randn(5, device=device)
    first = lowered(program, device)
    assert counted() == {"miss": 1} and dict(counters["inductor cache"]) == {"miss": 1}
    again = lowered(program, device)
    assert counted() == {"miss": 1, "hit": 1} and dict(counters["inductor cache"]) == {"miss": 1}
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
        "from lower.inductor.test_stored import counted, lowered\n"
        "number = float(sys.argv[2])\n"
        "made = lowered(lambda x: (x - number) / 3)\n"
        "x = torch.arange(5.0)\n"
        "torch.testing.assert_close(made.run([x], ())[0], (x - number) / 3)\n"
        "print(counted(), 'torch._inductor.compile_fx' in sys.modules)"
    )
    number, tests = random.SystemRandom().random(), Path(__file__).parents[2]
    lowered(lambda x: (x - number) / 3)
    assert counted() == {"miss": 1} and "torch._inductor.compile_fx" in sys.modules
    assert fresh_python(code, tests, number)[0] == "{'hit': 1} False"


def test_D36_a_file_that_is_damaged_is_not_there() -> None:
    program, x = never_compiled(), torch.randn(5)
    lowered(program)
    file = kept_file(program)
    texts = [file.read_text()[:-9], "", "{", "[]", "null", '{"for": "another", "stored": {}}', '{"stored": 1}']
    for number, text in enumerate(texts, 2):
        file.write_text(text)
        assert_same(lowered(program).run([x], ())[0], program(x))
        assert counted() == {"miss": number}
        assert json.loads(file.read_text())["for"] == file.stem  # and whole again


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


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x - 1.5) / 3


X = torch.arange(6.0).reshape(2, 3)
OTHER_PROGRAMS: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "a constant": (lambda x: (x - 1.25) / 3, X),
    "an operator": (lambda x: (x - 1.5) * 3, X),
    "their order": (lambda x: x / 3 - 1.5, X),
    "one result more": (lambda x: ((x - 1.5) / 3, x - 1.5), X),
    "sizes": (scaled, X.reshape(3, 2)),
    "strides": (scaled, X.t().contiguous().t()),
    "dtype": (scaled, X.double()),
    "offset": (scaled, torch.arange(7.0)[1:].reshape(2, 3)),
    "a write": (lambda x: x.sub_(1.5) / 3, X),
}


def key_for(program: Callable[..., Any], argument: torch.Tensor, **asked: Any) -> str | None:
    return stored_artifacts.key_of(trace(program, call_of(argument)).graph, CPU, **asked)


@pytest.mark.parametrize("what", OTHER_PROGRAMS)
def test_D35_what_is_compiled_otherwise_has_another_key(what: str) -> None:
    assert key_for(*OTHER_PROGRAMS[what]) not in (None, key_for(scaled, X))


MODES = ("cuDNN deterministic", "float16 accumulation in cuBLAS", "order of attention kernels", "oneDNN")
SURROUNDINGS: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "an environment variable of the compiler": lambda patch: patch.setenv("CXX", "another-compiler"),
    "an environment variable of torch's": lambda patch: patch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),
    "an assembler of the user's": lambda patch: patch.setenv("TRITON_PTXAS_PATH", "/opt/cuda/bin/ptxas"),
    "the release of torch": lambda patch: patch.setattr(torch.version, "git_version", "another"),
    "the release of CUDA": lambda patch: patch.setattr(torch.version, "cuda", "1.0"),
    "our own code": lambda patch: patch.setattr(stored_artifacts, "_code_of_ours", lambda: "another"),
    "threads": lambda patch: patch.setattr(torch, "get_num_threads", lambda: 7),
    "precision": lambda patch: patch.setattr(flags, "precisions", lambda: ("bf16",)),
    **{f"mode: {what}": lambda patch, what=what: patch.setitem(flags.LIBRARY_MODES, what, lambda: 7) for what in MODES},
    "determinism": lambda patch: patch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True),
    "the processor": lambda patch: patch.setattr("platform.machine", lambda: "another"),
}


@pytest.mark.parametrize("what", SURROUNDINGS)
def test_D35_what_is_compiled_elsewhere_has_another_key(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_for(scaled, X)
    SURROUNDINGS[what](monkeypatch)
    assert key_for(scaled, X) not in (None, before)


def test_D36_what_torchs_first_compile_sets_is_in_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_for(scaled, X)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(Path(torch.__file__).parent / "bin" / "ptxas"))
    assert before is not None and key_for(scaled, X) == before


def test_D35_how_inductor_is_set_is_in_the_key() -> None:
    from torch._inductor import config

    before = key_for(scaled, X)
    with config.patch({"cpp.enable_floating_point_contract_flag": "fast"}):
        assert key_for(scaled, X) not in (None, before)


def test_D35_what_is_asked_of_the_compiler_is_in_the_key() -> None:
    graph = trace(scaled, call_of(X)).graph
    asked = [{"is_small": is_small, "eager_random": random} for is_small in (False, True) for random in (False, True)]
    keys = {stored_artifacts.key_of(graph, CPU, **each) for each in asked}
    keys.add(stored_artifacts.key_of(graph, torch.device("cpu", 0), is_small=False, eager_random=False))
    assert None not in keys and len(keys) == 5


def test_D35_the_same_program_has_the_same_key_wherever_it_is_written(fresh_python: FreshPython) -> None:
    def scaled(given: torch.Tensor) -> torch.Tensor:
        less = given - 1.5

        return less / 3

    code = (
        "import sys, torch; sys.path.insert(0, sys.argv[1])\n"
        "torch.set_num_threads(1)\n"
        "from lower.inductor.test_stored import X, key_for, scaled\n"
        "print(key_for(scaled, X, is_small=True))"
    )
    key = key_for(scaled, X, is_small=True)
    assert key is not None and fresh_python(code, Path(__file__).parents[2])[0] == key


def test_D36_without_inductors_store_nothing_is_kept() -> None:
    from torch._inductor import config

    program = never_compiled()
    with config.patch(fx_graph_cache=False):
        lowered(program)
    assert counted() == {} and not kept_file(program).exists()


def test_D36_a_pass_of_the_users_is_a_bypass() -> None:
    from torch._inductor import config

    graph = trace(never_compiled(), call_of(torch.arange(5.0))).graph
    with config.patch(post_grad_custom_pre_pass=lambda graph: None):
        assert stored_artifacts.key_of(graph, CPU) is None
    assert counted() == {"bypass": 1}
