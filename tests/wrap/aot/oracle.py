"""The oracle: a function and its wrapped form, run on two equal sets of arguments, must agree in all that a user can see."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from treeplay.errors import Refusal
from treeplay.wrap.aot import CallPlan, Compilers, wrap_function


def boxed(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """The graph as it is, taking one list and emptying it."""

    def run(args: list[Any]) -> Any:
        values = list(args)
        args.clear()
        return module(*values)

    return run


def compilers(**changes: Any) -> Compilers:
    """Compilers that run graphs as they are."""
    return Compilers(**{"forward": boxed, "backward": boxed, "inference": boxed, "partition": cut} | changes)


def cut(graph: Any, inputs: Any, **options: Any) -> Any:
    options.pop("static_lifetime_input_indices", None)
    return default_partition(graph, inputs, **options)


def min_cut(graph: Any, inputs: Any, **options: Any) -> Any:
    return min_cut_rematerialization_partition(graph, inputs, **options)


Make = Callable[[], list[Any]]


def wrapped(function: Callable[..., Any], make: Make, *, checked: bool = False, **changes: Any) -> Any:
    """The wrapped function. Its plan, as that of every test, is plain data (W6), and each refusal helps its reader (W+13)."""
    try:
        call = wrap_function(function, make(), compilers(**changes), is_checked=checked)
    except Refusal as refusal:
        helpful(refusal)
        raise
    plain_data(call.plan)
    return call


def helpful(refusal: Refusal) -> None:
    """Fails unless a refusal names a line of the user's and a cure, and blames nobody else."""
    text = str(refusal)
    assert refusal.where is not None and refusal.where.file.startswith(_TESTS), f"no line of the user's: {text}"
    assert refusal.reason.op and refusal.reason.why and refusal.reason.advice, text
    assert "guard bug" not in text and "file an" not in text and "report" not in text, text


_TESTS = str(Path(__file__).parent)


def plain_data(plan: CallPlan) -> None:
    """Fails unless a plan can be pickled and hashed, and leads to nothing of torch that belongs to one process."""
    seen: set[int] = set()
    to_see: list[Any] = [plan]
    while to_see:
        value = to_see.pop()
        if id(value) in seen or isinstance(value, type | ModuleType | FunctionType):
            continue
        seen.add(id(value))
        assert not isinstance(value, _OF_ONE_PROCESS), f"{type(value)} in the plan {plan}"
        to_see += gc.get_referents(value)
    if "<locals>" not in repr(plan):  # classes that a test makes inside of itself cannot be found again
        again = pickle.loads(pickle.dumps(plan))
        assert again == plan and hash(again) == hash(plan)


_OF_ONE_PROCESS = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.nn.Module, torch.fx.Node)


def leaves(args: Sequence[Any]) -> list[torch.Tensor]:
    """All leaves that need a gradient and that the arguments come from, in a fixed order."""
    found: dict[int, torch.Tensor] = {}

    def walk(node: Any) -> None:
        if node is None:
            return
        if hasattr(node, "variable"):
            found.setdefault(id(node.variable), node.variable)
        for following, _ in node.next_functions:
            walk(following)

    for arg in args:
        if isinstance(arg, torch.Tensor) and arg.requires_grad:
            if arg.grad_fn is None:
                found.setdefault(id(arg), arg)
            walk(arg.grad_fn)
    return list(found.values())


def facts_of(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "size": tuple(tensor.shape),
        "stride": tensor.stride(),
        "dtype": tensor.dtype,
        "requires_grad": tensor.requires_grad,
        "leaf": tensor.is_leaf,
        "type": type(tensor),
    }


def same(path: str, eager: Any, ours: Any) -> None:
    assert type(eager) is type(ours), f"{path}: {type(eager)} is not {type(ours)}"
    if not isinstance(eager, torch.Tensor):
        assert eager == ours, f"{path}: {eager} is not {ours}"
        return
    left, right = facts_of(eager), facts_of(ours)
    assert left == right, f"{path}: {left} is not {right}"
    if is_traceable_wrapper_subclass(eager):
        (names, notes), (our_names, our_notes) = eager.__tensor_flatten__(), ours.__tensor_flatten__()
        assert (names, notes) == (our_names, our_notes), path
        for name in names:
            same(f"{path}.{name}", getattr(eager, name), getattr(ours, name))
        return
    torch.testing.assert_close(ours, eager, msg=lambda text: f"{path}: {text}", equal_nan=True)


