"""Definitions hold for what was computed, and fail where one element, row or block is not what they say."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.identities.check import IdentityCheck, check
from ingest.identities.definition import CallOperands
from ingest.identities.operators import expectations

Array = np.ndarray[Any, Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def checked(op_type: str, inputs: list[Array], output: Array, **named: Array) -> IdentityCheck:
    return check(output, expectations(op_type, CallOperands([*inputs, *named.values()], named, [output]), 0))


def sequential(a: Array, b: Array) -> Array:
    """Multiply as the plainest kernel does: one addition after another, in float32."""
    c = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        c += a[:, k : k + 1].astype(np.float32) * b[k].astype(np.float32)
    return c


@pytest.mark.parametrize("dtype", DTYPES)
@given(k=st.sampled_from([1, 3, 64, 700]), scale=st.sampled_from([1e-3, 1, 30]), mean=st.sampled_from([0, 4]))
@settings(max_examples=12, deadline=None)
def test_products_hold_in_any_order_of_addition(dtype: Any, k: int, scale: float, mean: float) -> None:
    a, b = ((normal(32, k, seed=s) * scale + mean).astype(dtype) for s in (1, 2))
    for product in (a.astype(np.float32) @ b.astype(np.float32).T, sequential(a, b.T)):
        with np.errstate(over="ignore"):
            assert checked("MatMul", [a, b], product.astype(dtype)).status == "holds"


def test_transposes_biases_and_joined_axes_are_found() -> None:
    x, w, bias = normal(2, 8, 16), normal(12, 16, seed=1), normal(12, seed=2)
    y = x @ w.T + bias
    assert checked("Functional.linear", [x], y, weight=w, bias=bias).status == "holds"
    assert checked("MatMul", [x, np.ascontiguousarray(w.T)], (y - bias).reshape(16, 12)).status != "fails"
    heads = normal(2, 4, 8, 5), normal(2, 4, 8, 5, seed=3)
    flags = [np.array(False), np.array(True)]
    assert checked("BatchMatMul", [*heads, *flags], heads[0] @ heads[1].swapaxes(2, 3)).status == "holds"


def test_what_autocast_narrows_is_narrowed() -> None:
    x, w, bias = normal(16, 32), normal(24, 32, seed=1), normal(24, seed=2)
    narrow = [each.astype(BFLOAT16).astype(np.float32) for each in (x, w, bias)]
    y = (narrow[0] @ narrow[1].T + narrow[2]).astype(BFLOAT16)
    assert checked("Functional.linear", [x, w, bias], y).status == "holds"


def test_large_products_are_checked_by_projection() -> None:
    a, b = normal(600, 400), normal(400, 500, seed=1)
    c = a @ b
    assert checked("MatMul", [a, b], c).status == "holds"
    c[17, 3] += 0.01
    assert (found := checked("MatMul", [a, b], c)).status == "fails"
    assert found.difference is not None
    assert found.difference.box == ((17, 18), (3, 4))


def rows(x: Array) -> Array:
    x = x.astype(np.float64)
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5))


def softmaxed(x: Array) -> Array:
    powers = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


#: An operator, its inputs, and what it computes in exact arithmetic.
COMPUTED: dict[str, tuple[list[Array], Callable[..., Array]]] = {
    "MatMul": ([normal(16, 32), normal(32, 24, seed=1)], np.matmul),
    "Tensor.add": ([normal(16, 24), normal(24, seed=1)], np.add),
    "Tensor.mul": ([normal(16, 24), normal(16, 24, seed=1)], np.multiply),
    "Functional.layer_norm": ([normal(16, 24)], rows),
    "Tensor.softmax": ([normal(16, 24)], softmaxed),
    "ReduceSum": ([normal(16, 8, 24)], lambda x: x.sum(1)),
    "Tensor.transpose": ([normal(24, 16)], np.transpose),
    "Functional.embedding": ([np.arange(16) % 7, normal(9, 24)], lambda ids, table: table[ids]),
    "EmbeddingBag": (
        [np.arange(32).reshape(16, 2) % 7, normal(9, 24)],
        lambda ids, table: table[ids].mean(axis=1),
    ),
    "SiLU": ([normal(16, 24)], lambda x: x / (1 + np.exp(-x))),
    "AddN": ([normal(16, 24), normal(16, 24, seed=1), normal(16, 24, seed=2)], lambda *x: np.sum(x, axis=0)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op_type", COMPUTED)
def test_every_definition_holds_and_shows_a_fault_in_its_place(op_type: str, dtype: Any) -> None:
    inputs, compute = COMPUTED[op_type]
    inputs = [each.astype(dtype) if each.dtype.kind == "f" else each for each in inputs]
    exact = [each.astype(np.float64) if each.dtype.kind != "i" else each for each in inputs]
    y = np.asarray(compute(*exact)).astype(dtype)
    assert checked(op_type, inputs, y).status == "holds"
    places = {"element": (3, 5), "row": (3,), "block": (slice(4, 8), slice(8, 16))}
    for where, place in places.items():
        wrong = y.copy()
        wrong[place] = (wrong[place].astype(np.float32) * -2 + 1).astype(dtype)
        found = checked(op_type, inputs, wrong)
        assert found.status == "fails"
        assert found.difference is not None
        assert found.difference.where == where


@pytest.mark.parametrize("op_type", COMPUTED)
def test_another_operator_is_in_doubt_and_not_its_output(op_type: str) -> None:
    inputs, compute = COMPUTED[op_type]
    y = np.asarray(compute(*inputs)).astype(np.float32)
    assert checked(op_type, inputs, normal(*y.shape, seed=9)).status == "open"
    assert checked(op_type, inputs, y * 3).status == "open"


def test_rows_of_a_table_are_added_up_by_bag() -> None:
    ids, begins, table = np.arange(20) % 9, np.array([0, 3, 3, 10]), normal(9, 24)
    bags = np.split(table[ids], begins[1:])
    total = np.stack([bag.sum(axis=0) for bag in bags])
    assert checked("EmbeddingBag", [ids, begins, table], total).told == "mode = sum"
    largest = np.stack([bag.max(axis=0) for bag in (bags[0], *bags[2:])])
    assert checked("EmbeddingBag", [ids, begins[[0, 1, 3]], table], largest).told == "mode = max"


def test_attributes_are_told() -> None:
    x = normal(16, 24)
    assert checked("Tensor.div", [x], x / np.float32(2.5)).told == "scalar = 2.5"
    mask = np.tile((np.arange(24) < 18).astype(np.float32), (16, 1))
    assert checked("Tensor.rsub", [mask], 1 - mask).told == "scalar = 1"
    assert checked("Torch.sub", [x, mask], x - 3 * mask).told == "alpha = 3"
    assert checked("Functional.layer_norm", [x], rows(x).astype(np.float32)).told == "eps = 1e-05"
    kept = np.random.default_rng(4).random(x.shape) < 0.8
    assert checked("Functional.dropout", [x], np.where(kept, x / np.float32(0.8), 0)).told == "p = 0.2"
    wide = x.astype(np.float64)
    tanh = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    assert checked("Functional.gelu", [x], tanh.astype(np.float32)).told == "tanh"


def test_masks_indices_and_small_scalars_are_operands() -> None:
    """A mask counts as 0 and 1, an index chooses, and eps is known from the element that shows it."""
    x = normal(6, 8)
    mask = np.arange(6) < 5
    assert checked("mul", [x, mask[:, None]], x * mask[:, None]).status == "holds"
    chosen = np.array([0, 1, 2, 3, 5])
    for made in (chosen, mask):
        assert checked("getitem", [x, made], x[made]).told == "axis = 0"
    near = np.float32(1) - np.append(np.linspace(0.2, 0.9, 20), 1.0).astype(np.float32)
    assert checked("add", [near], near + np.float32(1e-10)).status == "holds"


def test_nan_and_overflow_follow_from_what_was_read() -> None:
    x = normal(16, 24, dtype=np.float16)
    x[3, 4] = np.nan
    assert checked("Tensor.mul", [x, x], x * x).status == "holds"
    with np.errstate(over="ignore"):
        assert checked("Tensor.mul", [x, x * 0 + 60000], x * np.float16(60000)).status == "holds"
    y = normal(16, 24)
    z = y + y
    z[0, 0] = np.nan
    assert checked("Tensor.add", [y, y], z).status == "fails"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [128, 320], ids=["recomputed", "projected"])
def test_a_product_that_is_lost_does_not_hold_and_a_lost_row_or_column_fails(dtype: Any, rows: int) -> None:
    """Looser rounding, of TF32 or of the type, may be as large as the product: then it proves nothing."""
    a, b = normal(rows, 512, dtype=dtype), normal(512, 512, dtype=dtype, seed=1)
    product = (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)
    assert checked("MatMul", [a, b], product).status == "holds"
    assert checked("MatMul", [a, b], product * 0).status == "open"
    for place in ((7, slice(None)), (slice(None), 7)):
        c = product.copy()
        c[place] = 0
        found = checked("MatMul", [a, b], c)
        assert found.status == "fails"
        assert found.difference is not None
        assert found.difference.where == "row"
