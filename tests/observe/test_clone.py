from collections import OrderedDict, defaultdict, namedtuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from treeplay.observe import clone, clone_all

Point = namedtuple("Point", "x y")
pytestmark = pytest.mark.filterwarnings("ignore:.*beta state", "ignore:.*quantize_per", "ignore:.*prototype")


def storage_range(x):
    storage = x.untyped_storage()
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def share_memory(x, y):
    mine, other = storage_range(x), storage_range(y)
    return bool(mine and other) and mine[0] <= other[-1] and other[0] <= mine[-1]


def assert_twin(copy, x):
    assert (copy.size(), copy.stride(), copy.dtype, copy.device) == (x.size(), x.stride(), x.dtype, x.device)
    assert torch.equal(copy, x)
    assert not share_memory(copy, x)
    assert x.numel() == 0 or copy.data_ptr() % 32 == x.data_ptr() % 32


def test_O20_a_transposed_parameter_with_its_gradient():
    x = torch.nn.Parameter(torch.arange(12.0).view(3, 4).t())
    x.grad = torch.arange(12.0).view(4, 3) + 1
    copy = clone(x)
    assert_twin(copy, x)
    assert_twin(copy.grad, x.grad)
    assert copy.requires_grad and copy.is_leaf
    assert type(copy) is torch.nn.Parameter
    assert copy.grad.stride() == (3, 1)


def test_O20_a_broadcast_stays_one():
    x = torch.tensor([[1.0, 2.0, 3.0]]).expand(4, 3)
    copy = clone(x)
    assert copy.stride() == (0, 1)
    assert_twin(copy, x)
    copy[0, 1] = 7
    assert copy[:, 1].tolist() == [7, 7, 7, 7]


def test_O20_overlapping_elements_keep_overlapping():
    x = torch.arange(5.0).as_strided((3, 3), (1, 1))
    copy = clone(x)
    assert copy.stride() == (1, 1)
    assert_twin(copy, x)
    copy[0, 2] = 9
    assert copy[1, 1] == copy[2, 0] == 9


@pytest.mark.parametrize("offset", range(9))
def test_O20_the_address_keeps_its_remainder(offset):
    for dtype in (torch.float32, torch.int8, torch.float64, torch.bfloat16):
        x = torch.zeros(40, dtype=dtype)[offset:]
        assert clone(x).data_ptr() % 32 == x.data_ptr() % 32


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])
def test_O20_compressed_sparse_tensors_stay_so(layout):
    block = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    dense = torch.eye(4) * torch.arange(1.0, 5)
    x = dense.to_sparse(layout=layout, blocksize=block).requires_grad_()
    copy = clone(x)
    assert (copy.layout, copy.shape, copy.requires_grad, copy.is_leaf) == (layout, x.shape, True, True)
    assert torch.equal(copy.detach().to_dense(), dense)
    assert not share_memory(copy.detach().values(), x.detach().values())
    assert clone(x, dtype=torch.float64).dtype is torch.float64


def test_O20_a_sparse_tensor_stays_sparse_and_as_coalesced():
    indices, values = torch.tensor([[0, 0, 1], [1, 1, 0]]), torch.tensor([1.0, 2.0, 3.0])
    x = torch.sparse_coo_tensor(indices, values, (2, 2), check_invariants=True)
    for original in (x, x.coalesce()):
        copy = clone(original)
        assert (copy.layout, copy.is_coalesced()) == (torch.sparse_coo, original.is_coalesced())
        assert torch.equal(copy._values(), original._values())
        assert not share_memory(copy._values(), original._values())


def test_O20_quantised_tensors_stay_so():
    x = torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 3, torch.qint8).t()
    copy = clone(x)
    assert (copy.q_scale(), copy.q_zero_point(), copy.stride()) == (x.q_scale(), x.q_zero_point(), (1, 4))
    assert torch.equal(copy.int_repr(), x.int_repr())
    scales, points = torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3, dtype=torch.long)
    channels = torch.quantize_per_channel(torch.randn(3, 4), scales, points, 0, torch.qint8)
    assert torch.equal(clone(channels).int_repr(), channels.int_repr())
    with pytest.raises(TypeError, match="quantised"):
        clone(x, dtype=torch.float32)


def test_O20_a_given_dtype_reaches_value_and_gradient():
    x = torch.tensor([1.5, 2.5], requires_grad=True)
    x.grad = torch.tensor([0.5, 1.0])
    copy = clone(x, dtype=torch.float64)
    assert copy.dtype is copy.grad.dtype is torch.float64
    assert copy.tolist() == [1.5, 2.5]
    assert clone(x, dtype=torch.int64).requires_grad is False


def test_O20_marks_for_dynamic_dimensions_are_kept_and_apart():
    x = torch.ones(3, 4)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.maybe_mark_dynamic(x, 1)
    torch._dynamo.mark_static_address(x)
    copy = clone(x)
    assert copy._dynamo_dynamic_indices == {0}
    assert copy._dynamo_weak_dynamic_indices == {1}
    assert copy._dynamo_dynamic_indices is not x._dynamo_dynamic_indices
    assert not hasattr(copy, "_dynamo_static_input_type"), "the copy has another address"


