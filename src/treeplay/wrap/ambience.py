"""What surrounds a call and is no argument of it: modes of the thread and of the process that change what operators do.

    Ambience.now() ─▶ part of the key               other modes, another entry: going back finds the first recording
    conditions     ─▶ text in the call function     one native call or attribute for each mode: a warm call is short

The native check of a call's tensors tells some modes too (autocast, inference mode): they are asked for only where no tensor
comes in. Others concern a GPU, and are asked for only where one is in use; or some operators, and are asked for only where
one of them may have run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from treeplay.torch_seam import flags, modes


class AskedWhen(Enum):
    """When a warm call asks for a mode."""

    ALWAYS = "always"
    WITHOUT_TENSORS = "where no tensor comes in: the check of a tensor tells it too"
    ON_GPU = "where a GPU is in use"
    IN_AUTOCAST = "under autocast, which is asked for before it"
    IF_SET = "where a default device is set: calls with it and calls without it come in by two doors"
    ON_CPU = "unless all tensors that come in are on a GPU"


@dataclass(frozen=True, slots=True)
class Mode:
    """One mode: its name for a person, and how generated code reads it: `read()`, or an attribute of `holder`."""

    what: str
    name: str
    read: Callable[[], Any]
    asked: AskedWhen = AskedWhen.ALWAYS
    attribute: tuple[Any, str] | None = None
    operators: tuple[str, ...] = ()
    """It changes only what operators and builtin functions with one of these in their names do; none: it may change all."""

    def concerns(self, called: frozenset[str] | None) -> bool:
        """Whether it may change what any of these does."""
        if not self.operators or called is None:
            return True
        return any(part in name for name in called for part in self.operators)


def _autocast_cache() -> bool:
    """Whether each weight is cast once: then the gradients of its uses are added up as cast."""
    return flags.is_any_autocast_enabled() and torch.is_autocast_cache_enabled()


def _deterministic() -> tuple[bool, ...]:
    """Whether only deterministic operators may run, and if so whether others only warn, and whether new memory is filled."""
    if not flags.is_deterministic():
        return (False,)
    return True, torch.is_deterministic_algorithms_warn_only_enabled(), flags.fills_memory()


def _of(
    what: str,
    read: Callable[[], Any],
    asked: AskedWhen = AskedWhen.ALWAYS,
    operators: tuple[str, ...] = (),
) -> Mode:
    return Mode(what, read.__name__.strip("_"), read, asked, operators=operators)


_ATTENTION = ("attention", "attn", "transformer")
# Convolutions, normalizations, recurrent layers, samplers of grids, and what has the library in its name.
_CUDNN = (*_ATTENTION, "conv", "norm", "rnn", "lstm", "gru", "ctc", "grid", "affine", "pool", "cudnn", "miopen")


GRAD = _of("grad mode", torch.is_grad_enabled)
DTYPE = _of("default dtype", torch.get_default_dtype)
DEVICE = _of("default device", modes.default_device, AskedWhen.IF_SET)
INFERENCE = _of("inference mode", torch.is_inference_mode_enabled, AskedWhen.WITHOUT_TENSORS)
AUTOCAST = _of("autocast", flags.autocast_dtypes, AskedWhen.WITHOUT_TENSORS)
AUTOCAST_CACHE = _of("autocast's cache", _autocast_cache, AskedWhen.IN_AUTOCAST)
ANOMALY = _of("anomaly detection", torch.is_anomaly_enabled)
FORWARD = Mode("forward-mode differentiation", "forward_ad", flags.forward_level, attribute=flags.FORWARD_LEVEL)
DETERMINISTIC = _of("deterministic algorithms", _deterministic)
PRECISION = _of("precision of float32 matrix products", flags.matmul_precision)

# The order is that of the conditions: first what changes most often.
MODES = (
    GRAD,
    DTYPE,
    DEVICE,
    INFERENCE,
    AUTOCAST,
    AUTOCAST_CACHE,
    ANOMALY,
    FORWARD,
    DETERMINISTIC,
    Mode(
        "fast path of attention modules", "fast_path", flags.fast_path, attribute=flags.FAST_PATH, operators=_ATTENTION
    ),
    PRECISION,
    *(_of(what, read, operators=_ATTENTION) for what, read in flags.ATTENTION_MODES.items()),
    *(_of(what, read, AskedWhen.ON_CPU) for what, read in flags.CPU_MODES.items()),
    *(_of(what, read, AskedWhen.ON_GPU, operators=_ATTENTION) for what, read in flags.GPU_ATTENTION_MODES.items()),
    *(_of(what, read, AskedWhen.ON_GPU, operators=_CUDNN) for what, read in flags.CUDNN_MODES.items()),
    *(_of(what, read, AskedWhen.ON_GPU) for what, read in flags.CUBLAS_MODES.items()),
)
# One native call tells these from others; it takes as long as four of them.
_TOGETHER = {mode for mode in MODES if mode.read in flags.GLOBAL_STATE} | {DETERMINISTIC, PRECISION}
# Quicker than to read the mode: a native call that gives False for its usual value alone.
_IF_USUAL: dict[Mode, tuple[Any, str, Callable[[], bool]]] = {
    AUTOCAST: ((), "is_any_autocast_enabled", flags.is_any_autocast_enabled),
    DETERMINISTIC: ((False,), "is_deterministic", flags.is_deterministic),
    PRECISION: ("highest", "allows_tf32", flags.allows_tf32),
}
_AT = {mode: index for index, mode in enumerate(MODES)}
_READS = tuple(mode.read for mode in MODES)

# What chooses kernels, for which Dynamo has no guards: as a rule it is asked when an operator runs, but a trace asks it once.
_KERNELS = {*flags.ATTENTION_MODES.values(), *flags.GPU_ATTENTION_MODES.values(), *flags.CUDNN_MODES.values()}

# A tangent is no input of a recording, and a recording asks no operator for NaNs: under these, programs run eagerly.
_ONLY_EAGERLY = {ANOMALY: False, FORWARD: -1}


@dataclass(frozen=True, slots=True)
class Ambience:
    """The value of each of `MODES`."""

    values: tuple[Any, ...]

    @classmethod
    def now(cls) -> Ambience:
        """The modes of this thread and this process."""
        try:
            values = [read() for read in _READS]
        except RuntimeError:
            values = [flags.mode_value(mode.read) for mode in MODES]
        # The order of attention kernels comes as a list, and a key is hashed.
        return cls(tuple([tuple(value) if type(value) is list else value for value in values]))

    def __getitem__(self, mode: Mode) -> Any:
        return self.values[_AT[mode]]

    @property
    def grad_enabled(self) -> bool:
        """Whether autograd records."""
        return bool(self[GRAD])

    @property
    def inference(self) -> bool:
        """Whether tensors made now are of inference mode."""
        return bool(self[INFERENCE])

    @property
    def autocast(self) -> tuple[tuple[str, torch.dtype], ...]:
        """Device types under autocast, and what it casts to there."""
        found: tuple[tuple[str, torch.dtype], ...] = self[AUTOCAST]
        return found

    @property
    def only_eagerly(self) -> str | None:
        """The mode under which nothing is recorded or replayed, or None."""
        return next((mode.what for mode, off in _ONLY_EAGERLY.items() if self[mode] != off), None)

    def differences(self, other: Ambience) -> Iterator[tuple[str, Any, Any]]:
        """What differs in `other`: name, value here, value there."""
        for mode, here, there in zip(MODES, self.values, other.values, strict=True):
            # There is a cache under autocast alone.
            is_told = mode is AUTOCAST_CACHE and self.autocast != other.autocast
            if here != there and not is_told:
                yield mode.what, here, there

    def conditions(
        self, constant: Callable[[Any], str], checked: set[str], called: frozenset[str] | None = None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Conditions that the modes are these, and the names that each uses.

        `constant` names an object; `checked` are the kinds of device of the tensors that are checked. The check of a tensor
        knows of autocast for its own kind of device only. `called`: the operators and builtin functions that ran, if known.
        """
        on_gpu = torch.cuda.is_initialized()
        together = self._asked_together() if on_gpu else set()
        if together:
            found = [_condition(mode, self[mode], constant) for mode in MODES if mode in together]
            names = {"global_state": flags.global_state(), **{key: of[key] for _, of in found for key in of}}
            yield f"(global_state() or {' and '.join(text for text, _ in found)})", names
        is_told = "cuda" in checked if on_gpu else bool(checked)
        is_asked = {
            AskedWhen.ALWAYS: True,
            AskedWhen.WITHOUT_TENSORS: not is_told,
            AskedWhen.IN_AUTOCAST: bool(self.autocast),
            AskedWhen.IF_SET: self[DEVICE] is not None,
            AskedWhen.ON_GPU: on_gpu,
            AskedWhen.ON_CPU: checked != {"cuda"},
        }
        for mode, value in zip(MODES, self.values, strict=True):
            if mode in together or not mode.concerns(called):
                continue
            if mode is AUTOCAST and is_told:
                # The check tells whether it is on, and for which kind of device; not what it casts to.
                for kind, dtype in self.autocast:
                    names = {"get_autocast_dtype": torch.get_autocast_dtype}
                    yield f"get_autocast_dtype({kind!r}) is {constant(dtype)}", names
            elif is_asked[mode.asked]:
                yield _condition(mode, value, constant)

    def conditions_on_kernels(self, called: frozenset[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Conditions that the kernels of what is `called`, if that is known, are chosen as here, and the names that each uses:
        for what Dynamo's guards stand in front of, which know all other modes."""
        for mode, value in zip(MODES, self.values, strict=True):
            is_asked = mode.asked is not AskedWhen.ON_GPU or torch.cuda.is_initialized()
            if is_asked and mode.read in _KERNELS and mode.concerns(called):
                yield _condition(mode, value, repr)

    def _asked_together(self) -> set[Mode]:
        """The modes of `_TOGETHER` whose values one native call tells."""
        together = {mode for mode in _TOGETHER if flags.mode_value(mode.read) == self[mode]}
        # Of these two it tells whether TF32 is allowed and determinism is on, which says all of their usual values alone.
        is_usual = all(self[mode] == _IF_USUAL[mode][0] for mode in (PRECISION, DETERMINISTIC))
        return together if is_usual else together - {PRECISION, DETERMINISTIC}


def _condition(mode: Mode, value: Any, constant: Callable[[Any], str]) -> tuple[str, dict[str, Any]]:
    if mode in _IF_USUAL and value == _IF_USUAL[mode][0]:
        _, name, is_other = _IF_USUAL[mode]
        return f"{name}() is False", {name: is_other}
    if mode is AUTOCAST_CACHE:  # autocast is on by then
        return f"is_autocast_cache_enabled() is {value}", {"is_autocast_cache_enabled": torch.is_autocast_cache_enabled}
    read = mode.read
    if read is flags.attention_order:
        value = list(value)
    elif isinstance(value, tuple) and value[:1] == (flags.NEWER,):
        read = functools.partial(flags.mode_value, read)
    known = repr(value) if isinstance(value, (bool, str, int)) else constant(value)
    test = f"{'is' if isinstance(value, (bool, torch.dtype)) else '=='} {known}"
    if mode.attribute is not None:
        holder, name = mode.attribute
        return f"{mode.name}.{name} {test}", {mode.name: holder}
    return f"{mode.name}() {test}", {mode.name: read}
