"""Autograd's graphs: versions of tensors, hooks on what is saved, whether a graph is used up, custom functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import torch

from treeplay.errors import UsageError
from treeplay.torch_seam.patched import Shared, all_wanted

saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks
may_put_hooks_on: Callable[[], bool] = torch._C._autograd._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]
take_hooks_off: Callable[[], None] = torch._C._autograd._pop_saved_tensors_default_hooks

_KEEPING = ("torch.autograd.graph", "torch.utils.checkpoint")


def all_saving_hooks() -> list[Any]:
    """The hooks on saved tensors that are on, the innermost first, which are those that torch calls. Each is taken off and put
    back: torch shows the top of its stack only."""
    taken: list[Any] = []
    try:
        while (hooks := saving_hooks(False)) is not None:
            taken.append(hooks)
            take_hooks_off()
    finally:
        for pack, unpack in reversed(taken):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
    return taken


def changes_what_is_saved() -> bool:
    """Whether hooks on all saved tensors are active that may give the backward something else than was saved. Torch's own,
    which offload to the host or compute again, do not."""
    hooks = saving_hooks(False)
    return hooks is not None and getattr(hooks[0], "__module__", None) not in _KEEPING


def is_accumulating() -> bool:
    """Whether autograd is about to give a leaf its gradient."""
    node = torch._C._current_autograd_node()
    return node is not None and node.name() == "torch::autograd::AccumulateGrad"


keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
increment_versions: Callable[..., None] = torch._C._increment_version
preserving_version: Any = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]


counter_of_functions: Any = getattr(torch.autograd.function, "AUTOGRAD_FUNCTION_COUNTER", None)
"""Gives each class of custom functions its number."""


_WITHOUT_GRADIENTS = (
    torch._C._autograd.CreationMeta.NO_GRAD_MODE,
    torch._C._autograd.CreationMeta.INFERENCE_MODE,
)


def version_of(tensor: torch.Tensor) -> int:
    """How often autograd was told that `tensor` changed; 0 where that is not kept (inference tensors)."""
    return 0 if tensor.is_inference() else int(tensor._version)


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Put a version counter back."""
    if not tensor.is_inference() and tensor._version != version:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def shares_version(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have one version counter, as a view and a detached tensor have with what they were made of, and as
    `x.data` has not with `x`. Torch does not tell: one is moved for a moment."""
    if one.is_inference() or other.is_inference():
        return False
    before, others = one._version, other._version
    increment_versions([one])
    try:
        return other._version != others
    finally:
        set_version(one, before)


def node_of(tensor: torch.Tensor) -> Any:
    """The last node of a tensor's history, if it has one. Torch answers none for a view made under `no_grad` whose base was
    written since: it raises."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def was_taken_with_gradients(tensor: torch.Tensor) -> bool | None:
    """Whether gradients were on where a view was taken, and all that it was taken of: else nothing with a history may be
    written to it. None for what is no view for autograd and has no history."""
    if node_of(tensor) is not None:
        return True
    if not tensor._is_view() or tensor.is_inference():
        return None
    return torch._C._autograd._get_creation_meta(tensor) not in _WITHOUT_GRADIENTS


def history(nodes: Iterable[Any], known: Iterable[Any] = ()) -> Iterator[Any]:
    """These nodes of autograd's graph and all that they lead to, each once and after what it leads to, but for those that are
    `known` and what is behind them. A leaf's accumulator has it as its `variable`."""
    waiting, seen = [(node, False) for node in nodes], {None, *known}
    while waiting:
        node, is_followed = waiting.pop()
        if is_followed:
            yield node
        elif node not in seen:
            seen.add(node)
            waiting.append((node, True))
            waiting.extend((following, False) for following, _ in node.next_functions)


def is_used_up(node: Any) -> bool:
    """Whether a backward has freed what a graph kept, at an autograd node or at one that it leads to."""
    return any(map(_is_freed, history([node])))


def _is_freed(node: Any) -> bool:
    for name in dir(node):
        if name.startswith("_saved_") or name == "saved_tensors":
            try:
                getattr(node, name)
            # What torch raises where a backward has freed what was saved.
            except RuntimeError:
                return True
    return False


def _with_arguments(original: Any, value: Callable[[], Any]) -> Any:
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        replaced = value()
        if replaced is not None:
            args, kwargs = replaced(args), replaced(kwargs)
        return original.__get__(None, cls)(*args, **kwargs)  # in C from torch 2.14 on

    return classmethod(apply)


autograd_function_arguments = Shared(torch.autograd.Function, "apply", _with_arguments).wanted
"""For a block and in this thread, `autograd.Function.apply` is given what a function makes of its arguments: no mode is asked
for these."""


def _with_wrapped(original: Any, value: Callable[[], Any]) -> Any:
    def wrap(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        replaced = value()
        return original(tensor if replaced is None else replaced(tensor), *args, **kwargs)

    return wrap


_TRANSFORMS = (
    Shared("torch._functorch.vmap", "_add_batch_dim", _with_wrapped),
    Shared("torch._functorch.eager_transforms", "_wrap_for_grad", _with_wrapped),
)


def transformed_arguments(function: Callable[[Any], Any]) -> contextlib.AbstractContextManager[None]:
    """The same for the tensors that function transforms (`vmap`, `grad`) are called with."""
    return all_wanted(_TRANSFORMS, function)


def _noting_mode(original: Any, value: Callable[[], Any]) -> Any:
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        given = value()
        if given is None:
            return original.__get__(None, cls)(*args, **kwargs)
        _, modes, note = given
        modes.append(torch.is_grad_enabled())
        try:
            result = original.__get__(None, cls)(*args, **kwargs)
        finally:
            modes.pop()
        _note_results(result if isinstance(result, tuple) else (result,), note)
        return result

    return classmethod(apply)


def _note_results(results: tuple[Any, ...], note: Callable[[Any], None]) -> None:
    """Have the node of a custom function know its results: it is told nothing of those that nobody can differentiate."""
    tensors = [result if isinstance(result, torch.Tensor) else None for result in results]
    nodes: Iterable[Any] = {tensor.grad_fn for tensor in tensors if tensor is not None} - {None}
    for node in nodes:
        note(node)
        if is_custom_node(node):
            node.metadata[_RESULTS] = [t if t is None else (t.shape, t.dtype, t.device) for t in tensors]


_RESULTS = "treeplay: results"


def _checking(original: Any, value: Callable[[], Any]) -> Any:
    def mark_dirty(ctx: Any, *tensors: Any) -> Any:
        given = value()
        if given is not None:
            check, modes, _ = given
            for tensor in tensors if modes and modes[-1] and any(ctx.needs_input_grad) else ():
                check(tensor)
        return original(ctx, *tensors)

    return mark_dirty


_HISTORIES = (
    Shared(torch.autograd.Function, "apply", _noting_mode),
    Shared(torch.autograd.function.FunctionCtx, "mark_dirty", _checking),
)


def histories_given(
    check: Callable[[Any], None], note: Callable[[Any], None]
) -> contextlib.AbstractContextManager[None]:
    """For a block and in this thread, `check(tensor)` is called before a custom function marks a tensor as changed in place
    and so gives it a history, and `note(node)` once a call has made its node. No operator and no mode sees that. What custom
    functions give is noted for `call_backward`."""
    modes: list[bool] = []  # of those who called `apply`: inside of a forward gradients are off
    return all_wanted(_HISTORIES, (check, modes, note))


def _within_mode(original: Any, value: Callable[[], Any]) -> Any:
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        mode = value()
        if mode is None:
            return original(*args, **kwargs)
        # As the mode does in Python, which would count as code of the program.
        torch._C._push_on_torch_function_stack(mode)
        try:
            return original(*args, **kwargs)
        finally:
            torch._C._pop_torch_function_stack()

    return run_backward


mode_in_backward = Shared(torch.autograd, "_engine_run_backward", _within_mode).wanted
"""For a block and in this thread, custom functions and hooks that a backward calls run within a mode of functions. Whoever is
told of the call of backward by that mode has left it by then."""


def hooks_on_nodes(code: Container[int]) -> bool:
    """Whether, by the `id` of the code that ran, a hook was put on a node of a graph: torch's C++ calls this to keep one."""
    return id(torch.autograd.Function._register_hook.__code__) in code


def is_custom_node(node: Any) -> bool:
    """Whether an autograd node is a custom function's, whose backward is Python and not torch's own."""
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return False
    module = node._forward_cls.__module__  # type: ignore[attr-defined]
    return not module.startswith("torch.") or module == "torch._library.autograd"  # of `register_autograd`


def call_backward(node: Any) -> None:
    """Call the backward of a custom function alone, with gradients of zeros. It was called while `histories_given` lasted."""
    results = node.metadata[_RESULTS]
    node.apply(*(None if of is None else torch.zeros(of[0], dtype=of[1], device=of[2]) for of in results))


class _FirstOrderOnly(torch.autograd.Function):
    """What a call gives, as something that depends on other tensors and that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, call: Callable[[], Any], message: str, *origins: torch.Tensor) -> Any:
        ctx.message = message
        return call()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise UsageError(ctx.message)


def first_order_only(call: Callable[[], Any], message: str, origins: Iterable[torch.Tensor]) -> Any:
    """What `call` gives: gradients that must not pass for constants. Every way back from them to `origins`, or to anything,
    ends in a `UsageError` with this message."""
    # One origin more, so that they have a history also where none of the others needs a gradient.
    anchor = torch.empty(0, requires_grad=True)
    return _FirstOrderOnly.apply(call, message, anchor, *origins)  # type: ignore[no-untyped-call]


def in_callers_context(function: Callable[..., Any], *inputs: Any) -> Any:
    """Call `function` with the context variables of whoever called backward, if this thread is another one."""
    if torch._C._is_key_in_tls("context"):
        context = torch._C._get_obj_in_tls("context")
        if context is not None:
            return context.copy().run(function, *inputs)
    return function(*inputs)
