"""What cannot be recorded is refused with the user's line and a cure, and runs eagerly with the right results."""

from __future__ import annotations

import asyncio
import collections
import copy
import gc
import io
import random
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils.checkpoint import checkpoint

import treeplay
from support import assert_same, jit
from support.installed import library

_parameter = nn.Parameter(torch.ones(3))
_buffer = torch.ones(3) * 3
_generator = torch.Generator()


def _seeded(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)  # HERE
    return x * torch.rand(3)


def _forked(x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return x * torch.rand(3)  # HERE


def _own_generator(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rand(3, generator=torch.Generator().manual_seed(5))  # HERE


def _reset_generator(x: torch.Tensor) -> torch.Tensor:
    _generator.manual_seed(5)
    return x * torch.rand(3, generator=_generator)  # HERE


def _given_other_memory(x: torch.Tensor) -> torch.Tensor:
    a = x * 2
    a.set_(torch.ones(3))  # HERE
    return a - 0 * x


def _tangent_of_a_view(x: torch.Tensor) -> Any:
    def written(x: torch.Tensor) -> torch.Tensor:
        out = torch.ones(3, 2)
        out[0] = x[:2]  # HERE
        return out * 2

    return torch.func.jvp(written, (x,), (x * 3,))[1]


def _branch(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:  # HERE
        return x * 2
    return x - 1


def _assert(x: torch.Tensor) -> torch.Tensor:
    assert (x < 1e9).all()  # HERE
    return x * 2


def _printed(x: torch.Tensor) -> torch.Tensor:
    print(x, file=io.StringIO())  # HERE
    return x * 2


def _checkpointed(x: torch.Tensor) -> torch.Tensor:
    kept = checkpoint(lambda v: torch.bernoulli(v / 3) * v, _parameter, use_reentrant=False)  # HERE: run again
    _parameter.grad = None
    kept.sum().backward()
    return x * _parameter.grad - kept.detach()


def _numpy_random(x: torch.Tensor) -> torch.Tensor:
    return x * float(numpy.random.rand())  # HERE


def _python_random(x: torch.Tensor) -> torch.Tensor:
    return x * random.random()  # HERE


def _data_set(x: torch.Tensor) -> torch.Tensor:
    _parameter.data = torch.ones(3) * 2  # HERE
    return x * _parameter.detach()


def _hooked(x: torch.Tensor) -> torch.Tensor:
    _parameter.register_hook(lambda grad: grad).remove()  # HERE
    return x * 2


class _Printed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        print(grad, file=io.StringIO())  # HERE
        return grad * 3


def _printed_in_a_backward(x: torch.Tensor) -> torch.Tensor:
    _parameter.grad = None
    _Printed.apply(_parameter * x).sum().backward()
    return x * _parameter.grad


def _data_set_in_a_hook(x: torch.Tensor) -> torch.Tensor:
    def hook(grad: torch.Tensor) -> torch.Tensor:
        _parameter.data = torch.ones(3) * 2  # HERE
        return grad * 3

    _parameter.grad = None
    y = _parameter * x
    y.register_hook(hook)
    y.sum().backward()
    return x * _parameter.grad


def _numpy_in_a_hook(x: torch.Tensor) -> torch.Tensor:
    def hook(grad: torch.Tensor) -> torch.Tensor:
        return grad * float(_buffer.numpy()[0])  # HERE

    _parameter.grad = None
    y = _parameter * x
    y.register_hook(hook)
    y.sum().backward()
    return x * _parameter.grad


PROGRAMS: dict[str, tuple[str, Callable[[torch.Tensor], Any]]] = {
    "item": ("item", lambda x: x * x.sum().item()),
    "float()": ("item", lambda x: x * float(x[0])),
    "int()": ("int", lambda x: x * int(x[0])),
    "bool()": ("", lambda x: x * bool(x[0] > 0)),
    "a branch": ("", _branch),
    "assert": ("", _assert),
    "print": ("print", _printed),
    "an f-string": ("print", lambda x: (x * 2, f"{x}")),
    "repr": ("print", lambda x: (x * 2, repr(x))),
    "a number formatted": ("", lambda x: (x * 2, f"{x[0]:.3f}")),
    "numpy": ("numpy", lambda x: x * torch.from_numpy(x.numpy() * 2)),
    "asarray": ("", lambda x: x * float(numpy.asarray(x)[0])),
    "from_dlpack": ("dlpack_device", lambda x: torch.from_dlpack(x) * 2),
    "tolist": ("tolist", lambda x: x * sum(x.tolist())),
    "nonzero": ("nonzero", lambda x: x.nonzero().float()),
    "a boolean mask": ("", lambda x: x[x > 0]),
    "unique": ("", lambda x: torch.unique(x)),
    "equal": ("equal", lambda x: x * torch.equal(x, x)),
    "allclose": ("", lambda x: x * torch.allclose(x, x)),
    "seeding": ("", _seeded),
    "fork_rng": ("rand", _forked),
    "a generator of its own": ("rand", _own_generator),
    "a generator set back": ("rand", _reset_generator),
    "other memory": ("set_", _given_other_memory),
    "the tangent of a view": ("_new_zeros_with_same_feature_meta", _tangent_of_a_view),
    "checkpoint that draws by a tensor": ("", _checkpointed),
    "random": ("", _python_random),
    "numpy.random": ("", _numpy_random),
    "p.data =": ("data", _data_set),
    "register_hook": ("register_hook", _hooked),
    "print in a backward": ("print", _printed_in_a_backward),
    "p.data = in a hook": ("data", _data_set_in_a_hook),
    "numpy in a hook": ("numpy", _numpy_in_a_hook),
    "requires_grad_": ("requires_grad", lambda x: x.requires_grad_().detach() * 2),
    "t_ of an argument": ("", lambda x: x.unsqueeze_(0) * 2),
    "a conjugate view": ("", lambda x: torch.complex(x, x * 2).conj()),
    "a sparse result": ("_to_sparse", lambda x: x.to_sparse()),
    "a product by a sparse one": ("_to_sparse", lambda x: torch.diag(x).to_sparse() @ x),
    "a generator object": ("result", lambda x: (part for part in [x * 2])),
    "a function of an argument": ("result", lambda x: lambda: x * 2),
    "a default that is an argument": ("result", lambda x: lambda y=x: y * 2),
    "an argument in a frozenset": ("result", lambda x: frozenset([x])),
    "a set": ("result", lambda x: (x * 2, {1, 2})),
    "a foreign object": ("result", lambda x: (x * 2, bytearray(b"aab"))),
    "apply_": ("apply_", lambda x: (x * 1).apply_(lambda v: v + 1)),
}


def _known(value: Any) -> Any:
    if isinstance(value, types.FunctionType):
        return value()
    return list(value) if hasattr(value, "__next__") or isinstance(value, frozenset) else value


@pytest.mark.parametrize("what", PROGRAMS)
def test_it_is_refused_with_the_users_line_and_a_cure(what: str) -> None:
    op, program = PROGRAMS[what]
    jitted = jit(program)
    x = torch.rand(3) + 1
    _known(jitted(x.clone()))
    for _ in range(2):  # and again: nothing is recorded by asking twice
        with pytest.raises(treeplay.Refusal) as caught:
            jitted(x.clone())
    refusal = caught.value
    assert isinstance(refusal, treeplay.TreeplayError) and isinstance(refusal, RuntimeError)
    assert op in refusal.op and refusal.advice and refusal.op in str(refusal)
    assert refusal.where is not None and refusal.where.file == __file__
    if program.__name__ != "<lambda>" and what not in ("seeding", "random", "numpy.random"):
        assert "HERE" in refusal.where.source, refusal.where


@pytest.mark.parametrize("what", PROGRAMS)
def test_it_runs_eagerly_as_if_it_were_not_jitted(what: str) -> None:
    _, program = PROGRAMS[what]
    jitted = jit(program, on_refusal="eager")
    given = [torch.rand(3) + 1 for _ in range(4)]
    _parameter.grad, _parameter.data = None, torch.ones(3)
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    with pytest.warns(UserWarning, match="treeplay runs .* eagerly") as warned:
        found = [_known(jitted(x.clone())) for x in given]
    assert (
        sum(item.category is UserWarning for item in warned) == 1
    )  # torch's own rules warn where they are first loaded
    _parameter.grad, _parameter.data = None, torch.ones(3)
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])
    for value, x in zip(found, given, strict=True):
        expected = _known(program(x.clone()))
        if what == "a sparse result":
            value, expected = value.to_dense(), expected.to_dense()
        if what == "a conjugate view":
            value, expected = value.resolve_conj(), expected.resolve_conj()
        assert_same(value, expected)
    statistics = jitted.statistics()
    assert (statistics.calls, statistics.replays, statistics.refusals) == (4, 0, 1)


def test_a_refusal_is_explained() -> None:
    jitted = jit(lambda x: x * x.sum().item(), on_refusal="eager")
    with pytest.warns(UserWarning):
        for _ in range(3):
            jitted(torch.ones(2))
    text = jitted.explain()
    assert "refused" in text and "item" in text and "x.sum().item()" in text and "fix: " in text


def test_a_swallowed_refusal_refuses_all_the_same() -> None:
    def swallow(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * x.sum().item()
        except RuntimeError:
            return x

    jitted = jit(swallow, on_refusal="eager")
    with pytest.warns(UserWarning, match="item"):
        for _ in range(3):
            assert_same(jitted(torch.full((2,), 3.0)), torch.full((2,), 18.0))


def test_a_tensor_leaked_into_a_list_is_refused_and_the_list_holds_real_tensors() -> None:
    kept: list[torch.Tensor] = []

    def leak(x: torch.Tensor) -> torch.Tensor:
        kept.append(x * 2)
        return x - 1

    jitted = jit(leak, on_refusal="eager")
    with pytest.warns(UserWarning, match="kept"):
        for _ in range(4):
            jitted(torch.ones(2))
    assert_same(kept, [torch.full((2,), 2.0)] * 4)
    assert all(type(tensor) is torch.Tensor for tensor in kept)


@pytest.mark.parametrize("make", [collections.deque, set, dict])
def test_a_tensor_leaked_into_another_container_leaves_no_mark(make: Any) -> None:
    kept = make()

    def leak(x: torch.Tensor) -> torch.Tensor:
        made = x * 2
        if isinstance(kept, dict):
            kept[len(kept)] = made
        else:
            kept.append(made) if isinstance(kept, collections.deque) else kept.add(made)
        return made + 1

    jitted = jit(leak, on_refusal="eager")
    for _ in range(4):
        jitted(torch.ones(2))
    assert len(kept) == 4
    assert all(type(tensor) is torch.Tensor for tensor in (kept.values() if isinstance(kept, dict) else kept))


def test_a_hook_that_keeps_activations_leaves_no_mark() -> None:
    model, kept = nn.Linear(2, 2), []
    model.register_forward_hook(lambda module, args, out: kept.append(out.detach()))
    jitted = jit(model, on_refusal="eager")
    with torch.no_grad():
        for _ in range(4):
            jitted(torch.ones(1, 2))
    assert len(kept) == 4 and all(type(tensor) is torch.Tensor for tensor in kept)


def test_an_iterator_that_the_program_advances_is_refused_before_it_is_touched() -> None:
    batches = (torch.full((2,), float(number)) for number in range(100))
    jitted = jit(lambda x: x - next(batches), on_refusal="eager")
    with pytest.warns(UserWarning, match="batches: is a generator"):
        found = [jitted(torch.zeros(2)) for _ in range(4)]
    assert [float(-tensor[0]) for tensor in found] == [0.0, 1.0, 2.0, 3.0]


_OFFLINE = """
import itertools
tokens = itertools.count()
def download():
    return next(tokens)
def layer(x, offline):
    return x * 2 if offline else x - download()
"""


def test_an_iterator_of_an_installed_package_is_refused_where_code_that_names_it_runs() -> None:
    layer, x = library(_OFFLINE)["layer"], torch.ones(2)
    recorded = jit(lambda x: layer(x, True) - 1)
    for _ in range(3):
        assert_same(recorded(x), x * 2 - 1)
    assert recorded.statistics().replays
    refused = jit(lambda x: layer(x, False), on_refusal="raise")
    refused(x)
    with pytest.raises(treeplay.Refusal, match=r"a_library\.layers\.tokens: is a count that"):
        refused(x)


def test_a_global_iterator_is_told_with_its_module() -> None:
    program = jit(eval("lambda x: x * next(tokens)", {"__name__": "numbering", "tokens": iter([2, 3])}))
    program(torch.ones(2))
    with pytest.raises(treeplay.Refusal, match=r"numbering\.tokens: is a list_iterator that"):
        program(torch.ones(2))


class Image(torch.Tensor):
    """As torchvision has them: kernels are called with the plain tensor."""


def _unwrapped(image: torch.Tensor) -> torch.Tensor:
    return image.as_subclass(torch.Tensor) * 2 - 1


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (lambda image: image * 2 - 1, r"tensor: is not plain memory with a shape and strides \(Image\)"),
        (_unwrapped, "uses an argument of class Image as one of class Tensor, as `as_subclass` gives it"),
    ],
)
def test_a_tensor_of_a_class_of_its_own_is_told_with_the_class(program: Callable[..., Any], told: str) -> None:
    jitted, image = jit(program, on_refusal="raise"), torch.ones(3).as_subclass(Image)
    with torch._C.DisableTorchFunctionSubclass():
        jitted(image)
        with pytest.raises(treeplay.Refusal, match=told):
            jitted(image)


