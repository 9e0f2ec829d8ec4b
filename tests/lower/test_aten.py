"""The `aten` lowering against eager, bit for bit: whole steps, views, random numbers, arenas full of garbage."""

import copy
import gc
import inspect
import resource
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from support import assert_same, jit
from treeplay.errors import LoweringError
from treeplay.lower.aten import lower_aten
from treeplay.lower.aten.calls import spell
from treeplay.lower.lowered import Lowered
from treeplay.lower.reshaped import with_reshapes_as_views
from treeplay.plan.arena import plan_arena
from treeplay.torch_seam import autograd, operators, tensors
from treeplay.torch_seam.schemas import aten, out_form
from treeplay.trace.call import Call
from treeplay.trace.jit import trace
from treeplay.trace.traced import Trace
from treeplay.values.flatten import flatten
from treeplay.values.output import Fresh, SameAsInput, Static, View
from treeplay.values.signature import Argument, Built, Constant
from treeplay.values.unflatten import unflatten


@dataclass
class Replay:
    """A lowered program with what a call does around it, read off the signature in the plainest way."""

    traced: Trace
    lowered: Lowered
    poison: bool = False

    @property
    def arena(self) -> torch.Tensor:
        return self.lowered.run.__globals__["arena"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        signature = self.traced.signature
        leaves, _ = flatten((args, kwargs))
        inputs = [self.read(item.source, leaves) for item in signature.inputs]
        if self.poison:
            self.arena.view(torch.float32).fill_(float("nan"))
        with torch.no_grad():
            outputs = self.lowered.run(list(inputs), self.numbers())
        for write in signature.writes:
            write.place.write(self.value(write.value, inputs, outputs))
        return unflatten(signature.results, [self.value(ref, inputs, outputs) for ref in signature.refs])

    def numbers(self) -> list[float]:
        wanted = {node.target for node in self.traced.graph.nodes if node.op == "placeholder"}
        return [number.place.read() for number in self.traced.signature.numbers if number.name in wanted]

    def read(self, source: Any, leaves: list[Any]) -> torch.Tensor:
        if isinstance(source, Argument):
            return leaves[source.index]
        return source.tensor if isinstance(source, Constant) else source.place.read()

    def value(self, ref: Any, inputs: list[torch.Tensor], outputs: Any) -> Any:
        match ref:
            case Fresh(index):
                return outputs[index]
            case SameAsInput(index):
                return inputs[index]
            case Static(value):
                return value
            case View(of, layout):
                base = self.value(of, inputs, outputs).detach()
                return base.as_strided(layout.shape, layout.stride, base.storage_offset() + layout.offset)
            case Built(structure, refs):
                return unflatten(structure, [self.value(part, inputs, outputs) for part in refs])


def lower(program: Any, *args: Any, poison: bool = False) -> Replay:
    leaves, structure = flatten((args, {}))
    traced = trace(program, Call(args, {}, leaves, structure))
    graph = with_reshapes_as_views(traced.graph)
    return Replay(traced, lower_aten(graph, plan_arena(graph)), poison)


def snapshot(values: Any) -> list[torch.Tensor]:
    return [leaf.detach().clone() for leaf in flatten(values)[0] if isinstance(leaf, torch.Tensor)]


def assert_bitwise(ours: list[torch.Tensor], theirs: list[torch.Tensor], where: str) -> None:
    assert len(ours) == len(theirs)
    for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride(), (where, index)
        ours_raw, theirs_raw = (item.reshape(-1).contiguous().view(torch.uint8) for item in (one, other))
        assert torch.equal(ours_raw, theirs_raw), (where, index)


class Training:
    """A model, an optimizer and a step over them; `state` is all that a step may change."""

    def __init__(self, model: nn.Module, optimizer: Any, loss: Any, clip: float | None = None) -> None:
        self.model, self.loss, self.clip = model, loss, clip
        self.optimizer = optimizer(model.parameters())

    def __call__(self, *args: Any) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(self.model, *args)
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return loss.detach()

    def state(self) -> list[torch.Tensor]:
        parameters = list(self.model.parameters())
        kept = [self.optimizer.state[parameter] for parameter in parameters]
        return snapshot([parameters, list(self.model.buffers()), [item.grad for item in parameters], kept])


def assert_trains_as_eager(make: Any, batches: list[tuple[torch.Tensor, ...]], *, poison: bool = False) -> Replay:
    """Two trainings from one state, one eager and one replayed, agree after each step in every bit."""
    torch.manual_seed(1)
    eager = make()
    eager(*batches[0])
    ours = copy.deepcopy(eager)
    replay = lower(ours, *batches[0], poison=poison)
    results = []
    for program, run in ((eager, eager), (ours, replay)):
        torch.manual_seed(7)
        trail = []
        for step, batch in enumerate([*batches, *batches]):
            program.optimizer.param_groups[0]["lr"] = 0.01 / (step + 1)
            trail.append([snapshot(run(*batch)), program.state(), torch.get_rng_state()])
        results.append(trail)
    for step, (theirs, mine) in enumerate(zip(*results, strict=True)):
        assert_bitwise(mine[0], theirs[0], f"result of step {step}")
        assert_bitwise(mine[1], theirs[1], f"state after step {step}")
        assert torch.equal(mine[2], theirs[2]), f"random state after step {step}"
    return replay


def regression(count: int = 4, width: int = 8) -> list[tuple[torch.Tensor, ...]]:
    torch.manual_seed(3)
    return [(torch.randn(6, width), torch.randn(6, width)) for _ in range(count)]


def mse(model, x, y):
    return F.mse_loss(model(x), y)


def mlp(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, width))


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw without decay": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "sgd momentum foreach": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=True),
    "sgd nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_mlp_trains_as_eager(name):
    assert_trains_as_eager(lambda: Training(mlp(), OPTIMIZERS[name], mse), regression())


