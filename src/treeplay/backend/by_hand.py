"""A graph that was compiled by hand: no guards of Dynamo's stand in front of it, so each call looks at what they would look at.

    call ─▶ inputs like those it was compiled for?   no ─▶ UsageError: nothing has run
         ─▶ modes as when it was compiled?           no ─▶ compile for these modes too, once
         ─▶ the compiled function

Code is generated for sizes, strides, dtypes and numbers: with others it would read what lies elsewhere, and give a wrong result
without a word. A graph that was traced for gradients, or under autocast, is another one than without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from treeplay.backend.passes import copy_of
from treeplay.backend.shapes import trees
from treeplay.backend.shapes.flat import Program
from treeplay.codegen import hide_from_dynamo
from treeplay.errors import UsageError
from treeplay.torch_seam import flags
from treeplay.torch_seam.modes import is_wrapper
from treeplay.torch_seam.symbols import has_symbols
from treeplay.values.same import is_same
from treeplay.values.spec import layout_text
from treeplay.wrap.ambience import Ambience

_VALUES = (int, float, complex, bool, str, type(None), torch.dtype, torch.device)

_Difference = Callable[[Any], str | None]
"""Says how a value differs from what its place was compiled for, as `shape [3] instead of [5]`; None if it does not."""


class CompiledByHand:
    """What `compile_graph` gives back.

    `compile_next` compiles a program for inputs and for the modes at that moment, and uses the program up. A tensor's shape,
    strides, dtype and device have to be as in `inputs`, and a number's value; not a size that is a symbol there."""

    def __init__(
        self,
        program: Program,
        inputs: Sequence[Any],
        compile_next: Callable[[Program, Sequence[Any]], Callable[..., Any]],
    ) -> None:
        self._program = _copied(program)
        self._compile_next = compile_next
        leaves, self._tree = trees.flatten_tree(tuple(inputs))
        self._count, self._is_flat = len(leaves), trees.is_flat(inputs)
        self._names = _names(program) if self._is_flat else {}
        self._differences = [(at, test) for at, test in enumerate(map(_difference_from, leaves)) if test is not None]
        self._symbolic = {at: leaf for at, leaf in enumerate(leaves) if has_symbols([leaf])}
        self._held = _Held(program)
        self._first = compile_next(_copied(program), inputs)
        self._compiled = {Ambience.now(): self._first}
        self._has_first_modes, self._first_inference = flags.global_state(), torch.is_inference_mode_enabled()

    def __call__(self, *args: Any) -> Any:
        self._check(args)
        if self._has_first_modes() and torch.is_inference_mode_enabled() is self._first_inference:
            return self._first(*args)
        modes = Ambience.now()
        compiled = self._compiled.get(modes)
        if compiled is None:
            # Two threads may compile it at once: both functions are right, and one is kept.
            compiled = self._compiled.setdefault(modes, self._compile_next(_copied(self._program), self._samples(args)))
        return compiled(*args)

    def _check(self, args: Sequence[Any]) -> None:
        given = args if self._is_flat else trees.leaves_like(args, self._tree)
        if len(given) == self._count:  # of another number the compiled function tells
            for at, difference in self._differences:
                told = difference(given[at])
                if told is not None:
                    name = f" (`{self._names[at]}`)" if at in self._names else ""
                    raise _other(f"argument {at}{name}", told)
        self._held.check()

    def _samples(self, args: Sequence[Any]) -> Sequence[Any]:
        """The inputs to compile for: those of a call, and symbols where there were some."""
        leaves = trees.leaves_like(args, self._tree)
        samples: Sequence[Any] = trees.unflatten_tree(
            [self._symbolic.get(at, leaf) for at, leaf in enumerate(leaves)], self._tree
        )
        return samples


hide_from_dynamo(CompiledByHand.__call__, with_callees=True)


def _other(what: str, told: str) -> UsageError:
    return UsageError(
        f"{what} has {told}, which the graph was compiled for. "
        "Fix: compile it again for inputs like these, as torch.compile does by itself"
    )


def _copied(program: Program) -> Program:
    return copy_of(program) if isinstance(program, torch.fx.GraphModule) else program


def _names(program: Program) -> dict[int, str]:
    if not isinstance(program, torch.fx.GraphModule):
        return {}
    return {at: node.name for at, node in enumerate(program.graph.find_nodes(op="placeholder"))}


class _Held:
    """Parameters and buffers of a graph, whose data may be replaced: by `p.data = ...`, or by `module.to(...)`."""

    def __init__(self, program: Program) -> None:
        named = _held(program) if isinstance(program, torch.fx.GraphModule) else ()
        found = {name: tensor for name, tensor in named if _is_strided(tensor)}
        self._names, self._tensors = list(found), list(found.values())
        self._layouts = self._now()

    def check(self) -> None:
        """`UsageError` if one has another layout than at first."""
        now = self._now()
        if now != self._layouts:
            pairs = zip(self._names, now, self._layouts, strict=True)
            name, found, expected = next((name, a, b) for name, a, b in pairs if a != b)
            raise _other(f"`{name}`", f"{layout_text(*found)} instead of {layout_text(*expected)}")

    def _now(self) -> list[tuple[Any, ...]]:
        return [(held.dtype, held.device, held.shape, held.stride()) for held in self._tensors]


def _held(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _difference_from(expected: Any) -> _Difference | None:
    if isinstance(expected, torch.Tensor):
        return _difference_from_tensor(expected)
    if has_symbols([expected]) or not isinstance(expected, _VALUES):
        return None
    return lambda found: None if is_same(found, expected) else f"the value {found!r} instead of {expected!r}"


def _difference_from_tensor(expected: torch.Tensor) -> _Difference:
    sizes: Sequence[Any] = expected.shape
    strides: Sequence[Any] | None = expected.stride() if _is_strided(expected) else None
    dtype, device, is_symbolic = expected.dtype, expected.device, has_symbols([expected])

    def difference(found: Any) -> str | None:
        if not isinstance(found, torch.Tensor):
            return None  # the compiled function tells
        if found.dtype is not dtype:
            return f"the dtype {found.dtype} instead of {dtype}"
        if found.device != device:
            return f"the device {found.device} instead of {device}"
        if found.shape != sizes and not (is_symbolic and _agree(found.shape, sizes)):
            return f"the shape {list(found.shape)} instead of {list(sizes)}"
        if strides is None or (_is_strided(found) and _steps_are(found, strides)):
            return None
        return (
            f"{f'the strides {found.stride()}' if _is_strided(found) else 'another layout'} instead of {tuple(strides)}"
        )

    return difference


def _is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not is_wrapper(tensor)


def _agree(found: Sequence[int], expected: Sequence[Any]) -> bool:
    """Whether numbers are as expected, where these are no symbols."""
    pairs = zip(found, expected, strict=False)
    return len(found) == len(expected) and all(isinstance(two, torch.SymInt) or one == two for one, two in pairs)


def _steps_are(found: torch.Tensor, strides: Sequence[Any]) -> bool:
    """Whether all elements of a tensor lie where these strides have them: no dimension of one element is ever stepped over."""
    if found.stride() == strides:
        return True
    taken = [(one, two) for size, one, two in zip(found.shape, found.stride(), strides, strict=True) if size > 1]
    return 0 in found.shape or _agree([one for one, _ in taken], [two for _, two in taken])