def test_an_unhashable_static_argument_is_refused_by_name() -> None:
    jitted = jit(lambda x, options: x * len(options))
    with pytest.raises(treeplay.Refusal, match=r"argument kwargs\['options'\]") as caught:
        jitted(torch.ones(2), options=bytearray(2))
    assert caught.value.advice
    eager = jit(lambda x, options: x * len(options), on_refusal="eager")
    with pytest.warns(UserWarning, match="cannot be hashed"):
        assert_same(eager(torch.ones(2), options=bytearray(2)), torch.full((2,), 2.0))
    assert eager.statistics().calls == 1


def test_a_result_that_needs_gradients_beside_a_backward_is_refused_with_the_cure() -> None:
    model = nn.Linear(2, 1)

    def step(x: torch.Tensor) -> torch.Tensor:
        model(x).sum().backward()
        return model(x)

    jitted = jit(step)
    jitted(torch.ones(1, 2))
    with pytest.raises(treeplay.Refusal, match="needs gradients"):
        jitted(torch.ones(1, 2))
    eager = jit(step, on_refusal="eager")
    for _ in range(4):
        model.zero_grad()
        eager(torch.ones(1, 2)).sum().backward()
        assert_same(model.weight.grad, torch.full((1, 2), 2.0))


def test_state_that_becomes_part_of_a_graph_is_refused_and_left_alone() -> None:
    weight, total = nn.Parameter(torch.ones(2)), torch.zeros(2)

    def accumulate(x: torch.Tensor) -> torch.Tensor:
        total.add_(weight * x)
        return x - 1

    jitted = jit(accumulate, on_refusal="eager")
    for _ in range(4):
        jitted(torch.full((2,), 3.0))
        total.detach_()
    assert_same(total, torch.full((2,), 12.0))
    assert jitted.statistics().replays == 0 and weight.grad is None


