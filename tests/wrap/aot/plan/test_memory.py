"""Results that are new memory are told from those that may be views."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from treeplay.wrap.aot.plan.memory import fresh_values
from wrap.aot.oracle import numbers, wrapped


def test_operators_say_whether_their_results_are_new() -> None:
    def program(x: Any) -> list[Any]:
        values, indices = torch.topk(x, 2)
        return [x, x.sin(), x.t(), values, indices, x.split(1)[0], x.sin().view(-1), 3]

    assert fresh_values(make_fx(program)(numbers(2, 2))) == {1, 3, 4}


def test_what_is_saved_of_a_view_does_not_keep_its_base_alive() -> None:
    call = wrapped(lambda x: [x.sin()], lambda: [numbers(2, grad=True)])

    class Alive:
        pass

    def base_of_view() -> tuple[Any, Any]:
        base = numbers(4, grad=True) * 1
        held = Alive()
        base.grad_fn.metadata["held"] = held
        view = base[:2].detach().requires_grad_()
        return call([view])[0], weakref.ref(held)

    result, held = base_of_view()
    gc.collect()
    assert held() is None and result.grad_fn is not None
