"""By how much two tensors differ: against numpy in one go, however they are cut, and at the edges."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from workers.arrays import comparison
from workers.arrays.comparison import BLOCK, METRICS, Metrics, RunningComparison, is_real, no_difference
from workers.arrays.dtypes import from_name

Array = npt.NDArray[Any]


@pytest.fixture(scope="module", autouse=True, params=["numpy", "compiled"])
def _loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything holds for small tensors, which numpy compares, and for the compiled loops."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "compiled":
            patch.setattr(comparison, "_COMPILED_SIZE", 0)
        yield


NAN, INF = math.nan, math.inf


def compare_arrays(a: Array, b: Array) -> Metrics:
    running = RunningComparison()
    running.update(a.reshape(-1), b.reshape(-1))
    return running.result()


def straightforward(a: Array, b: Array) -> dict[str, float]:
    """The formulae of the module's docstring, on whole arrays."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    finite = np.isfinite(a) & np.isfinite(b)
    odd = ~finite & ~same
    with np.errstate(all="ignore"):
        error = np.where(finite, np.abs(a - b), 0.0)
        relative = np.where(b == 0, np.abs(a) / np.finfo(np.float64).eps, error / np.abs(b))
    relative = np.where(finite, relative, 0.0)
    x, y = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
    left = ~odd
    norm_a, norm_b = np.linalg.norm(x), np.linalg.norm(y)
    return {
        "unequal": float((~same).sum()),
        "nan_mismatch": float((np.isnan(a) != np.isnan(b)).sum()),
        "inf_mismatch": float((odd & (np.isnan(a) == np.isnan(b))).sum()),
        "max_abs": error[left].max(),
        "max_relative": relative[left].max(),
        "mean_relative": relative[left].mean(),
        "rmse": math.sqrt(np.mean(error[left] ** 2)),
        "cosine": float(x @ y / norm_a / norm_b),
        "relative_euclidean": float(np.linalg.norm(error) / norm_b),
        "within_1_per_mille": float((left & (relative < 0.001)).mean()),
        "within_5_per_mille": float((left & (relative < 0.005)).mean()),
        "norm_ratio": float(norm_a / norm_b),
    }


ordinary = st.floats(-1e6, 1e6, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-6)
special = st.sampled_from([NAN, INF, -INF, 0.0, -0.0])


@st.composite
def two_arrays(draw: st.DrawFn) -> tuple[Array, Array]:
    size = draw(st.integers(1, 60))
    b = draw(hnp.arrays(np.float64, size, elements=ordinary | special))
    noise = draw(st.sampled_from([0.0, 1e-9, 1e-4, 3e-3, 1.0]))
    with np.errstate(all="ignore"):
        a = b * (1 + noise * np.linspace(-1, 1, size))
    for _ in range(draw(st.integers(0, 4))):
        a[draw(st.integers(0, size - 1))] = draw(ordinary | special)
    return a, b


@given(two_arrays(), st.sampled_from(["f8", "f4", ">f4", "f2", "bfloat16"]))
def test_metrics_are_those_of_the_formulae(pair: tuple[Array, Array], dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype)) if dtype == "bfloat16" else np.dtype(dtype)
    with np.errstate(all="ignore"):
        a, b = (values.astype(kind) for values in pair)
    found = compare_arrays(a, b)
    if found.bit_equal:
        assert a.tobytes() == b.tobytes()
        return
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    compared = np.isfinite(wide_a) & np.isfinite(wide_b)
    if not (compared & (wide_a != 0)).any() or not (compared & (wide_b != 0)).any():
        return  # zeros, which have tests of their own
    for name, value in straightforward(a, b).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-9, abs=1e-12), name


@given(two_arrays(), st.lists(st.integers(0, 60), max_size=4))
def test_cuts_change_nothing(pair: tuple[Array, Array], cuts: list[int]) -> None:
    a, b = pair
    running = RunningComparison()
    for start, stop in pairwise([0, *sorted(min(cut, a.size) for cut in cuts), a.size]):
        running.update(a[start:stop], b[start:stop])
    assert_alike(running.result(), compare_arrays(a, b))


def assert_alike(found: Metrics, wanted: Metrics, rel: float = 1e-9) -> None:
    for name in METRICS:
        value = getattr(wanted, name)
        assert getattr(found, name) == pytest.approx(value, rel=rel, abs=1e-12, nan_ok=True), name