def same_memory(eager: list[Any], ours: list[Any], eager_args: list[Any], our_args: list[Any]) -> None:
    """The memory of each argument holds the same, beside the argument too; what lies in it begins at the same place."""
    for k, (left, right) in enumerate(zip(eager_args, our_args, strict=True)):
        if (
            not isinstance(left, torch.Tensor)
            or is_traceable_wrapper_subclass(left)
            or left.layout is not torch.strided
        ):
            continue
        for one, other in zip(eager, ours, strict=True):
            if isinstance(one, torch.Tensor) and torch._C._is_alias_of(one, left):
                places = one.storage_offset(), other.storage_offset()
                assert places[0] == places[1], f"something in argument {k} begins at {places[1]}, expected {places[0]}"
        same(f"the memory of argument {k}", memory_of(left), memory_of(right))


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """All that lies in a tensor's storage, as numbers of its dtype."""
    storage = tensor.untyped_storage()
    return tensor.new_empty(0).set_(storage, 0, (storage.nbytes() // tensor.element_size(),))


def pattern(tensors: Sequence[Any], *, by: Callable[[Any, Any], bool]) -> list[tuple[int, int]]:
    """Pairs of positions for which `by` holds."""
    at = [k for k, item in enumerate(tensors) if isinstance(item, torch.Tensor)]
    return [(j, k) for j in at for k in at if j < k and by(tensors[j], tensors[k])]


def run(function: Callable[..., Any], args: list[Any]) -> tuple[list[Any], list[Any], list[bool]]:
    before = [arg._version if isinstance(arg, torch.Tensor) else 0 for arg in args]
    results = list(function(*args))
    moved = [arg._version != was for arg, was in zip(args, before, strict=True) if isinstance(arg, torch.Tensor)]
    return results, args, moved


def compare(function: Callable[..., Any], call: Any, make: Make, *, backward: bool = True) -> None:
    """Run both on fresh arguments and compare results, arguments, sharing and gradients."""
    eager_args, our_args = make(), make()
    eager_leaves, our_leaves = leaves(eager_args), leaves(our_args)
    eager, eager_args, eager_moved = run(function, eager_args)
    box: list[Any] = []
    ours, our_args, our_moved = run(lambda *args: call(box.extend(args) or box), our_args)
    assert box == [], "the list was not emptied"
    assert len(eager) == len(ours)
    for k, (left, right) in enumerate(zip(eager, ours, strict=True)):
        same(f"result {k}", left, right)
    for k, (left, right) in enumerate(zip(eager_args, our_args, strict=True)):
        same(f"argument {k}", left, right)
    assert [new or not old for old, new in zip(eager_moved, our_moved, strict=True)] == [True] * len(eager_moved)
    same_memory(eager + eager_args, ours + our_args, eager_args, our_args)
    everything, our_everything = eager + eager_args, ours + our_args
    for by in (lambda a, b: a is b, torch._C._is_alias_of):
        assert pattern(everything, by=by) == pattern(our_everything, by=by)
    if backward:
        compare_gradients(eager + eager_args, ours + our_args, eager_leaves, our_leaves)


def compare_gradients(eager: Any, ours: Any, eager_leaves: Any, our_leaves: Any) -> None:
    run_backward(eager)
    run_backward(ours)
    assert len(eager_leaves) == len(our_leaves)
    for k, (left, right) in enumerate(zip(eager_leaves, our_leaves, strict=True)):
        same(f"gradient {k}", left.grad, right.grad)


def run_backward(results: Sequence[Any]) -> None:
    """The gradients of a sum in which each result has a weight of its own."""
    needy = [item for item in results if isinstance(item, torch.Tensor) and item.requires_grad]
    if needy:
        sum((item * (k + 2)).abs().sum() for k, item in enumerate(needy)).backward()


def twin(function: Callable[..., Any], make: Make, *, backward: bool = True, **changes: Any) -> Any:
    """Wrap `function` for `make()`, run it and eager on equal arguments, twice, and compare. Gives the wrapped one."""
    call = wrapped(function, make, **changes)
    for _ in range(2):
        compare(function, call, make, backward=backward)
    return call


DEVICE = "cpu"
"""Where tests make their tensors."""


def device() -> str:
    """Where this test makes its tensors."""
    return DEVICE


def alike(number: float, *size: int, grad: bool = False) -> torch.Tensor:
    """One number everywhere."""
    return torch.full(size, float(number), device=DEVICE, requires_grad=grad)


def numbers(*size: int, grad: bool = False) -> torch.Tensor:
    """Distinct floats, none of them zero."""
    count = int(torch.Size(size).numel())
    return (torch.arange(1.0, count + 1, device=DEVICE).reshape(size) / 4 - 0.7).requires_grad_(grad)


def grown(*size: int) -> torch.Tensor:
    """A tensor that needs a gradient and is no leaf."""
    return numbers(*size, grad=True) * 1