def test_an_mlp_in_double_precision_trains_as_eager():
    batches = [tuple(item.double() for item in batch) for batch in regression()]
    assert_trains_as_eager(lambda: Training(mlp().double(), OPTIMIZERS["adamw"], mse), batches)


def test_an_mlp_in_bfloat16_trains_as_eager():
    batches = [tuple(item.bfloat16() for item in batch) for batch in regression()]
    assert_trains_as_eager(lambda: Training(mlp().bfloat16(), OPTIMIZERS["adamw"], mse), batches)


@pytest.mark.parametrize("name", ["adamw", "adamw foreach"])
def test_clipped_gradients_are_the_ones_left_in_grad(name):
    assert_trains_as_eager(lambda: Training(mlp(), OPTIMIZERS[name], mse, clip=0.05), regression())


def test_an_arena_full_of_nan_changes_nothing():
    assert_trains_as_eager(lambda: Training(mlp(), OPTIMIZERS["adamw"], mse, clip=0.05), regression(), poison=True)


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3),
        nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5),
    )  # fmt: skip


def images(count: int = 3) -> list[tuple[torch.Tensor, ...]]:
    torch.manual_seed(4)
    return [(torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))) for _ in range(count)]


def classify(model, x, y):
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize("poison", [False, True], ids=["clean", "poisoned"])
def test_a_cnn_with_batch_norm_and_dropout_trains_as_eager(poison):
    assert_trains_as_eager(lambda: Training(cnn(), OPTIMIZERS["sgd nesterov"], classify), images(), poison=poison)


class Block(nn.Module):
    """Embedding, causal attention by hand and by the fused operator, tied output."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 12), nn.Embedding(6, 12)
        self.norm, self.last = nn.LayerNorm(12), nn.LayerNorm(12)
        self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = (part.unflatten(-1, (2, 6)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        scores = (q @ k.transpose(-1, -2) / 6**0.5).masked_fill(~mask, float("-inf"))
        mixed = F.dropout(scores.softmax(-1), 0.2) @ v + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return self.last(x) @ self.tokens.weight.t()


class Recurrent(nn.Module):
    """An LSTM: one operator whose kernel asks whether gradients are on."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(8, 8, 2, batch_first=True, dropout=0.1), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0])