def test_neighbours_beyond_float64_differ_in_either_byte_order() -> None:
    apart = compare_arrays(np.array([2**53 + 1, 7], "<i8"), np.array([2**53, 7], ">i8"))
    assert (apart.unequal, apart.max_abs) == (1, 1.0)


@pytest.mark.parametrize(
    ("signed", "unsigned"),
    [(2**53 + 1, 2**53), (2**63 - 1, 2**63), (-1, 2**64 - 1), (-(2**63), 2**64 - 1), (-5, 3)],
)
@pytest.mark.parametrize("order", "<>")
def test_signed_and_unsigned_long_integers_are_not_rounded_to_equal(
    signed: int, unsigned: int, order: str
) -> None:
    a, b = np.array([signed, 7], f"{order}i8"), np.array([unsigned, 7], "u8")
    for found in (compare_arrays(a, b), compare_arrays(b, a)):
        assert found.unequal == 1
        assert found.max_abs == pytest.approx(abs(signed - unsigned), rel=1e-15)


def test_the_same_bytes_are_no_difference_whatever_they_are() -> None:
    values = np.array([1, NAN, INF, -INF, 0.0], np.float32)
    assert compare_arrays(values, values.copy()) == no_difference(5)


def test_zero_and_minus_zero_are_equal_but_not_the_same_bits() -> None:
    found = compare_arrays(np.array([0.0, 1.0]), np.array([-0.0, 1.0]))
    assert (found.bit_equal, found.unequal, found.max_abs, found.within_1_per_mille) == (False, 0, 0.0, 1.0)


def test_nan_with_another_payload_is_equal_but_not_the_same_bits() -> None:
    a = np.array([0x7FC00000, 0x3F800000], np.uint32).view(np.float32)
    b = np.array([0x7FC00001, 0x3F800000], np.uint32).view(np.float32)
    found = compare_arrays(a, b)
    assert (found.bit_equal, found.unequal, found.nan_mismatch, found.within_5_per_mille) == (
        False,
        0,
        0,
        1.0,
    )


@pytest.mark.parametrize(
    ("a", "b", "nan", "inf"),
    [
        (NAN, NAN, 0, 0),
        (NAN, 1, 1, 0),
        (1, NAN, 1, 0),
        (NAN, INF, 1, 0),
        (INF, INF, 0, 0),
        (INF, -INF, 0, 1),
        (INF, 1, 0, 1),
        (1, -INF, 0, 1),
    ],
)
def test_nan_and_infinities_agree_or_are_counted(a: float, b: float, nan: int, inf: int) -> None:
    found = compare_arrays(np.array([a, 2.0, 3.0]), np.array([b, 2.0, 3.5]))
    assert (found.nan_mismatch, found.inf_mismatch, found.unequal) == (nan, inf, 1 + nan + inf)
    assert found.max_abs == 0.5
    assert found.within_1_per_mille == pytest.approx((2 - nan - inf) / 3)


def test_where_nothing_is_left_to_compare_no_figure_is_made_up() -> None:
    found = compare_arrays(np.array(NAN), np.array(1.0))
    assert found.nan_mismatch == 1
    assert all(
        math.isnan(getattr(found, name)) for name in ("max_abs", "cosine", "relative_euclidean", "rmse")
    )


@pytest.mark.parametrize(
    ("a", "b", "cosine", "distance", "ratio"),
    [
        ([0.0, 0.0], [-0.0, 0.0], 1, 0, 1),
        ([1.0, 0.0], [0.0, 0.0], NAN, INF, INF),
        ([0.0, 0.0], [3.0, 4.0], NAN, 1, 0),
        ([3.0, 4.0], [-3.0, -4.0], -1, 2, 1),
    ],
)
def test_zeros(a: list[float], b: list[float], cosine: float, distance: float, ratio: float) -> None:
    found = compare_arrays(np.array(a), np.array(b))
    figures = [found.cosine, found.relative_euclidean, found.norm_ratio]
    np.testing.assert_allclose(figures, [cosine, distance, ratio])


def test_relative_error_to_zero_is_that_of_msprobe() -> None:
    found = compare_arrays(np.array([1e-10, 1.0]), np.array([0.0, 1.0]))
    assert found.max_relative == pytest.approx(1e-10 / np.finfo(np.float64).eps)


