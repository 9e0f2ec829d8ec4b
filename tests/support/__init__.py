"""What several tests need: the jit under test, eager twins, and bit-for-bit comparison."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import treeplay
from treeplay.trace.call import Call
from treeplay.values.flatten import flatten

Step = Callable[..., Any]
TRACES_STRIDES = torch.__version__ >= (2, 13)
"""Before, torch traces a backward for gradients in the nearest memory format, not in the strides of the results."""


def jit(program: Any, **options: Any) -> Any:
    """`treeplay.jit` as most tests want it: operators as they are, and a refusal is an error."""
    return treeplay.jit(program, **{"lower": "aten", "on_refusal": "raise", **options})


def call_of(*args: Any, **kwargs: Any) -> Call:
    """A call with these arguments, as a program is given it."""
    leaves, structure = flatten((args, kwargs))
    return Call(args, kwargs, leaves, structure)


def training(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """A whole training step over mean squared errors."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def assert_same(found: Any, expected: Any, what: str = "result") -> None:
    """Two nested results are equal bit for bit (a NaN equals a NaN), with equal shapes and dtypes."""
    left, right = tree_leaves(found), tree_leaves(expected)
    assert len(left) == len(right), f"{what}: {len(left)} leaves, expected {len(right)}"
    for index, (a, b) in enumerate(zip(left, right, strict=True)):
        if isinstance(b, torch.Tensor):
            same = a.shape == b.shape and a.dtype == b.dtype and _are_equal(a.detach(), b.detach())
            assert same, f"{what}, leaf {index}:\n{a}\nexpected\n{b}"
        else:
            assert type(a) is type(b) and a == b, f"{what}, leaf {index}: {a!r}, expected {b!r}"


def assert_alike(found: Any, expected: Any, what: str = "result") -> None:
    """Two nested results are equal: bit for bit on the CPU, nearly on a GPU, whose libraries choose another kernel for tensors
    that lie otherwise."""
    left, right = tree_leaves(found), tree_leaves(expected)
    if not any(isinstance(leaf, torch.Tensor) and leaf.is_cuda and leaf.is_floating_point() for leaf in right):
        assert_same(found, expected, what)
        return
    assert len(left) == len(right), f"{what}: {len(left)} leaves, expected {len(right)}"
    for index, (a, b) in enumerate(zip(left, right, strict=True)):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=lambda text: f"{what}, leaf {index}: {text}")
        else:
            assert_same(a, b, what)


def _are_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if _bytes(a) == _bytes(b):
        return True
    # NaNs may differ in their payload; zeros of different sign may not pass as equal.
    same = (a == b) & (a.signbit() == b.signbit()) if not a.is_complex() else a == b
    return bool((same | (a.isnan() & b.isnan())).all())


def _bytes(tensor: torch.Tensor) -> bytes:
    packed = tensor.flatten().cpu().clone().as_strided((tensor.numel(),), (1,))
    return bytes(packed.view(torch.uint8).numpy()) if tensor.numel() else b""


def state_of(*owners: Any) -> Iterator[tuple[str, Any]]:
    """Every tensor and number that modules, optimizers and tensors carry, by name; gradients included."""
    for position, owner in enumerate(owners):
        if isinstance(owner, torch.optim.Optimizer):
            groups = [{k: v for k, v in group.items() if k != "params"} for group in owner.param_groups]
            yield f"{position}.groups", groups
            for number, param in enumerate(p for group in owner.param_groups for p in group["params"]):
                yield f"{position}.state[{number}]", dict(owner.state.get(param, {}))
        elif isinstance(owner, torch.nn.Module):
            for name, tensor in [*owner.named_parameters(), *owner.named_buffers()]:
                yield f"{position}.{name}", tensor
                yield f"{position}.{name}.grad", tensor.grad
        elif isinstance(owner, torch.amp.GradScaler):
            yield f"{position}.scaler", owner.state_dict()
        elif isinstance(owner, torch.Tensor):
            yield f"{position}", owner
            yield f"{position}.grad", owner.grad if owner.is_leaf else None


def assert_same_state(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    """Two sets of owners carry the same state, bit for bit."""
    for (name, a), (other, b) in zip(state_of(*found), state_of(*expected), strict=True):
        assert name == other
        assert_same(a, b, name)


def guided_by(model: nn.Module) -> Step:
    """A step of a sampler that goes along the gradient of a model, also in inference mode."""

    def guided(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            leaf = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(model(leaf).tanh().sum(), leaf)
        return x - 0.1 * gradient

    return guided


class Twins:
    """A jitted step over some owners of state, and the same step over a deep copy of them, eager.

    `make(*owners) -> step`. Both sides start each call from the same random state.
    """

    def __init__(self, make: Callable[..., Step], *owners: Any, **options: Any) -> None:
        self.owners = owners
        self.eager_owners = copy.deepcopy(owners)
        self.step = jit(make(*self.owners), **options)
        self.eager = make(*self.eager_owners)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """One call on each side; results and all state must agree."""
        eager_args, eager_kwargs = copy.deepcopy((args, kwargs))
        state = torch.get_rng_state()
        expected = self.eager(*eager_args, **eager_kwargs)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        found = self.step(*args, **kwargs)
        assert torch.equal(torch.get_rng_state(), after), "the random sequence differs"
        assert_same(found, expected)
        assert_same([args, kwargs], [eager_args, eager_kwargs], "arguments")
        assert_same_state(self.owners, self.eager_owners)
        return found

    def calls(self, count: int, make_args: Callable[[], tuple[Any, ...]]) -> None:
        """`count` calls with new arguments each."""
        for _ in range(count):
            self.call(*make_args())

    @property
    def statistics(self) -> Any:
        """Of the jitted side."""
        return self.step.statistics()


def the_recording(jitted: Any) -> Any:
    """The facts of the one recording that a jitted program has."""
    (key,) = jitted.statistics().keys
    (recording,) = key.recordings
    return recording