@pytest.mark.parametrize("view", [lambda z: z.conj(), lambda z: torch.imag(z.conj())])
def test_a_lazily_conjugated_argument_is_read_conjugated(view: Callable[..., torch.Tensor]) -> None:
    jitted = jit(lambda z: z * 2 - 1, on_refusal="eager")
    for _ in range(4):
        z = view(torch.randn(3, dtype=torch.complex64))
        assert_same(jitted(z).resolve_conj(), (z * 2 - 1).resolve_conj())


def test_sparse_arguments_run_eagerly() -> None:
    jitted = jit(lambda s: s.to_dense() * 2, on_refusal="eager")
    for _ in range(3):
        assert_same(jitted(torch.eye(2).to_sparse()), torch.eye(2) * 2)


def test_a_captured_sparse_gradient_is_refused_and_right() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    jitted = jit(lambda i: table(i).sum().backward(), on_refusal="eager")
    for _ in range(3):
        table.zero_grad()
        jitted(torch.tensor([1, 2]))
        assert_same(table.weight.grad.to_dense()[1], torch.ones(2))


@pytest.mark.parametrize("argument", [{"lower": "fast"}, {"on_refusal": "ignore"}])
def test_an_unknown_option_names_the_known_ones(argument: dict[str, Any]) -> None:
    with pytest.raises(treeplay.ArgumentError, match="expected"):
        jit(lambda x: x, **argument)


