"""Numbers among the arguments that differ from call to call are inputs of one recording, where the program computes with them.

Otherwise they are part of the key.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from support import assert_same, jit
from treeplay.backend.inner import boxed
from treeplay.lower.inductor import artifact

VALUES = [0.5, 0.7, 0.7, 0.3, -0.0, math.inf, 0.5, 2.0, 0.25, 0.125]


def followed(program: Callable[..., Any], *, values: list[float] = VALUES, **options: Any) -> Any:
    """The program jitted, after calls that gave what eager gives."""
    jitted, x = jit(program, on_refusal="eager", **options), torch.randn(4)
    for value in values:
        assert_same(jitted(x, value), program(x, value))
    return jitted


def test_a_number_that_varies_needs_one_recording() -> None:
    found = followed(lambda x, eps: x * eps - (1 - eps) / 3).statistics()
    assert (found.recordings, found.replays) == (1, len(VALUES) - 2)
    assert found.not_replayed == {"observed": 2}


def test_a_number_by_keyword_and_with_a_default() -> None:
    def program(x: Tensor, *, scale: float = 1.5) -> Tensor:
        return x * scale - 1

    jitted, x = jit(program), torch.randn(3)
    for scale in (0.5, 0.6, 0.7, 0.8):
        assert_same(jitted(x, scale=scale), program(x, scale=scale))
    for _ in range(3):
        assert_same(jitted(x), program(x))
    assert jitted.statistics().recordings == 2


INTEGERS = [1, 2, 2, 7, 0, 3, 100_000, -3, 2, 5]
COMPUTED: dict[str, Callable[..., Any]] = {
    "times": lambda x, n: x * n - 1,
    "a power of it": lambda x, n: x / (1 - 0.9 ** (abs(n) + 1)) - n,
    "a negative number to a power of it": lambda x, n: x * (-1) ** abs(n) - (-2) ** (n % 5 + 1),
    "divided": lambda x, n: x * (n / 10) + n // 3 - n % 4,
    "on both sides": lambda x, n: (n - x, n * x, x - n, x**2 * n),
    "beside a tensor": lambda x, n: (x % (n * n + 1), x > n, torch.where(x > 0, x - n, x * n)),
    "of an integer tensor": lambda x, n: ((x * 9).int() * n - n, (x * 9).long() // (abs(n) + 1), (x > 0) * n),
    "a tensor full of it": lambda x, n: (x * torch.full((4,), n, dtype=torch.float32), torch.full((2,), n), n - x),
    "a tensor of it": lambda x, n: (
        x * torch.tensor(n),
        torch.tensor([n, 2]) - 1,
        torch.as_tensor(n * 2, dtype=torch.float64),
    ),
    "a tensor of it, written": lambda x, n: x - torch.tensor([n, n + 1, 3, -n], dtype=torch.float32).mul_(2),
    "in place": lambda x, n: x.clone().mul_(n).sub_(1).clamp_(min=-n if n > 0 else n),
    "compared": lambda x, n: x - 1 if n > 50 else x * n,
    "stored": lambda x, n: stored(x, n),
    "stored in integers": lambda x, n: stored((x * 9).long(), n),
    "at an index": lambda x, n: x.index_fill(0, torch.tensor([2, 0]), n) - x.scatter(0, torch.tensor([3]), n + 1) * 2,
    "a limit": lambda x, n: limited(x, n),
}


def limited(x: Tensor, number: float) -> tuple[Tensor, ...]:
    """From below and above, one tensor and lists of them, with one number for all and one for each."""
    low, high = torch._foreach_clamp_min([x, x * 2], number), torch._foreach_minimum([x, x * 3], [number, number - 1])
    torch._foreach_maximum_(high, number - 1)
    torch._foreach_clamp_max_(low, [number + 1, number])
    ends = x.clone().clamp_min_(number) - x.clone().clamp_max_(number) * 2
    return ends, *low, *(part - 1 for part in high), *torch._foreach_pow(number, [x.abs(), x * x])


def stored(x: Tensor, number: float) -> Tensor:
    """At an index, over a part, where a mask says so, at several indices, over all; each over what the last one left."""
    made, rows = x.clone(), x.new_zeros(2, 4)
    made[0] = number
    made[1:3] = number * 2
    made[made > 1] = number - 1
    made[[3, 0]] = 1 - number
    rows[1, ...] = number
    rows[0, made < 0] = number * 3
    return made - rows * 2


@pytest.mark.parametrize("what", COMPUTED)
def test_an_integer_that_varies_needs_one_recording_for_each_way(what: str) -> None:
    found = followed(COMPUTED[what], values=INTEGERS * 2, lower="aten").statistics()
    ways = 2 if what in ("in place", "compared") else 1
    assert found.recordings == ways and found.replays >= 2 * len(INTEGERS) - 1 - 2 * ways


def test_a_float_that_is_stored_in_a_tensor_needs_one_recording() -> None:
    found = followed(lambda x, value: (stored(x, value), stored(x.double(), value), stored(x.bfloat16(), value)))
    assert found.statistics().recordings == 1 and found.statistics().replays == len(VALUES) - 2


def test_a_number_that_a_tensor_may_be_too_narrow_for_is_no_input() -> None:
    """Whether eager raises depends on its value."""

    def program(x: Tensor, n: int) -> Tensor:
        made = (x > 0).to(torch.uint8)
        made[0] = n  # and a number with a fraction, or an infinite one, in any integers
        return made * 2 - x

    jitted, x = jit(program, on_refusal="eager"), torch.randn(4)
    for n in (1, 2, 255, 2, 2, 2):
        assert_same(jitted(x, n), program(x, n))
    with pytest.raises(RuntimeError, match="overflow"):
        jitted(x, 256)


@pytest.mark.gpu
@pytest.mark.parametrize("lower", ["aten", "inductor"])
@pytest.mark.parametrize("values", [VALUES, INTEGERS], ids=["floats", "integers"])
def test_a_number_that_is_stored_in_a_tensor_on_a_gpu_needs_one_recording(lower: str, values: list[Any]) -> None:
    jitted, x = jit(lambda x, value: stored(x, value), lower=lower), torch.randn(4, device="cuda")
    for value in values:
        assert_same(jitted(x, value).cpu(), stored(x.cpu(), value))
    (recording,) = (recording for key in jitted.statistics().keys for recording in key.recordings)
    assert recording.launch.stage == "recorded"


@pytest.mark.compile
@pytest.mark.parametrize("lower", ["aten", "inductor"])
def test_integers_beyond_what_a_float_holds_are_exact(lower: str) -> None:
    def program(x: Tensor, n: int) -> Tensor:
        return x * n - n // 3 + (n * 5) % 7

    jitted, x = jit(program, on_refusal="eager", lower=lower), torch.arange(1, 4)
    for value in (3, 4, 5, 2**53, 2**53 + 1, -(2**53) - 1, 2**62 + 1, -(2**63), 2**63 - 1, 7):
        assert_same(jitted(x, value), program(x, value))
    assert (jitted.statistics().recordings, jitted.statistics().replays) == (1, 8)
    for value in (2**63, 8, 9):  # the first is none of 64 bits, which eager takes for a float
        assert_same(jitted(x, value), program(x, value))


@pytest.mark.compile
def test_a_compiled_recording_takes_integers() -> None:
    ways = (
        "a negative number to a power of it",
        "divided",
        "on both sides",
        "beside a tensor",
        "of an integer tensor",
        "a tensor full of it",
        "stored",
    )

    def program(x: Tensor, n: int) -> dict[str, Any]:
        return {what: COMPUTED[what](x, n) for what in ways}

    jitted, x = jit(program, lower="inductor"), torch.randn(4)
    for value in INTEGERS:
        found, expected = jitted(x, value), program(x, value)
        for what in ways:
            torch.testing.assert_close(found[what], expected[what], msg=lambda text, what=what: f"{what}: {text}")
    assert jitted.statistics().recordings == 1


FIRST: dict[str, Callable[..., Any]] = {
    "sums": lambda x, n: (torch.add(n, x), torch.sub(n, x), torch.add(n, x, alpha=2), torch.add(n, n + 1)),
    "products": lambda x, n: (
        torch.mul(n, x),
        torch.mul(n, x.bool()),
        torch.mul(n, x.half()),
        torch.mul(n, x.cdouble()),
    ),
    "quotients": lambda x, n: (n // x, torch.div(n, x), torch.div(n, x, rounding_mode="floor"), n // (x.int() + 20)),
    "scaled": lambda x, n: (torch.add(1, x, alpha=n), torch.sub(n, x, alpha=n), torch.rsub(x.int(), x, alpha=n)),
    "of two types": lambda x, n: (torch.add(x.half(), x, alpha=n), torch.sub(x, x.double(), alpha=n)),
    "one element": lambda x, n: (torch.add(n, x[0].half()), x[0].add(n, alpha=2), torch.mul(n, x[0].int())),
    "complex": lambda x, n: (x.cdouble() * n, torch.add(n, x.cfloat())),
    "a limit": lambda x, n: (*limited(x, n), *torch._foreach_maximum([x.half(), x.int()], n)),
}


@pytest.mark.parametrize("values", [[0.1, 0.7, -0.3, 3.1, 0.2], [3, 2, 7, -5, 4]])
@pytest.mark.parametrize("what", FIRST)
def test_a_graph_for_a_compiler_gives_eagers_dtypes(
    what: str, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the number comes first, as in `n // x`. Nothing is compiled here: the graph that would be runs as it is."""
    monkeypatch.setattr(artifact, "compile_artifact", lambda module, *_, **__: boxed(module))
    jitted, x = jit(FIRST[what], lower="inductor"), torch.tensor([1.5, -0.25, 0.0, 6.0])
    for value in values:
        found, expected = jitted(x, value), FIRST[what](x, value)
        torch.testing.assert_close(found, expected, equal_nan=True)
    assert (jitted.statistics().recordings, jitted.statistics().replays) == (1, 3)