@pytest.mark.parametrize("poison", [False, True], ids=["clean", "poisoned"])
def test_an_lstm_trains_as_eager(poison):
    torch.manual_seed(6)
    batches = [(torch.randn(4, 5, 8), torch.randn(4, 5, 8)) for _ in range(3)]
    assert_trains_as_eager(lambda: Training(Recurrent(), OPTIMIZERS["adamw"], mse), batches, poison=poison)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_an_lstm_that_nobody_trains_runs_in_the_grad_mode_of_its_call(mode):
    lstm = nn.LSTM(6, 5).requires_grad_(False)
    jitted = jit(lstm)
    with mode():
        for _ in range(4):
            x = torch.randn(3, 1, 6)
            assert_bitwise(snapshot(jitted(x)[0]), snapshot(lstm(x)[0]), "results")
    assert jitted.statistics().replays == 3


def next_token(model, ids):
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@pytest.mark.parametrize("poison", [False, True], ids=["clean", "poisoned"])
@pytest.mark.parametrize("name", ["adamw", "adamw foreach"])
def test_a_transformer_trains_as_eager(name, poison):
    torch.manual_seed(5)
    batches = [(torch.randint(0, 11, (3, 6)),) for _ in range(3)]
    replay = assert_trains_as_eager(
        lambda: Training(Block(), OPTIMIZERS[name], next_token, clip=0.5), batches, poison=poison
    )
    assert replay.lowered.details["constants"] >= 4  # positions, the mask and what is made of them


def assert_runs_as_eager(program: Any, *args: Any, times: int = 3) -> Replay:
    """A program without state gives eager's bits, and does to its arguments what eager does."""
    replay = lower(program, *snapshot(args), poison=True)
    for seed in range(times):
        theirs, ours = snapshot(args), snapshot(args)
        torch.manual_seed(seed)
        wanted = program(*theirs)
        torch.manual_seed(seed)
        got = replay(*ours)
        assert_bitwise(snapshot(got), snapshot(wanted), "results")
        assert_bitwise(ours, theirs, "arguments")
    return replay


def test_in_place_views_write_through():
    def program(x):
        x[1:, ::2] *= 3
        x.t()[0].sub_(x[0] - 2)
        base = x * 2
        base.view(-1)[3:7].div_(7)
        part = base[:, 1:3]
        part += base[:, :1]
        return base - part.sum(), part

    assert_runs_as_eager(program, torch.randn(5, 5))


def test_reshapes_in_place_hold_for_one_name_only():
    def program(x):
        y = x - 1
        z = y.detach()
        y.t_().unsqueeze_(0)
        w = y.clone(memory_format=torch.contiguous_format)
        y.mul_(3)
        out = x * 5
        out.t_()
        out.sub_(z)
        return w, y / 7, z, out

    assert_runs_as_eager(program, torch.randn(3, 3))


def test_splits_and_several_results():
    def program(x, y):
        a, b, c = (x - y).split([1, 2, 3])
        values, order = x.sort(dim=0, descending=True)
        top, where = (values / y).max(dim=1)
        mean = torch.var_mean(c, dim=0)
        b.sub_(a)
        return top, where, order.float() - values, mean, x.max(dim=0).values - y[0], [p - 1 for p in y.unbind()]

    assert_runs_as_eager(program, torch.randn(6, 5), torch.randn(6, 5))


def test_random_numbers_come_in_eagers_order():
    def program(x):
        noise = torch.rand_like(x)
        torch.rand(3)  # nobody uses it, but it moves the generator
        x = F.dropout(x, 0.5) / (noise + 1) - torch.bernoulli(noise)
        x.normal_(mean=2.0) if x.dim() == 7 else None
        y = torch.empty_like(x).uniform_(-1, 1)
        return x / y, torch.randn(4) - torch.randint(0, 9, (4,)), torch.randperm(5)

    assert_runs_as_eager(program, torch.randn(5, 5))


