"""The boundary: reasons and interrupts pass, everything else is an error of ours, and no mode is left behind."""

from __future__ import annotations

import pytest
import torch

from treeplay.errors import InternalError, Refusal
from treeplay.observe import counters, internal_errors
from treeplay.sandbox.boundary import Boundary
from treeplay.values.refusal import Reason

REASON = Reason(op="item", why="reads on the host", advice="do not")


class Later(Exception):
    pass


@pytest.mark.parametrize("error", [Refusal(REASON), Later(), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_reasons_and_interrupts_pass_as_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, Boundary("testing", reasons=(Later,)):
        raise error
    assert caught.value is error and not internal_errors()


@pytest.mark.parametrize("error", [RuntimeError("one\ntwo"), KeyError("x"), MemoryError(), AssertionError("rule")])
def test_anything_else_is_an_error_of_ours_that_is_counted_and_kept_with_its_traceback(error: Exception) -> None:
    with pytest.raises(InternalError, match=f"while testing: {type(error).__name__}") as caught, Boundary("testing"):
        raise error
    assert caught.value.__cause__ is error and counters["internal errors"] == {type(error).__name__: 1}
    assert internal_errors() == (caught.value.text,) and __file__ in caught.value.text


def test_modes_are_as_they_were() -> None:
    with pytest.raises(KeyboardInterrupt), Boundary("testing"):
        torch.set_grad_enabled(False)
        raise KeyboardInterrupt
    assert torch.is_grad_enabled()
