"""All that a call may have changed, as leaves by path: values, facts of tensors, and who shares memory with whom."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

_PLAIN = (int, float, complex, str, bytes, bool, type(None), enum.Enum, torch.dtype, torch.device, np.generic)
_OURS = "benchmarks.held_back"
_PARTS_OF_A_MODULE = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True)
class Leaf:
    """A tensor or a plain value as it was."""

    facts: tuple[Any, ...]
    value: Any = None
    steps: tuple[int, ...] = ()
    memory: tuple[str, int] | None = None


def snapshot(**roots: Any) -> dict[str, Leaf]:
    """The leaves of some values, by path; a tensor or container met again is told as where it was met first."""
    return _Walk().of(roots)


class _Walk:
    def __init__(self) -> None:
        self.seen: dict[int, str] = {}
        self.kept: list[Any] = []  # so that no id is given twice
        self.owners: dict[int, tuple[str, int]] = {}
        self.found: dict[str, Leaf] = {}

    def of(self, roots: Mapping[str, Any]) -> dict[str, Leaf]:
        for name, value in roots.items():
            self.visit(name, value)
        return self.found

    def visit(self, path: str, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self.found[path] = Leaf((type(value).__name__, repr(value)))
            return
        if id(value) in self.seen and not isinstance(value, (tuple, frozenset)):  # Python may keep one for equal ones
            self.found[path] = Leaf(("the same as", self.seen[id(value)]))
            return
        self.seen[id(value)] = path
        self.kept.append(value)
        if isinstance(value, torch.Tensor):
            self.tensor(path, value)
            return
        self.found[path] = Leaf((type(value).__name__,))
        for name, part in _parts(value):
            self.visit(f"{path}{name}", part)

    def tensor(self, path: str, value: torch.Tensor) -> None:
        facts: tuple[Any, ...] = (type(value).__name__, value.dtype, value.device.type, value.layout)
        shape = tuple(value.shape) if not value.is_nested else ()
        facts += (value.is_inference(), shape, value.requires_grad, value.is_leaf)
        steps, memory = (), None
        if value.layout is torch.strided and not value.is_nested and type(value) in (torch.Tensor, nn.Parameter):
            steps = tuple(s for n, s in zip(shape, value.stride(), strict=True) if n > 1) if value.numel() else ()
            storage = value.untyped_storage()
            if storage.nbytes():
                address = value.data_ptr()
                owner, first = self.owners.setdefault(storage._cdata, (path, address))
                memory = (owner, address - first)
        self.found[path] = Leaf(facts, _value(value), steps, memory)
        if value.is_leaf and value.grad is not None:
            self.visit(f"{path}.grad", value.grad)


def _value(tensor: torch.Tensor) -> Any:
    with torch.no_grad():
        plain = tensor.detach()
        if plain.is_nested:
            return [_value(part) for part in plain.unbind()]
        if plain.layout is not torch.strided:
            return plain.to_dense().cpu().clone()
        if plain.is_quantized:
            return plain.dequantize().cpu()
        if plain.device.type == "meta":
            return None
        return plain.resolve_conj().resolve_neg().cpu().clone()


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a container or an object, by what is appended to its path."""
    if isinstance(value, nn.Module):
        yield ".training", value.training
        for kind in _PARTS_OF_A_MODULE:
            yield from ((f".{name}", part) for name, part in vars(value)[kind].items())
        yield from ((f".{name}", part) for name, part in vars(value).items() if _is_told(name, part))
    elif isinstance(value, torch.optim.Optimizer):
        for number, group in enumerate(value.param_groups):
            yield from ((f".groups[{number}].{name}", part) for name, part in group.items() if name != "params")
            for at, parameter in enumerate(group["params"]):
                yield f".groups[{number}][{at}]", parameter
                state = value.state.get(parameter, {})
                yield from ((f".state[{number}][{at}].{name}", part) for name, part in state.items())
    elif isinstance(value, Mapping):
        yield ".keys", [key if isinstance(key, _PLAIN) else type(key).__name__ for key in value]
        yield from ((f"[{key if isinstance(key, _PLAIN) else at!r}]", value[key]) for at, key in enumerate(value))
    elif isinstance(value, (list, tuple, deque)):
        yield from ((f"[{at}]", part) for at, part in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield "{}", sorted(map(repr, value))
    elif isinstance(value, np.ndarray):
        yield ".array", (str(value.dtype), value.shape, value.strides)
        yield ".bytes", value.tobytes()
    elif isinstance(value, torch.Generator):
        yield ".state", bytes(value.get_state().numpy())
    elif isinstance(value, types.MethodType):
        yield ".self", value.__self__
    elif isinstance(value, types.FunctionType) and value.__module__.startswith(_OURS):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield f".{name}", cell.cell_contents
            except ValueError:  # not bound yet
                continue
        yield ".defaults", value.__defaults__
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{field.name}", getattr(value, field.name, None)) for field in dataclasses.fields(value))
    elif isinstance(value, types.SimpleNamespace) or type(value).__module__.startswith(_OURS):
        names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
        yield from ((f".{name}", getattr(value, name, None)) for name in names if "jitted" not in name)
    elif hasattr(value, "state_dict"):
        yield ".state_dict", value.state_dict()


def _is_told(name: str, part: Any) -> bool:
    return not name.startswith("_") and name != "training" and isinstance(part, (*_PLAIN, torch.Tensor, list, dict))


def difference(
    found: dict[str, Leaf], expected: dict[str, Leaf], *, is_exact: bool, is_half: bool = False
) -> str | None:
    """The first place in which two snapshots differ, with its kind."""
    consumed = "backward" in expected  # such a result comes back detached: docs/promises.md
    for path in dict.fromkeys([*expected, *found]):
        if consumed and (
            path == "backward" or (path in expected and _is_consumed(path, found.get(path), expected[path]))
        ):
            continue
        if path not in found or path not in expected:
            return f"structure: {path} is {'missing' if path in expected else 'too much'}"
        left, right = found[path], expected[path]
        if left.facts != right.facts and not _is_counter_that_moved(path, left, right):
            return f"facts: {path}: {left.facts}, expected {right.facts}"
        if not _are_equal(left.value, right.value, is_exact, is_half):
            return f"value: {path}: {_short(left.value)}, expected {_short(right.value)}"
    for path, right in expected.items():
        if path not in found:
            continue
        if found[path].steps != right.steps:
            return f"strides: {path}: {found[path].steps}, expected {right.steps}"
        if found[path].memory != right.memory:
            return f"memory: {path} lies in {found[path].memory}, expected {right.memory}"
    return None


def _is_counter_that_moved(path: str, found: Leaf, expected: Leaf) -> bool:
    """Whether an optimizer's counter lies on the GPU where eager keeps it on the CPU: docs/promises.md."""
    if ".state[" not in path or found.facts[:1] != ("Tensor",) or expected.facts[2:3] != ("cpu",):
        return False
    return found.facts[2] == "cuda" and found.facts == (*expected.facts[:2], "cuda", *expected.facts[3:])


def _is_consumed(path: str, found: Leaf | None, expected: Leaf) -> bool:
    """Whether a result differs only in that it is detached from a graph that cannot be differentiated again."""
    if found is None or not path.removeprefix("then ").startswith("result") or len(expected.facts) < 3:
        return False
    return found.facts[:-2] == expected.facts[:-2] and _are_equal(found.value, expected.value, False)


def _short(value: Any) -> str:
    return " ".join(str(value).split())[:160]


_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 6e-2, torch.float64: 1e-7, torch.complex128: 1e-7}


def _are_equal(found: Any, expected: Any, is_exact: bool, is_half: bool = False) -> bool:
    if isinstance(expected, list):
        return len(found) == len(expected) and all(
            _are_equal(a, b, is_exact, is_half) for a, b in zip(found, expected, strict=True)
        )
    if expected is None:
        return found is None
    if torch.equal(found, expected):
        return True
    if not (expected.is_floating_point() or expected.is_complex()):
        return False
    if is_exact:
        return bool(((found == expected) | (found.isnan() & expected.isnan())).all())
    close = _TOLERANCE.get(torch.bfloat16 if is_half else expected.dtype, 1e-3)
    if not expected.is_complex():
        found, expected = found.double(), expected.double()
    # Compiled code leaves out roundings on the way: one unit in the last place of the largest.
    share = 0.15 if is_half else 0.05
    least = close * float(expected.abs().nan_to_num(0, 0, 0).max()) * share if expected.numel() else 0.0
    return bool(torch.isclose(found, expected, rtol=close, atol=max(least, close * 1e-2), equal_nan=True).all())