def test_memory_made_and_filled_inside():
    def program(x):
        a, b, c = torch.zeros(3, 4), torch.full_like(x, 2.5), x.new_ones(3, 4)
        a[1] = x[0] - 1
        b[:, 2] -= x[:, 0]
        c.div_(a + 3)
        kept = torch.arange(4.0) - 7  # never written: made once
        given = torch.ones(2)
        return a - b / c, x.clone().sub_(kept), given, torch.zeros(2).index_fill_(0, torch.tensor([1]), 3.0)

    replay = assert_runs_as_eager(program, torch.randn(3, 4))
    assert replay.lowered.details["constants"] >= 1


def test_a_result_beside_a_constant_is_new_each_time():
    def program(x):
        values, order = torch.arange(5.0).sort(descending=True)
        return values, x - order

    replay = assert_runs_as_eager(program, torch.randn(5))
    first = replay(torch.ones(5))[0]
    first.zero_()
    assert replay(torch.ones(5))[0].tolist() == [4, 3, 2, 1, 0]


def test_odd_layouts_are_kept():
    def program(x):
        y = x.permute(2, 0, 1) - 2
        z = y.clone() / 3
        w = y.contiguous().sub_(1)
        return y, z, w.to(torch.float64) - 1, y.to(torch.int32), z.expand(2, *z.shape).sum(-1) - 1

    assert_runs_as_eager(program, torch.randn(3, 4, 5))


def test_complex_conjugates_are_copied_not_settled():
    def program(x):
        z = torch.complex(x, x - 1)
        halves = z.imag - 3 * z.conj().imag  # two views with one spec, and opposite values
        return z.conj().clone() / (z - 2), z.conj().resolve_conj().imag - 1, torch.view_as_real(z - 1j).sum(0), halves

    assert_runs_as_eager(program, torch.randn(4))


def test_empty_tensors_pass_through():
    def program(x):
        nothing = x[:0] * 2
        return torch.cat([nothing, x - 1]), nothing.sum() - 1

    assert_runs_as_eager(program, torch.randn(3, 2))


def test_an_input_and_a_repeated_tensor_can_be_results():
    def program(x):
        y = x - 1
        x.mul_(2)
        return x, y, y, x.t(), y[1:]

    assert_runs_as_eager(program, torch.randn(3, 3))


def test_results_of_different_replays_share_no_memory():
    replay = lower(lambda x: (x - 1, (x / 3).t()), torch.randn(8, 8))
    kept = [replay(torch.full((8, 8), float(index))) for index in range(4)]
    for index, (one, other) in enumerate(kept):
        assert torch.equal(one, torch.full((8, 8), index - 1.0))
        assert torch.equal(other, torch.full((8, 8), float(index)) / 3)


def test_no_result_lies_in_the_arena_and_the_arena_stays_where_it_is():
    batches = regression()
    training = Training(mlp(), OPTIMIZERS["adamw"], mse, clip=0.1)
    training(*batches[0])
    replay = lower(training, *batches[0])
    start, end = replay.arena.data_ptr(), replay.arena.data_ptr() + replay.arena.nbytes
    names = {name: item for name, item in replay.lowered.run.__globals__.items() if isinstance(item, torch.Tensor)}
    places = {name: item.data_ptr() for name, item in names.items()}
    for _ in range(3):
        outputs = [replay(*batches[1]), *(parameter.grad for parameter in training.model.parameters())]
        assert not any(start <= item.data_ptr() < end for item in outputs)
    assert {name: item.data_ptr() for name, item in names.items()} == places


@pytest.mark.programs
def test_replays_do_not_grow():
    """A leak of one activation per replay would show as 150 MB."""
    batches = [(torch.randn(2048, 64), torch.randn(2048, 64))]
    training = Training(mlp(64), OPTIMIZERS["sgd"], mse)
    training(*batches[0])
    replay = lower(training, *batches[0])
    assert replay.lowered.details["allocating"] == {}
    for _ in range(3):
        replay(*batches[0])
    gc.collect()
    before, objects = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(gc.get_objects())
    for _ in range(300):
        replay(*batches[0])
    gc.collect()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kilobytes
    assert len(gc.get_objects()) - objects < 50


def test_memory_that_operators_allocate_is_given_back_during_the_replay():
    def program(x):
        for _ in range(4):
            x = x.roll(1, 0)  # has no form that writes into given memory
        return x - 1

    replay = assert_runs_as_eager(program, torch.randn(4, 4))
    assert replay.lowered.details["allocating"] == {"aten.roll.default": 4}
    assert replay.lowered.source.count("del roll") == 4