def test_empty_tensors_have_no_error_and_are_equal_if_their_types_are() -> None:
    empty = np.zeros((0, 3))
    assert compare_arrays(empty, empty) == no_difference(0)
    assert compare_arrays(empty, empty.astype(np.float32)) == replace(no_difference(0), bit_equal=False)


@pytest.mark.parametrize("scale", [1e-300, 5e-324 * 2**20, 1e-170, 1.0, 1e170, 1e300])
def test_squares_neither_overflow_nor_vanish(scale: float) -> None:
    b = np.array([3.0, -4.0, 1.0])
    a = np.array([3.0, -4.0, 1.5])
    found, plain = compare_arrays(a * scale, b * scale), compare_arrays(a, b)
    for name in ("cosine", "relative_euclidean", "norm_ratio", "max_relative"):
        assert getattr(found, name) == pytest.approx(getattr(plain, name), rel=1e-5), name
    assert found.rmse == pytest.approx(plain.rmse * scale, rel=1e-5)


def test_tiny_and_huge_elements_in_one_tensor_keep_their_errors() -> None:
    tiny, huge = np.full(BLOCK, 1e-300), np.full(BLOCK, 1e300)
    a = np.concatenate([tiny * 2, tiny, huge])
    b = np.concatenate([tiny, tiny, huge])
    found = compare_arrays(a, b)
    assert found.max_relative == pytest.approx(1.0)
    assert found.unequal == BLOCK
    assert found.relative_euclidean == pytest.approx(0, abs=1e-300)


def test_a_difference_beyond_float64_is_infinite_but_its_ratio_is_not() -> None:
    found = compare_arrays(np.array([1.5e308]), np.array([-1.5e308]))
    assert (found.max_abs, found.max_relative, found.relative_euclidean) == (INF, 2.0, 2.0)


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "i4", "u4", "i8", ">i8", "u8"])
def test_integers_and_booleans_are_exact(dtype: str) -> None:
    a, b = np.array([0, 1, 1], dtype), np.array([0, 1, 0], dtype)
    found = compare_arrays(a, b)
    assert (found.unequal, found.max_abs, found.bit_equal) == (1, 1.0, False)


def test_types_may_differ() -> None:
    values = np.array([1.0, 2.5, NAN])
    found = compare_arrays(values.astype(np.float32), values.astype(ml_dtypes.bfloat16))
    assert (found.bit_equal, found.unequal, found.relative_euclidean) == (False, 0, 0.0)


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", ">f4", "c8"])
@pytest.mark.parametrize("step", [2, -1])
def test_elements_may_lie_apart_or_in_reverse(dtype: str, step: int) -> None:
    b = np.linspace(-3, 5, 3 * BLOCK).astype("f4")
    a = (b * 1.25).astype(dtype)
    apart = compare_arrays(a[::step], b[::step])
    assert apart == compare_arrays(a[::step].copy(), b[::step].copy())
    assert apart.max_abs == np.abs(a[::step].astype("c16") - b[::step]).max()


def test_complex_elements_have_errors_of_the_modulus() -> None:
    a, b = np.array([3 + 4j, 1j], np.complex64), np.array([0j, 1j], np.complex64)
    found = compare_arrays(a, b)
    assert found.max_abs == 5.0
    assert found.norm_ratio == pytest.approx(math.sqrt(26))
    assert found.cosine == pytest.approx(1 / math.sqrt(26))
    assert compare_arrays(1j * b, b).cosine == pytest.approx(0.0)


def test_elements_that_are_no_numbers_are_compared_by_their_bytes() -> None:
    running = RunningComparison()
    running.update_opaque(np.zeros((3, 4), np.uint8), np.eye(3, 4, dtype=np.uint8))
    found = running.result()
    assert (found.count, found.unequal, found.bit_equal) == (3, 3, False)
    assert math.isnan(found.max_abs)


@pytest.mark.parametrize(
    ("dtype", "real"),
    [
        *(
            (dtype, True)
            for dtype in ("float32", "bool", "uint64", "bfloat16", "float8_e5m2", "int4", "<f16")
        ),
        *((dtype, False) for dtype in ("complex64", "complex32", "hifloat8", "<U3", "<M8[D]")),
    ],
)
def test_text_and_times_and_complex_numbers_are_not_real(dtype: str, *, real: bool) -> None:
    assert is_real(from_name(dtype)) is real