def test_O20_fake_tensors_come_back_as_they_are():
    with FakeTensorMode():
        fake = torch.ones(2)
        assert clone(fake) is fake
    assert clone(fake) is fake
    assert clone(torch.ones(2, 3, device="meta").t()).stride() == (1, 3)


def test_O20_no_leaf_has_no_gradient_and_no_history():
    x = torch.ones(2, requires_grad=True) * 2
    copy = clone(x)
    assert copy.is_leaf and not copy.requires_grad
    assert torch.equal(clone(torch.tensor([1 + 2j]).conj()), torch.tensor([1 - 2j]))
    with pytest.raises(TypeError, match="clone_all"):
        clone([x])


@st.composite
def views(draw):
    """A view of a storage: any strides (0 and overlapping too), any offset."""
    sizes = draw(st.lists(st.integers(0, 4), max_size=3))
    strides = [draw(st.integers(0, 6)) for _ in sizes]
    offset = draw(st.integers(0, 9))
    dtype = draw(st.sampled_from([torch.float32, torch.bool, torch.int16, torch.complex64, torch.float64]))
    room = offset + 1 + sum(max(size - 1, 0) * stride for size, stride in zip(sizes, strides, strict=True))
    return (torch.arange(room) % 251).to(dtype).as_strided(sizes, strides, offset)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(views())
def test_O20_any_view_has_a_twin(x):
    before = x.clone()
    copy = clone(x)
    assert_twin(copy, x)
    if copy.numel() and not torch._debug_has_internal_overlap(copy):
        copy.zero_()
        assert torch.equal(x, before)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(views(), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=4))
def test_O21_views_of_one_storage_have_the_twin_views(x, slices):
    """Windows into one tensor: a write through any copy shows in the others as it does in the originals."""
    flat = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    windows = [flat[start : start + size] for start, size in slices] + [x]
    copies = clone_all(windows)
    for copy, window in zip(copies, windows, strict=True):
        assert torch.equal(copy, window) and copy.stride() == window.stride()
        assert not share_memory(copy, window)
    if windows[0].numel():
        windows[0].fill_(1)
        copies[0].fill_(1)
    assert all(torch.equal(copy, window) for copy, window in zip(copies, windows, strict=True))


def test_O21_one_tensor_in_two_places_stays_one():
    t = torch.ones(3)
    tree = {"a": t, "b": (t, 3)}
    copy = clone_all(tree)
    assert copy["a"] is copy["b"][0]
    assert copy["b"][1] == 3
    copy["a"].zero_()
    assert t.tolist() == [1, 1, 1]


def test_O21_kinds_of_containers_are_kept():
    marker = object()
    tree = [Point(1, [torch.ones(1)]), (marker,), OrderedDict(b=1, a=2), defaultdict(int, n=torch.ones(1))]
    tree.append(torch.max(torch.eye(2), 0))
    copy = clone_all(tree)
    assert [type(item) for item in copy] == [type(item) for item in tree]
    assert copy[0].y is not tree[0].y
    assert copy[1][0] is marker
    assert list(copy[2].items()) == [("b", 1), ("a", 2)]
    assert copy[3]["new"] == 0 and "new" not in tree[3]
    assert not share_memory(copy[4].values, tree[4].values)


def test_O21_views_of_other_dtypes_and_bits_share_too():
    z = torch.tensor([1 + 2j, 3 - 4j, 5j])
    copy, real, conjugate = clone_all((z[1:], torch.view_as_real(z), z.conj()))
    copy[0] = 7 + 8j
    assert real.tolist() == [[1, 2], [7, 8], [0, 5]]
    assert conjugate.tolist() == [1 - 2j, 7 - 8j, -5j]
    assert z.tolist() == [1 + 2j, 3 - 4j, 5j]


def test_O21_writing_through_one_view_counts_the_version_of_the_other():
    flat = torch.arange(4.0)
    a, b = clone_all([flat[:3], flat[1:]])
    loss = (b * torch.ones(3, requires_grad=True)).sum()
    a.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_O21_shared_lists_and_cycles_stay():
    shared = [torch.ones(1)]
    tree = {"a": shared, "b": shared}
    tree["self"] = tree
    copy = clone_all(tree)
    assert copy["a"] is copy["b"] and copy["a"] is not shared
    assert copy["self"] is copy
    assert clone_all(3) == 3


@pytest.mark.gpu
def test_O20_on_cuda(cuda_count):
    x = torch.arange(40.0, device="cuda")[3:].as_strided((4, 5), (7, 1))
    assert_twin(clone(x), x)
    a, b = clone_all([x, x[1:]])
    a[1] = 5
    assert torch.equal(a[1:], b)
