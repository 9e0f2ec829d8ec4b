import logging

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from treeplay.errors import TreeplayError
from treeplay.observe import UnsupportedLeafError, same

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, logger="treeplay.compare")


def t(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


def rule(verdict):
    return verdict.failures[0].rule if verdict.failures else "equal"


@pytest.mark.parametrize(
    ("ref", "res", "expected"),
    [
        (t(1, 2), t(1, 2.0001), "equal"),
        (t(1, 2), t(1, 2.01), "tolerance"),
        (t(1, 2), t(1, 2, dtype=torch.float64), "dtype"),
        (torch.ones(2, 3), torch.ones(1, 3), "shape"),
        (torch.ones(1, 3), torch.ones(2, 3), "shape"),
        (torch.ones(2, 3), torch.ones(3, 2), "shape"),
        (torch.ones(0, 3), torch.ones(0, 3), "equal"),
        (torch.ones(0, 3), torch.ones(3, 0), "shape"),
        (t(INF, -INF), t(INF, -INF), "equal"),
        (t(INF), t(-INF), "tolerance"),
        (t(INF), t(1), "tolerance"),
        (t(NAN), t(NAN), "tolerance"),
        (1.0, 1.00001, "equal"),
        (1.0, 1.01, "tolerance"),
        (1e300, 1e300, "equal"),
        (1.0, torch.tensor(1.0), "equal"),
        (torch.tensor(1.0, dtype=torch.float16), 1.0, "equal"),
        (1.0, torch.tensor(1), "dtype"),
        (1.0, 1, "kind"),
        (t(1 + 1j, dtype=torch.complex64), t(1 + 1.1j, dtype=torch.complex64), "tolerance"),
        (t(1, dtype=torch.float8_e4m3fn), t(2, dtype=torch.float8_e4m3fn), "tolerance"),
        (t(1, 2, dtype=torch.float8_e4m3fn), t(1, 2, dtype=torch.float8_e4m3fn), "equal"),
    ],
)
def test_O14_tensors_and_floats(ref, res, expected):
    assert rule(same(ref, res)) == expected


def test_O14_without_exact_dtype_the_reference_is_cast():
    assert same(t(1, 2), t(1, 2, dtype=torch.float64), exact_dtype=False)
    third = torch.tensor([1 / 3], dtype=torch.float64)
    assert same(third, third.half(), exact_dtype=False, tol=0.0)
    assert not same(t(1, 2), t(1, 3, dtype=torch.float64), exact_dtype=False)


def test_O14_nan_equals_nan_on_request_only():
    assert same(t(NAN, 1), t(NAN, 1), equal_nan=True)
    assert not same(t(NAN, 1), t(1, NAN), equal_nan=True)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_O14_sparse_by_value_and_never_equal_to_dense():
    dense = torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    assert same(dense.to_sparse(), dense.to_sparse())
    assert same(dense.to_sparse(), dense.to_sparse_csr())
    assert rule(same(dense.to_sparse(), dense)) == "layout"
    assert rule(same(dense, dense.to_sparse_csr())) == "layout"
    assert rule(same(dense.to_sparse(), (dense * 2).to_sparse())) == "tolerance"


def test_O14_tensors_without_data_are_an_error():
    with FakeTensorMode():
        fake = torch.ones(2)
    for ref, res in [(fake, torch.ones(2)), (torch.ones(2), fake)]:
        with pytest.raises(TypeError, match="FakeTensor"):
            same(ref, res)
    with pytest.raises(TypeError, match="without data"):
        same(torch.ones(2, device="meta"), torch.ones(2))


@pytest.mark.parametrize(
    ("dtype", "inside", "outside"),
    [
        (torch.float64, 0.9e-7, 1.2e-7),
        (torch.float32, 1.1e-6, 1.5e-6),
        (torch.float16, 9.8e-4, 2e-3),
        (torch.bfloat16, 0.8e-2, 2.3e-2),
    ],
)
def test_O14_auto_tolerance_follows_the_precision(dtype, inside, outside):
    """At 2 ** 14 the absolute part no longer counts."""
    ref = torch.tensor([2.0**14], dtype=torch.float64)
    assert same(ref.to(dtype), (ref * (1 + inside)).to(dtype), tol="auto")
    assert not same(ref.to(dtype), (ref * (1 + outside)).to(dtype), tol="auto")


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-7), (torch.float32, 1e-5), (torch.float16, 1e-5)])
def test_O14_auto_tolerance_near_zero(dtype, atol):
    zero = torch.zeros(1, dtype=dtype)
    assert same(zero, zero + 0.9 * atol, tol="auto")
    assert not same(zero, zero + 1.2 * atol, tol="auto")


def test_O14_gradients_and_conjugates_do_not_matter():
    x = torch.tensor([1 + 2j])
    assert same(x.conj(), torch.tensor([1 - 2j]))
    assert same(torch.ones(2, requires_grad=True), torch.ones(2))


@pytest.mark.gpu
def test_O14_devices_may_differ(cuda_count):
    assert same(torch.ones(3), torch.ones(3, device="cuda"))
    assert not same(torch.ones(3, device="cuda"), torch.zeros(3))


def around_one(error, *shape, dtype=torch.float32):
    return torch.full(shape, 1 + error, dtype=dtype)


def against_float64(ref_error, res_error, *shape, dtype=torch.float32, **options):
    exact = torch.ones(shape, dtype=torch.float64)
    ref, res = around_one(ref_error, *shape, dtype=dtype), around_one(res_error, *shape, dtype=dtype)
    return same(ref, res, exact, **options)


