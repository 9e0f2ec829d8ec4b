import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from treeplay.observe import checkpoint


def values(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def addresses(module):
    return {name: tensor.data_ptr() for name, tensor in module.state_dict().items()}


def assert_values(module, expected):
    now = module.state_dict()
    assert now.keys() == expected.keys()
    assert all(torch.equal(now[name], expected[name]) for name in expected)


def test_O23_batch_norm_statistics_come_back_though_no_version_changed():
    norm = nn.BatchNorm1d(3)
    restore = checkpoint(norm)
    for _ in range(2):
        norm(torch.randn(8, 3) + 5)
        assert norm.running_mean.abs().sum() > 0
        restore()
        assert norm.running_mean.tolist() == [0, 0, 0]
        assert norm.running_var.tolist() == [1, 1, 1]
        assert norm.num_batches_tracked.item() == 0


def test_O23_an_optimizer_step_is_undone_in_place():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    before, places = values(model), addresses(model)
    parameters = list(model.parameters())
    restore = checkpoint(model)
    model(torch.randn(5, 3)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    restore()
    assert_values(model, before)
    assert addresses(model) == places
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))


def test_O23_what_did_not_change_is_not_written():
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    restore = checkpoint(model)
    versions = model.weight._version, model.bias._version
    with torch.no_grad():
        model.bias.add_(1)
    restore()
    assert model.weight._version == versions[0], "NaN is unchanged too"
    assert model.bias._version > versions[1]


def test_O23_replaced_tensors_and_storages_come_back():
    model = nn.BatchNorm1d(2)
    before, places, weight = values(model), addresses(model), model.weight
    restore = checkpoint(model)
    model.weight.data = torch.full((5,), 7.0)
    model.bias = nn.Parameter(torch.full((2,), 7.0))
    model.running_mean = torch.full((2,), 7.0)
    model.running_var = None
    del model.num_batches_tracked
    restore()
    assert_values(model, before)
    assert addresses(model) == places
    assert model.weight is weight


def test_O23_a_conversion_of_the_module_is_undone():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before, places = values(model), addresses(model)
    restore = checkpoint(model)
    model.double()
    restore()
    assert model[0].weight.dtype is torch.float32
    assert_values(model, before)
    assert addresses(model) == places


def test_O23_tied_broadcast_and_sparse_tensors():
    model = nn.Module()
    model.a = model.b = nn.Parameter(torch.ones(2))
    model.register_buffer("wide", torch.tensor([[1.0, 2.0]]).expand(3, 2))
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    model.register_buffer("complex", torch.tensor([1 + 2j]))
    model.register_buffer("absent", None)
    restore = checkpoint(model)
    with torch.no_grad():
        model.a.zero_()
        model.wide[0].zero_()
        model.sparse.mul_(5)
        model.complex.mul_(2j)
    restore()
    assert model.a is model.b and model.a.tolist() == [1, 1]
    assert model.wide.tolist() == [[1, 2]] * 3 and model.wide.stride() == (0, 1)
    assert torch.equal(model.sparse.to_dense(), torch.eye(2))
    assert model.complex.tolist() == [1 + 2j]


def test_O23_the_random_state_returns():
    model = nn.Dropout()
    restore = checkpoint(model)
    first = model(torch.ones(20))
    restore()
    assert torch.equal(model(torch.ones(20)), first)


def test_O23_restoring_shows_as_a_write_to_autograd():
    model = nn.Linear(2, 1, bias=False)
    restore = checkpoint(model)
    with torch.no_grad():
        model.weight.add_(1)
    loss = model(torch.ones(1, 2, requires_grad=True)).sum()
    restore()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_O23_what_has_no_value_is_refused():
    with pytest.raises(TypeError, match="weight has no value"):
        checkpoint(nn.LazyLinear(3))
    with FakeTensorMode():
        fake = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="fake"):
        checkpoint(fake)
    with pytest.raises(TypeError, match="Module"):
        checkpoint(torch.ones(2))


@pytest.mark.gpu
def test_O23_on_cuda(cuda_count):
    norm = nn.BatchNorm1d(3).cuda()
    before, places = values(norm), addresses(norm)
    restore = checkpoint(norm)
    norm(torch.randn(8, 3, device="cuda") + 5)
    drawn = torch.rand(3, device="cuda")
    restore()
    assert_values(norm, before)
    assert addresses(norm) == places
    restore()
    norm(torch.randn(8, 3, device="cuda") + 5)
    assert torch.equal(torch.rand(3, device="cuda"), drawn)