def test_what_is_not_callable_is_refused_at_once() -> None:
    with pytest.raises(treeplay.ArgumentTypeError, match="found int"):
        treeplay.jit(3)  # type: ignore[call-overload]


def test_a_program_that_reaches_too_much_to_watch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeplay.trace.survey.walk._MOST_OBJECTS", 20)
    records = [[index] for index in range(30)]

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * len(records) - 1

    jitted = jit(program, on_refusal="raise")
    jitted(torch.ones(2))
    with pytest.raises(treeplay.Refusal, match="too many objects") as caught:
        jitted(torch.ones(2))
    assert caught.value.where is not None and caught.value.where.function == "program"


@pytest.mark.parametrize("convert", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
@pytest.mark.parametrize("program", [lambda a, x: a @ x, lambda a, x: x * 2])
def test_a_sparse_argument_is_refused_once_whichever_it_is(program: Any, convert: Any) -> None:
    jitted = jit(program, on_refusal="eager")
    with pytest.warns(UserWarning, match=r"(?s)argument args\[0\].*layout sparse_.*indices and values") as warned:
        for value in (1.0, 2.0, 3.0, 4.0):
            assert_same(
                jitted(convert(torch.eye(3) * value), torch.ones(3)), program(torch.eye(3) * value, torch.ones(3))
            )
    assert sum("treeplay" in str(item.message) for item in warned) == 1
    statistics = jitted.statistics()
    assert (statistics.calls, statistics.replays, statistics.refusals, len(statistics.keys)) == (4, 0, 1, 1)


def test_an_embedding_with_sparse_gradients_is_refused_as_such() -> None:
    model = nn.Embedding(4, 2, sparse=True)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        model.weight.grad = None
        model(tokens).sum().backward()  # HERE
        return tokens * 2

    jitted = jit(step)
    jitted(torch.tensor([1, 2]))
    with pytest.raises(treeplay.Refusal, match="layout sparse_coo") as caught:
        jitted(torch.tensor([1, 2]))
    assert caught.value.where is not None and "HERE" in caught.value.where.source


def _fakes() -> list[torch.Tensor]:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return [mode.from_tensor(torch.ones(4, 3)), mode.from_tensor(torch.ones(4, 3), static_shapes=True)]


@pytest.mark.parametrize("lower", ["aten", "capture"])
def test_fake_arguments_run_eagerly_and_keep_nothing_from_being_recorded(lower: str) -> None:
    jitted = jit(lambda x: x * 2 - 1, lower=lower)
    fakes = _fakes()
    for _ in range(4):
        assert [type(jitted(fake)) for fake in fakes] == [FakeTensor, FakeTensor]
        assert_same(jitted(torch.ones(4, 3)), torch.ones(4, 3))
    statistics = jitted.statistics()
    assert (statistics.recordings, statistics.refusals) == (1, 0)
    assert any("no data to compute with" in str(key.refusal) for key in statistics.keys)


def test_an_encoder_that_asks_for_the_mask_is_refused_with_the_option_that_helps() -> None:
    x, mask = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])

    def encoder(**options: bool) -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        return nn.TransformerEncoder(layer, 2, **options).eval()

    with torch.no_grad():
        asks = jit(encoder())
        asks(x, src_key_padding_mask=mask)
        with pytest.raises(treeplay.Refusal, match="enable_nested_tensor=False"):
            asks(x, src_key_padding_mask=mask)
        model = encoder(enable_nested_tensor=False)
        does_not = jit(model)
        for _ in range(4):
            assert_same(does_not(x, src_key_padding_mask=mask), model(x, src_key_padding_mask=mask))
    assert does_not.statistics().replays == 3


