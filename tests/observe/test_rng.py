import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from treeplay.errors import TreeplayError
from treeplay.observe import TransformError, keep_rng, read_rng, rng, write_rng


def test_O22_draws_inside_leave_no_trace():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with keep_rng():
        torch.rand(100)
        torch.manual_seed(99)
    assert torch.equal(torch.rand(4), expected)


def test_O22_the_state_comes_back_after_an_exception():
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), keep_rng():
        torch.rand(5)
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), before)


def test_O22_brackets_may_be_nested_and_functions_wrapped():
    @keep_rng()
    def draw():
        return torch.rand(1)

    with keep_rng():
        first = torch.rand(1)
        with keep_rng():
            second = torch.rand(1)
        assert torch.equal(torch.rand(1), second)
        assert torch.equal(draw(), draw())
    assert torch.equal(torch.rand(1), first)


def test_O22_no_cuda_context_is_made(fresh_python):
    text = """
import torch
from treeplay.observe import keep_rng
with keep_rng():
    torch.rand(1)
assert not torch.cuda.is_initialized()
"""
    fresh_python(text)


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad, torch.func.functionalize])
def test_O22_function_transforms_are_refused_with_the_reason(transform):
    def bracketed(x):
        with keep_rng():
            return x.sum()

    with pytest.raises(TransformError, match="compile cannot run there"):
        transform(bracketed)(torch.ones(2))
    assert issubclass(TransformError, TreeplayError)
    with keep_rng():
        pass


def test_O22_fake_mode_does_not_touch_the_state():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with FakeTensorMode(), keep_rng():
        torch.rand(2)
    assert torch.equal(torch.rand(2), expected)


def test_O22_a_state_can_be_kept_and_put_back_later():
    state = read_rng()
    first = torch.rand(3)
    write_rng(state)
    assert torch.equal(torch.rand(3), first)


def test_O22_no_state_is_read_or_set_while_another_thread_has_swapped_it(monkeypatch):
    class Watched:
        def __init__(self, name):
            self.name = name

        def get_state(self):
            return self.moved("read")

        def set_state(self, state):
            self.moved("set")

        def moved(self, how):
            assert rng.moving._is_owned()
            record.append(f"{self.name} {how}")

    record = []
    monkeypatch.setattr(rng, "default_generators", lambda: (Watched("cpu"), Watched("cuda")))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with keep_rng():
        pass
    assert record == ["cpu read", "cuda read", "cpu set", "cuda set"]


@pytest.mark.gpu
def test_O22_all_cuda_devices_are_restored(cuda_count):
    devices = [torch.device("cuda", index) for index in range(cuda_count)]
    torch.cuda.init()
    before = torch.cuda.get_rng_state_all()
    with keep_rng():
        for device in devices:
            torch.rand(3, device=device)
    assert all(map(torch.equal, torch.cuda.get_rng_state_all(), before))


@pytest.mark.gpu
def test_O22_cuda_first_used_inside_goes_back_to_its_start(cuda_count, fresh_python):
    text = """
import torch
from treeplay.observe import keep_rng
torch.manual_seed(5)
with keep_rng():
    first = torch.rand(3, device="cuda")
assert torch.equal(torch.rand(3, device="cuda"), first)
"""
    fresh_python(text)
