"""Threads of a server call one compiled module: no thread's tracing is in the way of another's."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from support.compiled import compiled, new_reports, small_net
from support.recordings import on_a_tape


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


@pytest.mark.parametrize("has_gradients", [False, True])
def test_Dplus8_four_threads_call_one_compiled_model(
    has_gradients: bool, device: str, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None
) -> None:
    """Recordings of a device take turns: what one thread gets, the next call of another does not write over."""
    on_a_tape(device, monkeypatch)
    model = small_net().to(device)
    run = compiled(model, dynamic=False)

    def requests(thread: int, calls: int) -> bool:
        chance, are_equal = torch.Generator().manual_seed(thread), []
        with torch.set_grad_enabled(has_gradients):
            for _ in range(calls):
                x = torch.randn(3, 4, generator=chance).to(device)
                found, expected = run(x), model(x)
                if has_gradients:
                    ways = [torch.autograd.grad(out.pow(3).sum(), model.parameters()) for out in (found, expected)]
                    are_equal.append(all(map(torch.equal, *ways)))
                are_equal.append(torch.equal(found, expected))
        return all(are_equal)

    assert requests(0, 3)  # is recorded; what is called meanwhile would run as it is
    before = [report.launch.launches for report in new_reports() if report.launch is not None]
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(requests, range(4), [50] * 4))
    launches = [report.launch for report in new_reports() if report.launch is not None]
    assert [launch.stage for launch in launches] == ["recorded"] * (1 + has_gradients)
    assert [launch.launches for launch in launches] == [count + 4 * 50 for count in before]
