"""Threads of a server call one compiled module: no thread's tracing is in the way of another's."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from support.compiled import compiled, small_net


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_sizes_that_are_new_in_several_threads_at_once(fresh_dynamo: None, device: str) -> None:
    model = small_net().eval().to(device)
    run = compiled(model)

    def request(number: int) -> bool:
        x = torch.full((2 + number % 4, 4), float(number % 3), device=device)
        with torch.no_grad():
            return torch.allclose(run(x), model(x))

    with warnings.catch_warnings(), ThreadPoolExecutor(6) as pool:
        warnings.simplefilter("ignore")
        assert all(pool.map(request, range(48)))