def test_a_coroutine_function_is_refused_with_what_to_do_and_runs() -> None:
    async def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    jitted = jit(program, on_refusal="eager")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for at in range(4):
            assert_same(asyncio.run(jitted(torch.ones(2) * at)), torch.ones(2) * at * 2)
        gc.collect()
    (warning,) = told  # and none of a coroutine that was never awaited
    assert "a coroutine is among the results" in str(warning.message)
    assert "jit the functions that it calls" in str(warning.message)


@pytest.mark.parametrize("what", ["a full history", "a warm-up that is over", "a cache of a steady size"])
def test_what_changes_in_the_first_calls_alone_is_replayed_in_the_end(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def make() -> Callable[[torch.Tensor], torch.Tensor]:
        kept: list[torch.Tensor] = []
        marks, cache = "", torch.zeros(0, 3)

        def program(x: torch.Tensor) -> torch.Tensor:
            nonlocal marks, cache
            if what == "a full history":
                kept.append(x * 2)
                if len(kept) > 3:
                    kept.pop(0)
                return torch.stack(kept).mean(0)
            if what == "a warm-up that is over":
                marks = (marks + "|")[:5]
                return x * len(marks)
            cache = torch.cat([cache, x[None]])[-4:]
            return (cache @ x.expand(len(cache), 3).T).softmax(-1)

        return program

    now = [0.0]
    monkeypatch.setattr("treeplay.tree.worth.budget.perf_counter", lambda: now[0])
    jitted, eager = jit(make(), on_refusal="eager"), make()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for at in range(100):
            now[0] += 10.0 * (at > 20)
            x = torch.randn(3)
            assert_same(jitted(x), eager(x), f"call {at}")
    statistics = jitted.statistics()
    assert statistics.replays > 10 and not statistics.keys[0].refusal, jitted.explain()
    # What text there is decides which way Python goes, and each has a recording.
    assert len(told) == (what != "a warm-up that is over")


def test_what_changes_in_each_call_is_looked_at_ever_less(monkeypatch: pytest.MonkeyPatch) -> None:
    marks, now = "", [0.0]

    def program(x: torch.Tensor) -> torch.Tensor:
        nonlocal marks
        marks += "|"
        return x * len(marks)

    monkeypatch.setattr("treeplay.tree.worth.budget.perf_counter", lambda: now[0])
    jitted = jit(program, on_refusal="eager")
    with pytest.warns(UserWarning, match="marks") as told:
        for at in range(3000):
            now[0] += 1.0
            assert jitted(torch.ones(2))[0] == at + 1
    assert 1 < jitted.statistics().refusals < 14  # of 3,000 seconds: after 1, 2, 4, ... of them
    assert len(told) == 1


def test_a_deep_copy_is_refused_with_what_copies() -> None:
    model = nn.Linear(3, 2)

    def halfway(copied: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], None]:
        def step(x: torch.Tensor) -> None:
            before = {name: copied(value) for name, value in model.state_dict().items()}
            with torch.no_grad():
                model.weight.sub_(x)
                model.weight.lerp_(before["weight"], 0.5)

        return step

    refused, replayed = jit(halfway(copy.deepcopy)), jit(halfway(torch.clone))
    refused(torch.ones(2, 3))
    with pytest.raises(treeplay.Refusal, match="deepcopy") as caught:
        refused(torch.ones(2, 3))
    assert "clone()" in caught.value.advice
    for _ in range(4):
        expected = model.weight - 0.5
        replayed(torch.ones(2, 3))
        torch.testing.assert_close(model.weight, expected)
    assert replayed.statistics().replays == 3


def test_what_torch_keeps_of_parametrized_layers_is_named_where_it_is_kept_around_the_call() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    jitted, inside = jit(layer), jit(lambda x: _cached(layer, x))
    x = torch.randn(2, 3)
    with torch.no_grad(), nn.utils.parametrize.cached():
        jitted(x)
        with pytest.raises(treeplay.Refusal, match=r"parametrize\.cached: was entered around the call"):
            jitted(x)
    with torch.no_grad():
        for _ in range(3):
            assert_same(inside(x), _cached(layer, x))
    assert inside.statistics().replays == 2


def _cached(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with nn.utils.parametrize.cached():
        return layer(x) - layer(x * 2)


def test_an_attribute_of_a_tensor_that_the_program_changes_is_told_with_both_values() -> None:
    state: Any = torch.zeros(3)
    state.mark = "a"

    def program(x: torch.Tensor) -> torch.Tensor:
        state.mark = state.mark + "b"
        return x * 2 - state

    jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
    jitted(torch.ones(3))
    with pytest.raises(treeplay.Refusal, match=r"state\.mark: the program changes a Python value from 'ab' to 'abb'"):
        jitted(torch.ones(3))