@pytest.mark.parametrize(
    ("ref_error", "res_error", "shape", "dtype", "passes"),
    [
        (1e-3, 1.5e-3, (2000,), torch.float32, True),
        (1e-3, 2.5e-3, (2000,), torch.float32, False),
        (1e-3, 1.5e-3, (999,), torch.float32, True),
        (1e-3, 2.5e-3, (999,), torch.float32, True),
        (1e-3, 3.5e-3, (999,), torch.float32, False),
        (1e-3, 2.5e-3, (1000,), torch.float32, False),
        (1e-2, 2.5e-2, (2000,), torch.float16, True),
        (1e-2, 2.5e-2, (2000,), torch.bfloat16, True),
        (1e-3, 2.5e-3, (20, 100, 1, 1), torch.float32, True),
        (1e-3, 2.5e-3, (20, 50, 2, 1), torch.float32, False),
    ],
)
def test_O15_as_near_to_float64_as_a_multiple_of_the_reference(ref_error, res_error, shape, dtype, passes):
    verdict = against_float64(ref_error, res_error, *shape, dtype=dtype)
    assert bool(verdict) is passes
    assert rule(verdict) == ("equal" if passes else "float64")


def test_O15_a_tolerance_from_two_percent_on_raises_the_multiple():
    assert rule(against_float64(0.05, 0.145, 2000, tol=0.02)) == "equal"
    assert rule(against_float64(0.05, 0.145, 2000, tol=0.019)) == "float64"


def test_O15_the_failure_holds_both_errors_the_multiple_and_tol():
    failure = against_float64(1e-3, 2.5e-3, 2000).failures[0]
    assert failure.float64.result == pytest.approx(2.5e-3, rel=1e-3)
    assert failure.float64.reference == pytest.approx(1e-3, rel=1e-3)
    assert (failure.float64.multiplier, failure.float64.tol) == (2.0, 1e-4)


def test_O15_a_result_better_than_a_broken_reference_passes():
    exact = torch.ones(3, dtype=torch.float64)
    assert same(t(NAN, 1, 1), t(1, 1, 1), exact)
    assert same(t(NAN, 1, 1), t(1.03, 1, 1), exact)
    assert not same(t(NAN, 1, 1), t(1.2, 1, 1), exact)
    assert not same(t(NAN, 1, 1), t(NAN, 1, 1), exact)


def test_O15_nan_in_the_references_error_hints_at_higher_precision():
    exact = torch.ones(2, dtype=torch.float64)
    told = []
    verdict = same(t(NAN, 1), t(NAN, 2), exact, on_message=told.append)
    assert not verdict
    assert "higher precision" in verdict.hints[0]
    assert told[0] == verdict.hints[0]
    accepted = same(t(NAN, 1), t(NAN, 2), exact, equal_nan=True)
    assert accepted and accepted.hints
    assert not same(t(NAN, 1), t(1, 2), exact, equal_nan=True)


def test_O15_anything_but_float64_is_no_reference():
    ref, res = around_one(1e-3, 2000), around_one(1.5e-3, 2000)
    assert rule(same(ref, res, torch.ones(2000))) == "tolerance"
    assert rule(same(ref, res, None)) == "tolerance"
    assert same(ref, res, torch.ones(2000, dtype=torch.float64))


def test_O15_a_float64_reference_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="shape"):
        same(torch.ones(2, 3), torch.zeros(2, 3), torch.ones(1, 3, dtype=torch.float64))


@pytest.mark.parametrize(
    "leaf", ["text", 3, None, True, torch.device("cpu"), torch.float16], ids=lambda leaf: repr(leaf)
)
def test_O17_plain_leaves_by_equality(leaf):
    assert same(leaf, leaf)
    assert rule(same([leaf], ["something else"])) == "value"
    assert same([leaf], ["something else"], ignore_non_float=True)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.uint64])
def test_O17_booleans_and_integers_exactly(dtype):
    one, zero = torch.ones(1, dtype=dtype), torch.zeros(1, dtype=dtype)
    assert same(one, one.clone())
    assert rule(same(one, zero, tol=100.0)) == "exact"
    assert same(one, zero, ignore_non_float=True)


def test_O17_ignoring_non_floats_still_judges_floats():
    assert rule(same(t(1, 2), t(1, 3), ignore_non_float=True)) == "tolerance"
    assert rule(same(1.0, 2.0, ignore_non_float=True)) == "tolerance"
    assert rule(same(None, t(1), ignore_non_float=True)) == "kind"
    assert rule(same(torch.tensor([1]), t(1), ignore_non_float=True)) == "dtype"
    verdict = same({"n": 1, "x": t(1)}, {"n": 2, "x": t(2)}, ignore_non_float=True)
    assert [failure.path for failure in verdict.failures] == ['["x"]']


def test_O17_other_types_are_an_error_that_names_them():
    with pytest.raises(RuntimeError, match="object"):
        same(object(), object())
    with pytest.raises(RuntimeError, match=r'result\["a"\].*object'):
        same({"a": 1}, {"a": object()})
    assert issubclass(UnsupportedLeafError, TreeplayError)


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
def test_O17_quantised_tensors_by_value():
    x = torch.tensor([1.0, 2.0])
    quantised = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    assert same(quantised, quantised.clone())
    assert rule(same(quantised, torch.quantize_per_tensor(x + 1, 0.1, 0, torch.qint8))) == "tolerance"