def test_a_negative_power_of_integers_raises_in_a_graph_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "compile_artifact", lambda module, *_, **__: boxed(module))
    jitted, x = jit(lambda x, n: x**n, lower="inductor"), torch.arange(1, 5)
    for value in (2, 3, 0, 4):
        assert_same(jitted(x, value), x**value)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="negative integer powers"):
            jitted(x, -2)
    assert_same(jitted(x, 5), x**5)
    assert jitted.statistics().recordings == 1


@pytest.mark.compile
def test_a_compiled_recording_writes_a_number_as_it_is() -> None:
    """Beyond what a float32 holds, cut off for an integer tensor, and with the sign of a zero."""

    def program(x: Tensor, n: Tensor, value: float) -> tuple[Tensor, ...]:
        signs = 1 / x.clone().fill_(value), 1 / torch.full_like(x, value), 1 / torch.full((2,), value)
        return *signs, n.clone().fill_(value), n.masked_fill(n > 1, value), torch.full_like(n, value) - n

    jitted, x, n = jit(program, lower="inductor"), torch.randn(3), torch.arange(4)
    for value in (1.5, 2.5, -0.0, 2.0**24 + 1, -(2.0**31) - 5, -0.75, 2.0**53 - 1):
        assert_same(jitted(x, n, value), program(x, n, value))
    assert jitted.statistics().recordings == 1


