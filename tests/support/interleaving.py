"""Another thread acts at an exact moment of a program: while the first one runs it, traces it, or records it.

    program ── meet(x) ──▶ real tensors: `Moment.RUN`; fakes: `Moment.TRACE`, or what else the program is run without data for
                                └─▶ the other thread acts, and the program waits until it is done

`meet` is an operator that copies its argument. What happens inside of it is no part of the program: no thread, lock or event
is in the program's reach. Which stage runs the program is told by the frames above it.
"""

from __future__ import annotations

import enum
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from treeplay.backend import job
from treeplay.trace.opaque.run import OpaqueRuns
from treeplay.trace.rerun import Rerun
from treeplay.tree.audit import Audit


class Moment(enum.Enum):
    RUN = "the program runs, or a recording that keeps the operator as it is"
    TRACE = "the program is traced"
    RERUN = "the program is traced once more, to be wrapped"
    AUDIT = "the program is traced once more, to be compared with its recording"
    CAPTURE = "its operators are captured, or the program is recorded as it is"
    UNRECORDED = "the program, which is to be recorded as it is, runs once more without"
    COMPILE = "a graph is compiled"


class Interleaving:
    """A context: `act` runs in another thread the first time a program of the thread that entered meets at `moment`."""

    def __init__(self, moment: Moment, act: Callable[[], Any]) -> None:
        self.moment, self.act = moment, act
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.get_ident()
        self._may_act, self._is_over = threading.Event(), threading.Event()
        # There from the start: who traces asks whether it is alone when it begins.
        self._other = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Interleaving:
        global _now
        self._other.start()
        _now = self
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        global _now
        _now = None
        self._is_over.set()
        self._may_act.set()
        self._other.join(timeout=30)
        if kind is None:
            assert self.is_done, f"nobody met at: {self.moment.value}"
        if self.error is not None:
            raise self.error

    def met(self, moment: Moment) -> None:
        if moment is not self.moment or self.is_done or threading.get_ident() != self._thread:
            return
        self.is_done = True
        acted = self._is_over
        self._may_act.set()
        if not acted.wait(timeout=30):
            self.error = TimeoutError("the other thread hangs")

    def _run(self) -> None:
        self._may_act.wait()
        if self._is_over.is_set():
            return
        try:
            self.result = self.act()
            self._is_over.set()
        except BaseException as error:
            self.error = error
            self._is_over.set()


_now: Interleaving | None = None


_STAGES = {
    Rerun.__call__.__code__: Moment.RERUN,
    Audit.run.__code__: Moment.AUDIT,
    OpaqueRuns.recorded.__code__: Moment.CAPTURE,
    OpaqueRuns.plain.__code__: Moment.UNRECORDED,
}


def _met(moment: Moment) -> None:
    if _now is None:
        return
    frame = sys._getframe()
    while frame is not None:
        moment = _STAGES.get(frame.f_code, moment)
        frame = frame.f_back
    _now.met(moment)


def meet_while_compiling(patch: pytest.MonkeyPatch) -> None:
    """From now on each compilation of the backend's is a `Moment.COMPILE`, before it begins and once it is over."""
    original = job.compile_inner

    def compile_inner(*args: Any, **kwargs: Any) -> Any:
        torch.rand(2)  # as one that times what it makes
        _met(Moment.COMPILE)
        return original(*args, **kwargs)

    patch.setattr(job, "compile_inner", compile_inner)


@torch.library.custom_op("treeplay_tests::meet", mutates_args=())
def meet(x: torch.Tensor) -> torch.Tensor:
    """A copy of `x`, and the place where another thread may act."""
    _met(Moment.CAPTURE if x.is_cuda and torch.cuda.is_current_stream_capturing() else Moment.RUN)
    return x.clone()


@meet.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    _met(Moment.TRACE)
    return torch.empty_like(x)


meet.register_autograd(lambda ctx, gradient: gradient.clone())


def devices() -> list[Any]:
    """For parametrized tests; the GPU's is marked, and skipped where there is none."""
    return [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]
