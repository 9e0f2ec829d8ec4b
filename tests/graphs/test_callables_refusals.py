"""What cannot be wrapped or called is refused with a name, and without any effect."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from support import assert_same
from treeplay.errors import ArgumentError, ArgumentTypeError, CaptureFailed, UsageError
from treeplay.graphs import Graph, graph, make_graphed_callables


class Loud(nn.Linear):
    """Counts how often its body runs."""

    runs = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).runs += 1
        return super().forward(x)


@pytest.fixture
def loud(dev: str) -> Loud:
    Loud.runs = 0
    return Loud(4, 4).to(dev)


def refused(module: nn.Module, error: type[Exception], text: str, *args, **kwargs) -> None:
    """Wrapping raises, and nothing ran or changed."""
    with pytest.raises(error, match=text):
        make_graphed_callables(*args, **kwargs)
    assert "forward" not in vars(module)
    assert Loud.runs == 0


def test_G23_a_missing_sample_leaves_the_modules_alone(loud: Loud, dev: str) -> None:
    x = torch.randn(2, 4, device=dev)
    refused(loud, ValueError, "one item for each of 2 callables, found 1", (loud, nn.Linear(4, 4)), ((x,),))


def test_samples_and_callables_of_the_wrong_type(loud: Loud, dev: str) -> None:
    x = torch.randn(2, 4, device=dev)
    refused(loud, ArgumentTypeError, "sample_args: expected a tuple", loud, x)
    refused(loud, ArgumentTypeError, "expected a module or a function, found list", [loud], ((x,),))
    refused(loud, ArgumentTypeError, "expected a tuple with an item for each", (loud,), [(x,)])
    refused(loud, ArgumentTypeError, "sample_kwargs: expected a dict", loud, (x,), sample_kwargs=(1,))
    refused(loud, ArgumentError, r"callables\[1\]: the module of callables\[0\] again", (loud, loud), ((x,), (x,)))


def test_G24_a_leaf_that_is_no_tensor_is_named_by_its_path(loud: Loud, dev: str) -> None:
    x = torch.randn(2, 4, device=dev)
    refused(loud, TypeError, r"\[0\]\['a'\]: expected a tensor, found 3 \(int\)", loud, ({"a": 3},))
    refused(loud, TypeError, r"\[1\]\[0\]\['a'\]\[1\]", (loud, torch.sin), ((x,), ({"a": (x, None)},)))


def test_G25_a_cache_of_casts_is_refused(loud: Loud, dev: str) -> None:
    with torch.autocast(dev, dtype=torch.bfloat16):
        refused(loud, RuntimeError, "cache_enabled=False", loud, (torch.randn(2, 4, device=dev),))


@pytest.mark.parametrize(
    "register",
    [
        lambda module: module.register_forward_hook(lambda *args: None),
        lambda module: module.register_forward_pre_hook(lambda *args: None),
        lambda module: module.register_full_backward_hook(lambda *args: None),
        lambda module: module.register_full_backward_pre_hook(lambda *args: None),
    ],
)
def test_G25_hooks_are_refused_before_and_welcome_after(loud: Loud, dev: str, register) -> None:
    x = torch.randn(2, 4, device=dev)
    handle = register(loud)
    refused(loud, UsageError, "hooks", loud, (x,))
    handle.remove()
    make_graphed_callables(loud, (x,))
    fired = []
    loud.register_forward_hook(lambda *args: fired.append(1))
    for count in (1, 2):
        loud(torch.randn(2, 4, device=dev))
        assert len(fired) == count


def test_G25_a_buffer_that_requires_a_gradient_is_refused(loud: Loud, dev: str) -> None:
    loud.register_buffer("scale", torch.ones(4, device=dev, requires_grad=True))
    refused(loud, UsageError, "scale", loud, (torch.randn(2, 4, device=dev),))


def test_G25_autocast_without_a_cache_is_recorded(dev: str) -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(dev)
    twin, x = copy.deepcopy(module), torch.randn(3, 4, device=dev)
    with torch.autocast(dev, dtype=torch.bfloat16, cache_enabled=False):
        make_graphed_callables(module, (x,))
        found, expected = module(x), twin(x)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(module[0].weight.grad, twin[0].weight.grad)
    assert module(x).dtype is torch.bfloat16  # what was recorded goes on


def test_autocast_that_was_not_recorded_is_a_mismatch(loud: Loud, dev: str) -> None:
    x = torch.randn(2, 4, device=dev)
    make_graphed_callables(loud, (x,))
    with torch.autocast(dev, dtype=torch.bfloat16), pytest.raises(UsageError, match="under autocast"):
        loud(x)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_warmup_iters": -1}, ValueError, "num_warmup_iters: expected at least 0, found -1"),
        ({"num_warmup_iters": 1.5}, TypeError, "num_warmup_iters"),
        ({"outputs": "pooled"}, ValueError, "outputs: expected one of 'copy', 'alias', 'guard'"),
        ({"gradients": "fast"}, ValueError, "gradients"),
        ({"on_mismatch": "ignore"}, ValueError, "on_mismatch"),
        ({"pool": 3}, TypeError, "pool"),
    ],
)
def test_options_that_do_not_exist(loud: Loud, dev: str, options, error, text: str) -> None:
    refused(loud, error, text, loud, (torch.randn(2, 4, device=dev),), **options)


def test_G31_what_is_not_used_is_named(loud: Loud, dev: str) -> None:
    loud.register_parameter("spare", nn.Parameter(torch.ones(2, device=dev)))
    for runs in (0, 2):
        with pytest.raises(UsageError, match="does not use spare"):
            make_graphed_callables(loud, (torch.randn(2, 4, device=dev),), num_warmup_iters=runs)
        assert "forward" not in vars(loud)
        assert loud(torch.randn(2, 4, device=dev)).requires_grad
    x = torch.randn(3, device=dev, requires_grad=True)
    with pytest.raises(UsageError, match=r"does not use \$\[1\]"):
        make_graphed_callables(lambda a, b: a * 2, (x, x))


def test_G13_a_body_that_cannot_be_recorded_leaves_everything_usable(loud: Loud, dev: str) -> None:
    class Reads(Loud):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * x.sum().item()

    module, x = Reads(4, 4).to(dev), torch.randn(2, 4, device=dev)
    with pytest.raises(CaptureFailed, match="item"):
        make_graphed_callables((loud, module), ((x,), (torch.randn(2, 4, device=dev),)))
    assert "forward" not in vars(loud)
    assert "forward" not in vars(module)
    make_graphed_callables(loud, (x,))(x)


def test_an_error_of_the_body_comes_through(dev: str) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("k")

    with pytest.raises(KeyError):
        make_graphed_callables(fails, (torch.ones(2, device=dev),))


def test_state_that_forward_replaces_is_refused_and_put_back(dev: str) -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps = self.steps + 1
            return x * self.steps

    module = Steps().to(dev)
    steps = module.steps
    with pytest.raises(UsageError, match="replaced: steps"):
        make_graphed_callables(module, (torch.ones(3, device=dev),))
    assert module.steps is steps
    assert steps.item() == 0


def test_history_from_before_the_call_is_refused(dev: str) -> None:
    weight = torch.randn(3, device=dev, requires_grad=True)
    scaled = weight * 2
    with pytest.raises(UsageError, match="history of its own"):
        make_graphed_callables(lambda x: x * scaled, (torch.ones(3, device=dev),))


def test_outputs_on_another_device_are_refused() -> None:
    with pytest.raises(UsageError, match="output 1 is on meta"):
        make_graphed_callables(lambda x: (x, torch.ones(2, device="meta")), (torch.ones(3),), num_warmup_iters=1)


def test_devices_do_not_mix() -> None:
    module = nn.Linear(3, 3, device="meta")
    with pytest.raises(UsageError, match="of one device, found a sample of Linear on cpu, weight of Linear on meta"):
        make_graphed_callables(module, (torch.ones(1, 3),))


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda x: x[:1], r"\$\[0\]: shape \(1, 3\), recorded with \(4, 3\)"),
        (lambda x: x.double(), r"\$\[0\]: dtype torch.float64, recorded with torch.float32"),
        (lambda x: x.clone().requires_grad_(), r"\$\[0\]: requires_grad True, recorded with False"),
        (lambda x: x.to("meta"), r"\$\[0\]: device meta, recorded with c"),
        (lambda x: 3, r"\$\[0\]: a value of type int, recorded with a tensor float32\[4, 3\]"),
        (lambda x: [x], r"\$\[0\]: a value of type list, recorded with a tensor"),
        (lambda x: None, r"\$\[0\]: None, recorded with a tensor"),
    ],
)
def test_Gplus2_an_argument_that_does_not_fit_is_named(dev: str, spoil, text: str) -> None:
    x = torch.randn(4, 3, device=dev)
    graphed = make_graphed_callables(lambda a: a * 2, (x,))
    kept = x.clone()
    with pytest.raises(UsageError, match=text):
        graphed(spoil(torch.ones(4, 3, device=dev)))
    assert_same(x, kept)  # nothing was copied
    assert graphed.statistics().replays == 0


def test_Gplus2_every_wrong_leaf_is_named(dev: str) -> None:
    x = torch.randn(2, device=dev)
    graphed = make_graphed_callables(lambda tree: tree["a"] + tree["b"][0], ({"a": x, "b": [x]},))
    with pytest.raises(UsageError) as caught:
        graphed({"a": x[:1], "b": [x.int()]})
    assert str(caught.value).splitlines() == [
        "$[0]['a']: shape (1,), recorded with (2,)",
        "$[0]['b'][0]: dtype torch.int32, recorded with torch.float32",
    ]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((), r"\$: 0 positional arguments, recorded with 1"),
        (({"a": 0},), r"\$\[0\]: a dict without \['b'\], recorded with the keys \['a', 'b'\]"),
        (({"a": 0, "b": [0], "c": 0},), r"\$\[0\]: a dict with \['c'\]"),
        (({"a": 0, "b": (0,)},), r"\$\[0\]\['b'\]: a value of type tuple, recorded with a list"),
        (({"a": 0, "b": [0, 0]},), r"\$\[0\]\['b'\]: 2 items, recorded with 1"),
    ],
)
def test_Gplus2_another_structure_is_named(args, text: str) -> None:
    x = torch.randn(2)
    graphed = make_graphed_callables(lambda tree: tree["a"] + tree["b"][0], ({"a": x, "b": [x]},))
    with pytest.raises(UsageError, match=text):
        graphed(*args)


def test_Gplus2_on_mismatch_eager_runs_the_original(dev: str) -> None:
    module = nn.Linear(3, 2).to(dev)
    twin = copy.deepcopy(module)
    make_graphed_callables(module, (torch.randn(4, 3, device=dev),), on_mismatch="eager")
    for rows in (4, 1, 7):
        x = torch.randn(rows, 3, device=dev)
        torch.testing.assert_close(module(x), twin(x))
    statistics = module.forward.statistics()
    assert (statistics.replays, statistics.eager_calls) == (1, 2)
    assert statistics.eager_because[0] == ("$[0]: shape (1, 3), recorded with (4, 3)", 1)


def test_Gplus2_requires_grad_does_not_matter_without_gradients(dev: str) -> None:
    x = torch.randn(3, device=dev, requires_grad=True)
    graphed = make_graphed_callables(lambda a: a * 2, (x,))
    y = torch.randn(3, device=dev)
    with torch.no_grad():
        assert torch.equal(graphed(y), y * 2)


def test_G36_load_state_dict_is_what_the_next_call_uses(dev: str) -> None:
    module, other = nn.Linear(3, 3).to(dev), nn.Linear(3, 3).to(dev)
    make_graphed_callables(module, (torch.randn(2, 3, device=dev),))
    module.load_state_dict(other.state_dict())
    x = torch.randn(2, 3, device=dev)
    torch.testing.assert_close(module(x), other(x))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: m.register_parameter("z", nn.Parameter(torch.ones(1))), "added: z"),
        (lambda m: m.register_buffer("z", torch.ones(1)), "added: z"),
        (lambda m: delattr(m[0], "bias"), "removed: 0.bias"),
        (lambda m: m.append(nn.ReLU()), "added: 1"),
        (lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach().clone())), "replaced: 0.weight"),
        (lambda m: setattr(m[0].weight, "data", m[0].weight.data.clone()), "at another address: 0.weight"),
        (lambda m: m[0].weight.requires_grad_(False), "another requires_grad: 0.weight"),
        (lambda m: m.double(), "at another address: 0.bias, 0.weight"),
    ],
)
def test_G36_a_module_that_was_changed_is_not_replayed(dev: str, change, text: str) -> None:
    module = nn.Sequential(nn.Linear(3, 3)).to(dev)
    x = torch.randn(2, 3, device=dev)
    make_graphed_callables(module, (x,))
    change(module)
    with pytest.raises(UsageError, match=text):
        module(x)


def test_G36_a_changed_module_can_be_wrapped_again(dev: str) -> None:
    module = nn.Linear(3, 3).to(dev)
    make_graphed_callables(module, (torch.randn(2, 3, device=dev),))
    module.double().bias = None
    x = torch.randn(2, 3, device=dev).double()
    make_graphed_callables(module, (x,))
    torch.testing.assert_close(module(x), x @ module.weight.t())


def test_G36_a_changed_module_runs_eagerly_if_asked_to(dev: str) -> None:
    module, other = nn.Linear(3, 3).to(dev), nn.Linear(3, 3).to(dev)
    x = torch.randn(2, 3, device=dev)
    make_graphed_callables(module, (x,), on_mismatch="eager")
    module.weight.data, module.bias.data = other.weight.data.clone(), other.bias.data.clone()
    torch.testing.assert_close(module(x), other(x))


def test_G36_a_module_wrapped_without_gradients_gives_none(dev: str) -> None:
    module = nn.Linear(3, 3).to(dev)
    x = torch.randn(2, 3, device=dev)
    with torch.no_grad():
        make_graphed_callables(module, (x,))
        module(x)
    with pytest.raises(UsageError, match="wrapped without"):
        module(x)


def test_wrapping_inside_of_a_capture_is_refused_and_leaves_the_capture_alone(loud: Loud, dev: str) -> None:
    x, recording = torch.ones(2, 4, device=dev), Graph(device=dev)
    with graph(recording):
        refused(loud, UsageError, "inside of a capture", loud, (x,))
        y = x * 2 - 1
    x.fill_(3)
    recording.replay()
    assert float(y.sum()) == 40


def test_an_argument_that_is_written_shares_no_memory_with_another(dev: str) -> None:
    def bump(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x - y * 2

    graphed = make_graphed_callables(bump, (torch.ones(3, device=dev), torch.ones(3, device=dev)))
    memory = torch.arange(6.0, device=dev)
    for x, y in ((memory[:3], memory[:3]), (memory[:3], memory[2:5])):
        with pytest.raises(UsageError, match=r"\$\[0\] and \$\[1\]: they share memory"):
            graphed(x, y)
    assert memory.tolist() == [0, 1, 2, 3, 4, 5]
    assert graphed(memory[:3], memory[3:]).tolist() == [-5, -6, -7]


class Counting(nn.Module):
    """Counts its calls in a buffer, and has one that it only reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones(3))
        self.register_buffer("scale", torch.full((3,), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * self.scale - self.count


class Weighted(Counting):
    """Its history has a tensor that is no parameter."""

    def to(self, dev: Any) -> Any:
        self.hidden = [torch.full((3,), 2.0, device=dev, requires_grad=True)]
        return super().to(dev)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.hidden[0]


@pytest.mark.parametrize("kind", [Counting, Weighted])
def test_an_argument_is_no_buffer_that_is_written(kind: Any, dev: str) -> None:
    module, twin = kind().to(dev), kind().to(dev)
    make_graphed_callables(module, (torch.ones(3, device=dev),))
    assert_same(module(module.scale), twin(twin.scale))
    with pytest.raises(UsageError, match=r"\$\[0\]: it shares memory with the buffer count"):
        module(module.count)
    assert_same(module.count, twin.count)


def test_without_a_run_before_an_argument_is_no_buffer(dev: str) -> None:
    module, twin = Counting().to(dev), Counting().to(dev)
    x = torch.ones(3, device=dev)
    make_graphed_callables(module, (x,), num_warmup_iters=0)
    assert_same(module(x), twin(x))
    with pytest.raises(UsageError, match=r"with the buffer count, which may be written: no run has told"):
        module(module.count)


def test_a_buffer_that_is_not_a_number_counts_as_written_only_if_it_is(dev: str) -> None:
    module, twin = Counting().to(dev), Counting().to(dev)
    for each in (module, twin):
        each.scale[0] = torch.nan
    make_graphed_callables(module, (torch.ones(3, device=dev),))
    assert torch.equal(module(module.scale)[1:], twin(twin.scale)[1:])


def test_an_argument_that_is_a_buffer_which_is_written_goes_to_the_original_if_asked_to(dev: str) -> None:
    module, twin = Counting().to(dev), Counting().to(dev)
    make_graphed_callables(module, (torch.ones(3, device=dev),), on_mismatch="eager")
    for _ in range(2):
        assert_same(module(module.count), twin(twin.count))
    assert_same(module.count, twin.count)