def test_a_step_whose_loss_is_weighted_anew_in_each_call() -> None:
    torch.manual_seed(3)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())

    def make(model: nn.Module) -> Callable[..., Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: Tensor, beta: float) -> Tensor:
            optimizer.zero_grad()
            out = model(x)
            loss = out.square().mean() + beta * out.abs().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    jitted, eager = jit(make(ours)), make(theirs)
    for call in range(8):
        x = torch.randn(4, 3)
        assert_same(jitted(x, call / 10), eager(x, call / 10))
    assert_same(list(ours.parameters()), list(theirs.parameters()))
    assert jitted.statistics().replays == 6


def test_a_branch_on_a_number_has_a_recording_for_each_way() -> None:
    found = followed(
        lambda x, eps: x * eps + 1 if eps > 0.4 else x - eps * 2, values=[0.5, 0.7, 0.8, 0.1, 0.2, 0.3, 0.9]
    )
    assert found.statistics().recordings == 2 and found.statistics().replays >= 3


class Keeper:
    """Keeps the number that it is given."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, x: Tensor, eps: float) -> Tensor:
        self.last = eps
        return x * eps


PROGRAMS: dict[str, Callable[..., Any]] = {
    "read by math": lambda x, eps: x * math.exp(eps if eps < 5 else 0.0),
    "returned": lambda x, eps: (x + 1, eps),
    "asked for its type": lambda x, eps: x * eps if type(eps) is float else x - 1,
    "asked for its class": lambda x, eps: x * eps if isinstance(eps, float) else x - 1,
    "as text": lambda x, eps: x * len(f"{eps:.3f}"),
    "an index": lambda x, eps: x[int(min(eps, 3.0))] * 2,
    "looked up": lambda x, eps: x * {0.5: 3, 0.7: 4}.get(eps, 5),
    "dropout": lambda x, eps: torch.nn.functional.dropout(x, min(max(eps, 0.0), 0.9), training=False),
    "unread": lambda x, eps: x * 3,
    "its type gives another": lambda x, eps: (
        x * torch.tensor(eps, dtype=torch.float32 if isinstance(eps, float) else torch.int64)
    ),
    "its type gives one to convert to": lambda x, eps: (x * eps).to(
        torch.float64 if isinstance(eps, float) else torch.float16
    ),
    "its type gives a number": lambda x, eps: x * eps - (2 if isinstance(eps, float) else 3),
    "its type gives a name": lambda x, eps: torch.div(
        x * eps, 0.3, rounding_mode="floor" if isinstance(eps, float) else "trunc"
    ),
    "is it None": lambda x, eps: x if eps is None else x * 2,
    "a tensor of it": lambda x, eps: x * torch.tensor(eps),
    "full of it": lambda x, eps: torch.full_like(x, eps) - x,
    "clamped": lambda x, eps: x.clamp(min=-abs(eps) if eps < 5 else -5.0),
    "a whole number of them": lambda x, eps: x * round(min(eps, 9.0)),
    "a list of it": lambda x, eps: x * [eps, 1.0][0],
}


OF_INTEGERS: dict[str, Callable[..., Any]] = {
    "an index": lambda x, n: x[n % 4] * 2,
    "a size": lambda x, n: x[: n % 4 + 1] * 2,
    "a shape": lambda x, n: x.new_ones(abs(n) % 5, 2) - 1,
    "how often": lambda x, n: sum((x * i for i in range(abs(n) % 5)), x),
    "looked up": lambda x, n: x * {1: 3, 2: 4}.get(n, 5),
    "in a set": lambda x, n: x * 2 if n in {1, 2} else x - 1,
    "in a list": lambda x, n: x * 2 if n in [1, 2] else x - 1,
    "asked for its type": lambda x, n: x * n if type(n) is int else x - 1,
    "asked for its class": lambda x, n: x * n if isinstance(n, int) else x - 1,
    "its class gives a type": lambda x, n: (
        x * torch.tensor([n / 2], dtype=torch.int64 if isinstance(n, int) else torch.float32)
    ),
    "its class gives a number": lambda x, n: x * n - (2 if isinstance(n, int) else 3),
    "returned": lambda x, n: (x + 1, n),
    "returned, computed": lambda x, n: (x + 1, n * 2),
    "as text": lambda x, n: x * len(f"{n}"),
    "as text with a format": lambda x, n: x * len(f"{n:04d}"),
    "as text, the old way": lambda x, n: x * len("%d" % n),  # noqa: UP031
    "bits": lambda x, n: x * (n & 1) + (n << 1),
    "read by math": lambda x, n: x * math.sqrt(abs(n)),
    "a float of it": lambda x, n: x * float(n),
    "divmod": lambda x, n: x * divmod(n, 3)[1],
    "a tensor of it": lambda x, n: x * torch.tensor(n),
    "a dimension": lambda x, n: x.view(2, 2).sum(abs(n) % 2),
    "a seed": lambda x, n: x * torch.rand(4, generator=torch.Generator().manual_seed(abs(n))),
    "a name": lambda x, n: x * {"a0": 2, "a1": 3}["a" + str(n % 2)],
    "compared and computed": lambda x, n: x * n if n == 2 else x - n,
    "rounded": lambda x, n: x * round(n / 4),
    "a bool of it": lambda x, n: x * (not n) - int(bool(n)),
    "in a complex number": lambda x, n: x * complex(n, 1),
}


def test_a_branch_that_raises_for_a_number_raises_the_programs_error() -> None:
    program = jit(lambda x, n: x * 2 - 1 if 1 / n > 0.5 else x - n)
    for n in (3.0, 4.0, 5.0, 0.0, 0.0, 0.0):
        with pytest.raises(ZeroDivisionError) if n == 0.0 else contextlib.nullcontext():
            assert_same(program(torch.ones(2), n), torch.ones(2) - n)
    facts = program.statistics()
    assert_same(program(torch.ones(2), 6.0), torch.ones(2) - 6.0)
    assert program.statistics().replays == facts.replays + 1 and not any("error" in how for how in facts.not_replayed)


@pytest.mark.parametrize("what", OF_INTEGERS)
def test_an_integer_whose_value_counts_is_never_stale(what: str) -> None:
    followed(OF_INTEGERS[what], values=INTEGERS * 2, lower="aten")


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_number_whose_value_counts_is_never_stale(what: str) -> None:
    followed(PROGRAMS[what], values=[*VALUES, *VALUES])


def test_a_number_that_is_kept_is_kept_by_each_call() -> None:
    ours, theirs, x = Keeper(), Keeper(), torch.randn(3)
    jitted = jit(ours, on_refusal="eager")
    for value in [*VALUES, *VALUES, *INTEGERS, *INTEGERS]:
        assert_same(jitted(x, value), theirs(x, value))
        assert ours.last == theirs.last


def test_other_types_in_its_place_are_other_calls() -> None:
    def program(x: Tensor, eps: Any) -> Any:
        return x * eps

    jitted, x = jit(program, on_refusal="eager"), torch.arange(4)
    for value in (0.5, 0.7, 0.9, 3, True, 0.9, 4, 2 + 1j, torch.tensor(2.0), 0.1):
        for _ in range(2):
            assert_same(jitted(x, value), program(x, value))


def test_a_program_that_its_caller_differentiates_is_recorded_for_each_value() -> None:
    def program(x: Tensor, eps: float) -> Tensor:
        return (x * eps).exp()

    jitted = jit(program, on_refusal="eager")
    for value in (0.5, 0.7, 0.5, 0.7, 0.7, 0.5) * 2:
        x = torch.randn(3, requires_grad=True)
        (found,) = torch.autograd.grad(jitted(x, value).sum(), x)
        (expected,) = torch.autograd.grad(program(x, value).sum(), x)
        assert_same(found, expected)
    assert jitted.statistics().replays >= 4


def test_an_audit_of_a_recording_from_before_the_number_varied_finds_nothing() -> None:
    program: Callable[[Tensor, float], Tensor] = lambda x, eps: x * eps - 1  # noqa: E731
    jitted, x = jit(program), torch.randn(3)
    for value in [0.5] * 5 + [0.7] * 5 + [0.5] * 40 + [0.9, 0.1] * 20:
        assert_same(jitted(x, value), program(x, value))
    assert jitted.statistics().replays > 60


@pytest.mark.compile
def test_a_compiled_recording_takes_numbers_too() -> None:
    program: Callable[[Tensor, float], Tensor] = lambda x, eps: (x * eps).exp() - eps  # noqa: E731
    jitted, x = jit(program, lower="inductor"), torch.randn(5)
    for value in (0.5, 0.7, 0.7, 0.3, 0.2):
        torch.testing.assert_close(jitted(x, value), program(x, value))
    assert jitted.statistics().replays == 3


WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // (abs(b) + 1),
    "%": lambda a, b: a % (abs(b) + 2),
    "/": lambda a, b: a / (abs(b) + 1),
    "**": lambda a, b: (a % 5) ** (abs(b) % 3),
    "if": lambda a, b: a if a > b else b - a,
    "max": max,
    "even": lambda a, b: a * 2 if b % 2 == 0 else a - 1,
    "0.5 **": lambda a, b: 0.5 ** (a % 7) - b,
}
TENSORS: dict[str, Callable[[Any, Any], Any]] = {
    "x *": lambda x, k: x * k,
    "k -": lambda x, k: k - x,
    "x %": lambda x, k: x % (abs(k) + 1),
    "where": lambda x, k: torch.where(x > k, x - k, x),
    "full": lambda x, k: x - torch.full_like(x, k),
    "x //": lambda x, k: x // (abs(k) + 1),
    "in place": lambda x, k: x.clone().add_(k).mul_(3),
    "masked": lambda x, k: x.masked_fill(x > 0, k),
    "a row": lambda x, k: x[int(k) % 4] - x,
}


@st.composite
def programs(draw: st.DrawFn) -> Callable[[Tensor, int], Tensor]:
    """Arithmetic on a number, and a tensor that meets what comes out of it."""
    steps = draw(st.lists(st.tuples(st.sampled_from([*WHOLE]), st.integers(-4, 9), st.booleans()), max_size=4))
    meets = draw(st.lists(st.sampled_from([*TENSORS]), min_size=1, max_size=3))

    def program(x: Tensor, n: int) -> Tensor:
        k: Any = n
        for name, constant, is_turned in steps:
            k = WHOLE[name](constant, k) if is_turned else WHOLE[name](k, constant)
        for name in meets:
            x = TENSORS[name](x, k) + (n - 1)
        return x

    return program


@given(
    programs(), st.lists(st.integers(-40, 200), min_size=3, max_size=8), st.sampled_from([torch.float32, torch.int64])
)
@settings(max_examples=30, deadline=None)
def test_random_arithmetic_on_integers_gives_what_eager_gives(
    program: Callable[[Tensor, int], Tensor], values: list[int], dtype: torch.dtype
) -> None:
    x, jitted = torch.tensor([3, -7, 0, 12]).to(dtype), jit(program, on_refusal="eager", lower="aten")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for value in [1, 2, 3, *values]:
            try:
                wanted = program(x, value)
            except (RuntimeError, ValueError, OverflowError) as error:
                with pytest.raises(type(error)):
                    jitted(x, value)
            else:
                assert_same(jitted(x, value), wanted)


MASK = torch.tensor([True, False, True, False])
CHOSEN: dict[str, Callable[..., Any]] = {
    "the other": lambda x, k: torch.where(MASK, x, k),
    "the first": lambda x, k: torch.where(MASK, k, x) - k,
    "of doubles": lambda x, k: torch.where(MASK, x.double(), k),
    "of integers": lambda x, k: (torch.where(MASK, (x * 9).int(), k), torch.where(MASK, k, (x * 9).long())),
    "of half": lambda x, k: torch.where(MASK, x.half(), k),
    "of complex numbers": lambda x, k: torch.where(MASK, x.cfloat(), k),
    "of booleans": lambda x, k: torch.where(MASK, x > 0, k),
    "both": lambda x, k: (torch.where(MASK, k, k * 2), torch.where(MASK, k, 0), torch.where(MASK, 1.5, k)),
    "both, and one is complex": lambda x, k: torch.where(MASK, k, 2j),
    "by keyword": lambda x, k: torch.where(MASK, input=x, other=k),
    "by the method": lambda x, k: (x.where(MASK, k), x.double().where(condition=MASK, other=k)),
    "where it is greater": lambda x, k: torch.where(x > k, x, k),
    "of another shape": lambda x, k: torch.where(MASK[:, None], x, -k),
}


@pytest.mark.parametrize("values", [VALUES, INTEGERS], ids=["floats", "integers"])
@pytest.mark.parametrize("what", CHOSEN)
def test_a_choice_of_a_number_that_varies_needs_one_recording(what: str, values: list[float]) -> None:
    found = followed(CHOSEN[what], values=values).statistics()
    assert (found.recordings, found.replays) == (1, len(values) - 2)


@pytest.mark.compile
@pytest.mark.parametrize("default", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.soak)], ids=str)
def test_compiled_choices_of_a_number_are_eagers(default: torch.dtype) -> None:
    def program(x: Tensor, k: float) -> dict[str, Any]:
        return {what: choose(x, k) for what, choose in CHOSEN.items()}

    torch.set_default_dtype(default)
    try:
        jitted, x = jit(program, lower="inductor"), torch.randn(4)
        for value in VALUES[:5]:
            found, expected = jitted(x, value), program(x, value)
            for what in CHOSEN:
                assert_same(found[what], expected[what], what)
        assert jitted.statistics().replays == 3
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_choice_of_a_number_that_is_differentiated_is_recorded_for_each() -> None:
    jitted = jit(lambda x, k: torch.where(MASK, x, k) * x, on_refusal="eager")
    for value in (0.5, 0.5, 0.5, 0.7, 0.7, 0.7):
        x, y = (torch.arange(4.0).requires_grad_() for _ in range(2))
        jitted(x, value).sum().backward()
        (torch.where(MASK, y, value) * y).sum().backward()
        assert_same(x.grad, y.grad)