def test_a_training_step_of_linear_layers_allocates_nothing_but_its_outputs():
    training = Training(mlp(), OPTIMIZERS["adamw"], mse, clip=0.1)
    training(*regression()[0])
    replay = lower(training, *regression()[0])
    assert replay.lowered.details["allocating"] == {}
    assert replay.lowered.details["elided copies"] == len(list(training.model.parameters()))


def test_autograd_sees_that_an_argument_was_written():
    weight = torch.randn(3, requires_grad=True)
    replay = lower(lambda x: x.mul_(2).sum(), torch.randn(3))
    x = torch.randn(3)
    product = weight * x
    replay(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_results_are_ordinary_tensors():
    out = lower(lambda x: x - 1, torch.randn(3))(torch.randn(3))
    assert out.is_leaf and not out.is_inference() and not out._is_view() and out._version == 0
    out.requires_grad_()
    (out * 2).sum().backward()
    assert torch.equal(out.grad, torch.full((3,), 2.0))


def test_an_active_autocast_does_not_reach_the_operators():
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    replay = lower(lambda x, y: x @ y - 1, x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = replay(x, y)
    assert got.dtype == torch.float32 and torch.equal(got, x @ y - 1)


def test_dynamo_neither_inlines_nor_compiles_a_replay():
    seen: list[str] = []

    def backend(module, _):
        seen.extend(str(node.target) for node in module.graph.nodes if node.op != "placeholder")
        return module

    run = lower(lambda x: x.sigmoid() - 1, torch.randn(3)).lowered.run
    x = torch.randn(3)
    with torch.no_grad():
        compiled = torch.compile(lambda x: run([x.cos()], ())[0].tan(), backend=backend)
        assert torch.equal(compiled(x), (x.cos().sigmoid() - 1).tan())
    assert "cos" in seen and "tan" in seen and not any("sigmoid" in name for name in seen)


def test_a_replay_can_be_read_in_a_debugger():
    run = lower(lambda x: x - 1, torch.randn(3)).lowered.run
    assert run.__code__.co_filename.startswith("<treeplay aten ")
    assert inspect.getsource(run).startswith("def replay(tensors, numbers):")


def test_only_bindings_that_reach_the_very_overload_are_used():
    x = torch.empty(3, device="meta")
    assert spell(aten.mul.out, (x, 0.5), {}, {"out": x}).name == "mul_out"
    fast = spell(aten.add_.Tensor, (x, x), {"alpha": 2}, {})
    slow = spell(aten.threshold_backward.grad_input, (x, x, 0), {}, {"grad_input": x})
    assert fast.name == "add_" and fast.joins_outs
    assert slow.name == "threshold_backward_grad_input" and not slow.joins_outs
    # `torch.mul` takes a number too, but then reaches another overload than the one that is asked for.
    assert spell(aten.mul.Scalar, (x, 2), {}, {}).name == "mul_Scalar"


def test_the_operators_hidden_from_autograd_leave_versions_alone():
    x = torch.ones(2, requires_grad=True)
    with torch.no_grad(), operators.ExcludeKeys(operators.keys_above_operators()):
        x.add_(1)
        assert x._version == 0 and x.t()._base is None
    autograd.increment_versions([x])
    assert x._version == 1


def test_host_memory_is_made_as_asked():
    made = tensors.empty_strided_host((2, 3), (1, 2), torch.float64)
    assert (made.shape, made.stride(), made.dtype) == ((2, 3), (1, 2), torch.float64)


def test_generated_out_overloads_are_not_used():
    assert out_form(aten.native_layer_norm.default) is None
    assert out_form(aten.mul.Tensor).op is aten.mul.out
    assert out_form(aten.relu.default).more == (0,)
    assert out_form(aten.max.dim).outs == ("max", "max_values")
    assert out_form(aten._native_batch_norm_legit.default).outs == ("out", "save_mean", "save_invstd")


def test_growing_a_tensor_in_place_is_refused_with_its_line():
    def program(x):
        y = x - 1
        y.resize_(9)
        return y.sum()

    with pytest.raises(LoweringError, match=r"resize_.* in place, at .*test_aten\.py"):
        lower(program, torch.randn(3))


def test_the_text_reads_like_the_program():
    """A number as a cell, two operators into the arena, one output."""
    weight = torch.randn(3, 3)

    def program(x):
        weight.mul_(0.5)
        return ((x @ weight).relu() - 1).sum()

    source = lower(program, torch.randn(2, 3)).lowered.source
    assert (
        source
        == """\
def replay(tensors, numbers):
    in0, in1 = tensors
    increment_versions([in0])
    with without(keys):
        mul_(in0, cell_0_5)
        mm_out(in1, in0, out=mm_default)
        clamp_min_out(mm_default, 0, out=relu_default)
        sub_out(relu_default, cell_1, out=sub_tensor)
        sum_default = sum(sub_tensor)
        return (sum_default,)
"""
    )


@pytest.mark.parametrize("loss", [F.mse_loss, F.huber_loss, F.smooth_l1_loss, F.soft_margin_loss])
def test_a_loss_that_is_not_returned_does_not_outgrow_its_memory(loss, capfd):
    weight = torch.randn(3, 2, requires_grad=True)

    def step(x, y):
        weight.grad = None
        loss(x @ weight, y).backward()

    jitted = treeplay.jit(step, lower="aten", on_refusal="raise")
    for _ in range(4):
        x, y = torch.randn(4, 3), torch.randn(4, 2).sign()
        step(x, y)
        expected = weight.grad.clone()
        jitted(x, y)
        assert torch.equal(weight.grad, expected)
    assert "resized" not in capfd.readouterr().err


def test_a_view_that_counts_from_the_start_of_its_storage_stays_in_it() -> None:
    """In the arena the offset of as_strided counted from the arena's start, and overwrote what another tensor kept there."""

    def program(x: torch.Tensor) -> torch.Tensor:
        kept = x @ x  # the largest comes first in the arena
        small = x[0] * 2.0
        shown = small.as_strided((2, 3), (3, 1), 1)
        shown.mul_(3.0)
        return kept - small.sum() - shown.sum() * 2.0

    step = jit(program)
    for _ in range(4):
        x = torch.randn(8, 8)
        assert_same(step(x), program(x))


def test_an_operator_that_compares_the_memory_of_its_results_gets_memory_of_their_own() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        q, r = torch.linalg.qr(x)
        return q @ r - 2 * x

    jitted = jit(run)
    for _ in range(3):
        x = torch.randn(4, 3)
        assert_same(jitted(x), run(x))
    assert jitted.statistics().replays == 2


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_what_the_caller_differentiates_is_interpolated_to_the_bit(mode: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=(7, 3), mode=mode) - 1

    jitted = jit(run)
    for _ in range(3):
        x = torch.randn(1, 2, 5, 5)
        mine, eager = (x.clone().requires_grad_() for _ in range(2))
        found, expected = jitted(mine), run(eager)
        found.square().sum().backward()
        expected.square().sum().backward()
        assert_same([found.detach(), mine.grad], [expected.detach(), eager.grad])
    assert jitted.statistics().replays == 2


def test_an_operator_may_give_lists_among_its_results() -> None:
    def run(x: torch.Tensor) -> Any:
        counts, edges = torch.histogramdd(x, [3, 4], range=[0.0, 1.0, 0.0, 1.0])
        return counts * 2 - 1, [edge * 3 - 1 for edge in edges]

    jitted = jit(run)
    for _ in range(3):
        x = torch.rand(5, 2)
        assert_same(jitted(x), run(x))
    assert jitted.statistics().replays == 2


def test_results_that_nobody_uses_have_each_memory_of_their_own() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return F.logsigmoid(x) - F.logsigmoid(-x[:2]).sum() * 2  # without a gradient, nobody uses their buffers

    jitted = jit(run)
    for _ in range(3):
        x = torch.randn(4, 6)
        assert_same(jitted(x), run(x))
    assert jitted.statistics().replays == 2
