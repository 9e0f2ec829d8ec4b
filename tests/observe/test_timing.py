import gc
import time

import pytest
import torch

from treeplay.observe import time_call


def test_O24_every_run_is_made_and_the_last_result_returned():
    calls = []

    def spy(a, *, b):
        calls.append((a, b))
        return len(calls)

    result, seconds = time_call(spy, (1,), 3, kwargs={"b": 2})
    assert (result, calls) == (3, [(1, 2)] * 3)
    assert seconds >= 0


def test_O24_the_seconds_are_those_of_all_runs():
    _, seconds = time_call(time.sleep, (0.01,), 3)
    assert 0.03 <= seconds <= 3


@pytest.mark.parametrize("seed", [None, 1337])
def test_O24_the_random_state_outside_is_untouched(seed):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    time_call(torch.rand, (10,), 2, seed=seed)
    assert torch.equal(torch.rand(1), expected)


def test_O24_a_seed_makes_every_run_draw_the_same():
    drawn = []
    time_call(lambda: drawn.append(torch.rand(1).item()), times=3, seed=1337)
    assert len(set(drawn)) == 1
    drawn.clear()
    time_call(lambda: drawn.append(torch.rand(1).item()), times=3)
    assert len(set(drawn)) == 3


@pytest.mark.parametrize("times", [0, -1])
def test_O24_no_run_at_all_is_a_value_error(times):
    with pytest.raises(ValueError, match="times"):
        time_call(print, times=times)


def test_O24_garbage_is_collected_before_and_outside_the_time(monkeypatch):
    order = []
    monkeypatch.setattr(gc, "collect", lambda: (time.sleep(0.2), order.append("collect")))
    _, seconds = time_call(lambda: order.append("run"), times=2)
    assert order == ["collect", "run", "run"]
    assert seconds < 0.2


def test_O24_the_state_comes_back_if_a_run_fails():
    before = torch.get_rng_state()

    def fails():
        torch.rand(1)
        raise KeyError("x")

    with pytest.raises(KeyError):
        time_call(fails)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.gpu
def test_O24_work_that_is_only_queued_is_counted(cuda_count):
    cycles = 100_000_000  # about 50 ms at 2 GHz
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    _, seconds = time_call(torch.cuda._sleep, (cycles,), 2)
    assert seconds >= 2 * 0.03
