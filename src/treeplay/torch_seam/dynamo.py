"""Dynamo: whether it watches, how it looks away, its native guards, and the structured log of compilations."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, cast

import torch
from torch._logging._internal import trace_structured as trace_structured
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from treeplay.torch_seam.patched import Shared, Wanted, all_wanted

_guards: Any = torch._C._dynamo.guards

version_of_table: Callable[[dict[Any, Any]], int] = _guards.dict_version
"""A number that changes whenever a dictionary gets, loses or replaces an entry, and not when the very same is assigned."""


def counts_attributes() -> bool:
    """Whether that number also changes when an attribute of an object is assigned, as guards need it. From Python 3.13 on, an
    object's attributes are not kept in its dictionary."""

    class Example:
        pass

    example: Any = Example()
    example.attribute = 1
    before = version_of_table(vars(example))
    example.attribute = 2
    return version_of_table(vars(example)) != before


# Compared as text, which is right from 2.11 on.
GUARDS_FROZEN_PARAMETERS = str(torch.__version__) >= "2.13"
"""Whether Dynamo compiles anew when a parameter that needed no gradient needs one. Older ones skipped what they compare of a
parameter as long as the dictionaries on the way to it stayed the same."""


DATA_OF: Any = getattr(torch._C._autograd, "_get_data_attr", None)
"""What stands for `x.data` in a graph of Dynamo's; None where a torch has no such function."""


def tensor_check(
    tensors: Sequence[torch.Tensor], any_size: Mapping[int, frozenset[int]] = MappingProxyType({})
) -> Callable[..., bool]:
    """One native call that tells whether tensors have these types, dtypes, devices, shapes, strides and grad flags.

    `any_size`: dimensions whose sizes it does not compare, by the place of the tensor, of which it compares no stride either.

    It also compares the thread's dispatch state (inference mode, autocast) with the one at this moment. Importing it
    takes no Dynamo: the class lives in torch's extension module.
    """
    guards: Any = _guards.TensorGuards
    with torch._C.DisableTorchFunctionSubclass():
        check: Callable[..., bool] = guards(
            *tensors,
            dynamic_dims_sizes=[
                [None if k in any_size.get(at, ()) else size for k, size in enumerate(tensor.size())]
                for at, tensor in enumerate(tensors)
            ],
            dynamic_dims_strides=[
                [None] * tensor.dim() if at in any_size else list(tensor.stride()) for at, tensor in enumerate(tensors)
            ],
        ).check
    return check


Kinds = Sequence[tuple[Any, type]]

Codes = Sequence[tuple[FunctionType, CodeType]]


def native_check(tables: Sequence[dict[Any, Any]], kinds: Kinds, codes: Codes) -> partial[bool] | None:
    """One native call that tells whether these dictionaries have the versions of this moment, these objects these classes,
    and these functions this code: some 10 to 20 ns each. None where nothing has imported Dynamo yet, whose import takes
    seconds and without which torch makes no such check, and for a torch that has not all of it. Its one argument is the tuple
    of all these objects.
    """
    enumeration = getattr(sys.modules.get("torch._dynamo.guards"), "GuardManagerType", None)
    if enumeration is None:
        return None
    objects = (*tables, *(value for value, _ in kinds), *(function for function, _ in codes))
    try:
        root = _root(enumeration.GUARD_MANAGER, tables, [id(cls) for _, cls in kinds], [id(code) for _, code in codes])
    except (TypeError, AttributeError):
        return None
    return partial(root.check, objects)


def _root(kind: Any, tables: Sequence[dict[Any, Any]], classes: list[int], codes: list[int]) -> Any:
    root = _guards.RootGuardManager()

    def at(index: int) -> Any:
        return root.tuple_getitem_manager(key=index, source=f"[{index}]", example_value=None, guard_manager_enum=kind)

    for index, table in enumerate(tables):
        _add(at(index).add_dict_version_guard, table)
    for index, cls in enumerate(classes, len(tables)):
        _add(at(index).add_type_match_guard, cls)
    for index, code in enumerate(codes, len(tables) + len(classes)):
        of_code = at(index).code_manager(source=f"[{index}].__code__", example_value=None, guard_manager_enum=kind)
        _add(of_code.add_id_match_guard, code)
    return root


def _add(add: Callable[..., None], value: Any) -> None:
    try:
        add(value, [""], None)
    except TypeError:  # an older torch, which takes no stack of the user's
        add(value, [""])


watching: Callable[[], Any] = torch._C._dynamo.eval_frame.get_eval_frame_callback
"""What of `torch.compile` looks at each Python function that is called from here; None for nothing."""


