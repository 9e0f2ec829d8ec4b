"""What libraries ask to find out whether they are traced: a second run gives them the answers of the first.

Transformers reads masks on the host unless a tensor is a fake. What the trace computes is, and so the program takes the way
without reads. In a second run, what is computed are tensors that hold fakes: to them, the answer is the same.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

from treeplay.torch_seam.fakes import is_without_data
from treeplay.torch_seam.patched import stand_in

_ASKS = (("transformers.utils.import_utils", "is_fake_tensor"),)
"""Functions of libraries, each with its module, that tell whether a tensor is a fake."""


@contextlib.contextmanager
def answered_as_in_the_trace(is_input: Callable[[Any], bool]) -> Iterator[None]:
    """For a block, whatever the program computes in this thread is a fake to libraries that ask; its inputs are not."""
    thread = get_ident()
    with contextlib.ExitStack() as stack:
        for name, function in _ASKS:
            library = sys.modules.get(name)
            original = getattr(library, function, None)
            if library is None or original is None:
                continue

            def is_fake(value: Any, original: Callable[[Any], bool] = original) -> bool:
                if get_ident() != thread:
                    return original(value)
                return is_without_data(value) and not is_input(value)

            stand_in(is_fake, original)
            stack.callback(setattr, library, function, original)
            setattr(library, function, is_fake)
        yield
