"""What a program keeps in memory that holds no objects, as it was before a trace: NumPy arrays, `array`, `bytearray`,
`memoryview`, ctypes, `StringIO` and `BytesIO`; in context variables, in the attributes of scripted modules, and in the
environment of the process.

A trace runs the program's Python, which may write there, as `counts[0] += 1` does. What differs afterwards is put back, and
tells that the program writes what no replay would write.
"""

from __future__ import annotations

import array
import contextvars
import ctypes
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from treeplay.guards.memory import BUFFERS, buffer_class, buffer_content, held, size_of
from treeplay.torch_seam.fakes import has_data
from treeplay.torch_seam.scripts import ScriptModule, attributes_of, set_attribute
from treeplay.trace.restore.bare import fill
from treeplay.values.kinds import is_a, numpys
from treeplay.values.place import Place
from treeplay.values.same import is_same

ENVIRONMENT = type(os.environ)
"""The class of `os.environ`, which has what C code reads changed as well."""
_MOST_BYTES = 1 << 28  # that are copied for a trace; what is beyond is left as the trace leaves it
_SHOWS_NOTHING = (TypeError, ValueError, BufferError, NotImplementedError)  # released, or of another kind
_ABSENT = object()  # what a context variable holds that is not set


class MemoryBefore:
    """What lay there when this was made. `tensors` may lie in the same memory: their values are not for this to put back."""

    def __init__(self, found: Iterable[tuple[Any, Place]], tensors: Iterable[torch.Tensor]) -> None:
        self._kept: list[tuple[Any, Place, Any]] = []
        found = list(found)
        spans = list(_spans(tensors)) if found else []
        left = _MOST_BYTES
        for value, place in found:
            nbytes = _nbytes(value)
            if nbytes is None or nbytes > left or _lies_in(value, spans):
                continue
            content = _content(value)
            if content is not None:
                left -= nbytes
                self._kept.append((value, place, content))

    def changed(self, is_ours: Callable[[Any], bool]) -> Iterator[Place]:
        """The places of what differs now, by the program's doing."""
        for value, place, before in self._kept:
            if not _is_same(value, before) and is_ours(value):
                yield place

    def put_back(self, is_ours: Callable[[Any], bool]) -> None:
        """Undo what the program has done."""
        for value, _, before in self._kept:
            if not _is_same(value, before) and is_ours(value):
                _fill(value, before)


def _is_array(value: Any) -> bool:
    return is_a(value, numpys("ndarray"))


def _plain(value: Any) -> Any:
    """A NumPy array without what a class of its own, as that of masked arrays, makes of it."""
    return sys.modules["numpy"].ndarray.view(value, sys.modules["numpy"].ndarray)


def _nbytes(value: Any) -> int | None:
    """How much there is of it; None where nobody can write, or nobody can say."""
    if _is_array(value):
        # What is in fields that hold objects cannot be compared without asking these.
        return size_of(value) if value.flags.writeable and not _has_objects_in_fields(value) else None
    if is_a(value, (contextvars.ContextVar, ENVIRONMENT, ScriptModule)):
        return 0
    if is_a(value, BUFFERS):
        return size_of(value)
    try:
        view = memoryview(value)
    except _SHOWS_NOTHING:
        return None
    return view.nbytes if not view.readonly and view.c_contiguous else None


def _has_objects_in_fields(array: Any) -> bool:
    return bool(array.dtype.hasobject and array.dtype.fields)


def _content(value: Any) -> Any:
    """What is in it, to be compared; None where it does not show that."""
    if is_a(value, contextvars.ContextVar):
        return value.get(_ABSENT)
    if is_a(value, ENVIRONMENT):
        return dict(value)
    if is_a(value, ScriptModule):
        return held(value), attributes_of(value)
    if not _is_array(value):
        try:
            return held(value)
        except _SHOWS_NOTHING:
            return None
    plain = _plain(value)
    return plain.copy() if plain.dtype.hasobject else (plain.dtype, plain.shape, plain.tobytes())


def _is_same(value: Any, before: Any) -> bool:
    now = _content(value)
    if is_a(value, contextvars.ContextVar):
        return is_same(now, before)
    if is_a(value, ScriptModule):
        return bool(now[0] == before[0])
    if now is None:  # closed, or given back by the run
        return True
    if not _is_array(before):
        return bool(now == before)
    is_alike = now.shape == before.shape and now.dtype == before.dtype
    return is_alike and all(one is two for one, two in zip(now.flat, before.flat, strict=True))


def _fill(value: Any, before: Any) -> None:
    if is_a(value, contextvars.ContextVar):
        if before is not _ABSENT:  # nothing but what has set it can make it absent again
            value.set(before)
    elif is_a(value, ENVIRONMENT):
        _fill_environment(value, before)
    elif is_a(value, ScriptModule):
        for name, attribute in before[1].items():
            set_attribute(value, name, attribute)
    elif is_a(value, BUFFERS):
        _fill_buffer(value, *before)
    elif _is_array(before):
        _plain(value)[...] = before
    elif _is_array(value):
        dtype, shape, content = before
        if (value.dtype, value.shape) == (dtype, shape):
            _plain(value)[...] = sys.modules["numpy"].frombuffer(content, dtype).reshape(shape)
    elif is_a(value, bytearray):
        value[:] = before
    elif is_a(value, array.array):
        value[:] = array.array(value.typecode, before)
    elif is_a(value, memoryview):
        value.cast("B")[:] = before
    else:
        ctypes.memmove(ctypes.addressof(value), before, len(before))


def _fill_environment(environment: Any, before: dict[str, str]) -> None:
    for name in dict(environment).keys() - before.keys():
        del environment[name]
    for name, text in before.items():
        if environment.get(name) != text:
            environment[name] = text
    table = environment._data
    fill(table, {key: table[key] for key in map(environment.encodekey, before)})  # in the order they had


def _fill_buffer(buffer: Any, text: Any, position: int) -> None:
    base, now = buffer_class(buffer), buffer_content(buffer)
    if now != text and base is io.BytesIO and len(now) == len(text):
        with base.getbuffer(buffer) as view:  # which somebody else may have one of: nothing else can be written then
            view[:] = text
    elif now != text:
        base.seek(buffer, 0)
        base.truncate(buffer)
        base.write(buffer, text)
    base.seek(buffer, position)


def _spans(tensors: Iterable[torch.Tensor]) -> Iterator[tuple[int, int]]:
    """Where the memory of the host's tensors begins and ends."""
    for tensor in tensors:
        if tensor.device.type == "cpu" and tensor.layout is torch.strided and has_data(tensor):
            try:
                storage = tensor.untyped_storage()
                yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()
            except (RuntimeError, NotImplementedError):  # made of others
                continue


def _lies_in(value: Any, spans: Iterable[tuple[int, int]]) -> bool:
    if not _is_array(value):
        return False
    begin = int(value.__array_interface__["data"][0])
    return any(low < begin + value.nbytes and begin < high for low, high in spans)