class LeavesCompiled(TorchDispatchMode):
    """A dispatch mode inside of which compiled functions stay compiled. Inside of others Dynamo runs them as they are."""

    @classmethod
    def is_infra_mode(cls) -> bool:
        """What torch asks a mode for this."""
        return True


def without_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with `torch.compile` looking away while it runs."""
    from torch._dynamo import disable  # imported already where it is watching

    return cast("Callable[..., Any]", disable(function))


@contextlib.contextmanager
def dynamo_off(*, but_for_operators: bool = False) -> Iterator[None]:
    """Parts of a program that are under torch.compile, or the region around it, run as plain Python for a while.

    `but_for_operators`: those that take functions are run as ever, and no mode sees it."""
    with contextlib.ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(_off())
        if but_for_operators or "torch._dynamo" not in sys.modules:
            stack.enter_context(_compile.wanted((stack, but_for_operators)))
        yield


def _compiling(original: Any, wanted: Callable[[], tuple[contextlib.ExitStack, bool] | None]) -> Any:
    def compile(*args: Any, **kwargs: Any) -> Any:
        asked = wanted()
        if asked is None:
            return original(*args, **kwargs)
        stack, but_for_operators = asked
        importlib.import_module("torch._dynamo")  # as it would be now
        stack.enter_context(_off())
        made = original(*args, **kwargs)
        by: str = sys._getframe(1).f_globals.get("__name__", "")
        return _as_ever(made) if but_for_operators and by.startswith(_OPERATORS_ON_FUNCTIONS) else made

    return compile


_compile = Shared(torch, "compile", _compiling)
_OPERATORS_ON_FUNCTIONS = ("torch._higher_order_ops.", "torch.nn.attention.")
"""Who has Dynamo flatten the functions given to an operator, without which it has no right gradients."""


def _as_ever(made: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes(), torch.compiler.set_stance("default"):
            return made(*args, **kwargs)

    return call


@contextlib.contextmanager
def _off() -> Iterator[None]:
    set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
    callback = set_eval_frame(None)  # first: a stance may not be set inside of a compiled region
    try:
        with _as_plain_python.wanted():
            yield
    finally:
        set_eval_frame(callback)


def _set_stance() -> Callable[[], object]:
    ours = torch.compiler.set_stance("force_eager")
    return lambda: ours.__exit__(None, None, None)


_as_plain_python = Wanted(_set_stance)
"""Compiled functions run as they were written. That is torch's for the whole process."""


def compile_lock() -> contextlib.AbstractContextManager[Any]:
    """The lock under which torch compiles. Where Dynamo was never imported nobody else compiles."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return frames.compile_lock if frames is not None else contextlib.nullcontext()


def _leaving_states(original: Any, is_wanted: Callable[[], bool]) -> Any:
    def preserve_rng_state() -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if is_wanted() else original()

    return preserve_rng_state


_PRESERVING = [
    Shared(module, "preserve_rng_state", _leaving_states)
    for module in ("torch._dynamo.utils", "torch._functorch.aot_autograd")
]


def random_states_left_alone() -> contextlib.AbstractContextManager[None]:
    """In this thread, torch does not put default generators back when it has traced or compiled for the length of a block: it
    would put back what other threads drew meanwhile."""
    return all_wanted(_PRESERVING)


def note_changing_sizes(tensor: torch.Tensor, dimensions: frozenset[int]) -> None:
    """Tell Dynamo, should it meet this tensor, that these dimensions' sizes change. It makes no guard of that."""
    name = _mark_of_changing_sizes()
    tensor.__dict__[name] = set(dimensions) | tensor.__dict__.get(name, set())


@functools.cache
def _mark_of_changing_sizes() -> str:
    """The attribute under which this torch passes such marks from graph to graph; before it had one, that of a user's mark."""
    own = "_dynamo_propagated_dynamic_indices"
    return own if own in inspect.getsource(torch._dynamo.utils) else "_dynamo_weak_dynamic_indices"


def skip_code(code: CodeType, with_callees: bool) -> None:
    """Have Dynamo skip frames of this code, and on request those of what it calls."""
    # Dynamo's C half is part of torch itself; its Python half takes seconds to import and is often never needed.
    c_half = torch._C._dynamo.eval_frame
    if hasattr(c_half, "set_code_exec_strategy"):
        callees = c_half._FrameAction.SKIP if with_callees else c_half._FrameAction.DEFAULT
        strategy = c_half._FrameExecStrategy(c_half._FrameAction.SKIP, callees)
        c_half.set_code_exec_strategy(code, strategy)
    elif "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].eval_frame.skip_code(code)
