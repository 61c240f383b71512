"""Identities: what operators, modules and shards must fulfil."""

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.identities.check import IdentityCheck, check
from ingest.identities.definition import CallOperands
from ingest.identities.difference import shape_of_difference
from ingest.identities.gradients import parameter_gradients
from ingest.identities.operands import ShardPlace, gathered, shard_place
from ingest.identities.operators import expectations, plain_name

# Definitions hold for what was computed, and fail where one element, row or block is not what they say.


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


# What modules of PyTorch compute holds by its definition, forward and backward.


torch: Any = pytest.importorskip("torch")


def convolutions(kind: str) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """Yield modules with shapes that they may be given, in many ways to go along the axes."""
    rng = np.random.default_rng(0)
    for axes in (1, 2, 3):
        for kernel, stride, dilation, padding, groups in (
            *((3, 1, 1, 1, 1), (3, 2, 1, 1, 1), (1, 2, 1, 0, 1), (4, 4, 1, 0, 1), (3, 1, 1, 1, 4)),
            *((3, 1, 2, 2, 2), (5, 2, 1, 2, 1), (4, 2, 1, 1, 1)),
        ):
            made = getattr(torch.nn, f"{kind}{axes}d")(
                4, 8, kernel, stride, padding, groups=groups, dilation=dilation, bias=axes != 2
            )
            yield made, (2, 4, *rng.integers(7, 10, axes).tolist())


def one(x: Any, _: Any) -> tuple[Any, ...]:
    return (x,)


def both(x: Any, y: Any) -> tuple[Any, ...]:
    return x, y


#: Functions, and what they are given of two tensors.
_FUNCTIONS: dict[str, tuple[Callable[..., tuple[Any, ...]], Callable[..., Any]]] = {
    "Functional.leaky_relu": (one, lambda x: torch.nn.functional.leaky_relu(x, 0.2)),
    "Functional.elu": (one, torch.nn.functional.elu),
    "Functional.softplus": (one, torch.nn.functional.softplus),
    "Functional.hardswish": (one, torch.nn.functional.hardswish),
    "Functional.hardsigmoid": (one, torch.nn.functional.hardsigmoid),
    "Functional.normalize": (one, torch.nn.functional.normalize),
    "Torch.expm1": (one, torch.expm1),
    "Torch.log1p": (lambda x, _: (x.abs(),), torch.log1p),
    "Tensor.pow": (one, lambda x: x.pow(3)),
    "Torch.clamp": (one, lambda x: x.clamp(-0.5, 1.5)),
    "Torch.lerp": (both, lambda x, y: torch.lerp(x, y, 0.25)),
    "Torch.max": (both, torch.maximum),
    "Torch.mv": (lambda x, y: (x, y[0]), torch.mv),
    "Torch.lt": (both, torch.lt),
    "Functional.mse_loss": (both, torch.nn.functional.mse_loss),
    "Functional.l1_loss": (both, lambda x, y: torch.nn.functional.l1_loss(x, y, reduction="none")),
}


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_functions_of_pytorch_hold_by_their_definitions(name: str, dtype: Any) -> None:
    torch.manual_seed(0)
    narrow = torch.bfloat16 if dtype is BFLOAT16 else torch.float32
    choose, function = _FUNCTIONS[name]
    given = choose(*(torch.randn(24, 16).to(narrow) for _ in range(2)))
    out = function(*given)
    result = out.numpy() if out.dtype is torch.bool else out.float().numpy().astype(dtype)
    arrays = [each.float().numpy().astype(dtype) for each in given]
    assert checked(name, arrays, result).status == "holds"
    wrong = result.copy()
    middle = wrong.argsort(axis=None)[wrong.size // 2]  # bounds are those of the output
    wrong.flat[middle] = not wrong.flat[middle] if wrong.dtype == bool else wrong.flat[middle] * 1.25 + 0.0625
    assert checked(name, arrays, wrong).status != "holds"


@pytest.mark.parametrize("mode", ["reflect", "circular", "replicate"])
def test_what_is_padded_by_other_elements_holds(mode: str) -> None:
    torch.manual_seed(0)
    for axes, padding in ((1, "same"), (2, 1), (3, 1)):
        module = getattr(torch.nn, f"Conv{axes}d")(4, 8, 3, padding=padding, padding_mode=mode)
        x = torch.randn(2, 4, *[8] * axes)
        given = [x.numpy(), module.weight.detach().numpy(), module.bias.detach().numpy()]
        assert checked(f"conv{axes}d", given, module(x).detach().numpy()).status == "holds"


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_convolutions_and_the_gradients_of_their_kernels_hold(kind: str) -> None:
    torch.manual_seed(0)
    for module, shape in convolutions(kind):
        x = torch.randn(shape)
        out = module(x)
        passed = torch.randn(out.shape)
        out.backward(passed)
        named = {name: each.detach().numpy() for name, each in module.named_parameters()}
        name = type(module).__name__
        result = out.detach().numpy()
        assert checked(name, [x.numpy()], result, **named).status == "holds", (module, shape)
        result.flat[result.size // 2] += 1
        assert checked(name, [x.numpy()], result, **named).status == "fails", (module, shape)
        for parameter, values in module.named_parameters():
            made = parameter_gradients(
                plain_name(name), parameter, x.numpy(), passed.numpy(), tuple(values.shape)
            )
            assert values.grad is not None
            found = check(values.grad.numpy(), ((each, False) for each in made))
            assert found.status == "holds", (module, shape, parameter)


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.GroupNorm(4, 8),
        torch.nn.GroupNorm(1, 8, eps=1e-3),
        torch.nn.InstanceNorm2d(8, affine=True),
        torch.nn.BatchNorm2d(8),
    ],
    ids=lambda module: type(module).__name__,
)
def test_norms_over_channels_hold(module: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 8, 5, 5) * 3 + 1
    named = {name: torch.randn_like(each) for name, each in module.named_parameters()}
    module.load_state_dict(named, strict=False)
    given = {name: each.numpy() for name, each in named.items()}
    out = module(x).detach().numpy()
    assert checked(type(module).__name__, [x.numpy()], out, **given).status == "holds"
    out[1, 3, 2, 2] += 1
    found = checked(type(module).__name__, [x.numpy()], out, **given)
    assert found.status == "fails"
    assert found.difference is not None
    assert found.difference.where == "element"


@pytest.mark.parametrize("kind", ["linear", "conv1d"])
def test_sums_may_begin_with_a_bias_that_is_larger_than_all_products(kind: str) -> None:
    """As in the head of a detector, whose bias is a prior: each partial sum is rounded at its size."""
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(shape).astype(np.float32) * 0.05 for shape in ((64, 96), (8, 96)))
    bias = np.full(8, -4.6, np.float32)
    total = np.broadcast_to(bias, (64, 8)).copy()
    for place in range(96):
        total += np.outer(x[:, place], weight[:, place]).astype(np.float32)
    if kind == "conv1d":
        found = checked("conv1d", [x[..., None], weight[..., None], bias], total[..., None])
    else:
        found = checked("linear", [x, weight, bias], total)
    assert found.status == "holds"


def test_a_convolution_under_autocast_rounds_what_it_multiplies() -> None:
    torch.manual_seed(0)
    module, x = torch.nn.Conv2d(4, 8, 3, padding=1), torch.randn(2, 4, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x)
    result = out.detach().float().numpy().astype(ml_dtypes.bfloat16)
    named = {name: each.detach().numpy() for name, each in module.named_parameters()}
    assert checked("Conv2d", [x.numpy()], result, **named).status == "holds"
    result.flat[5] += 1
    assert checked("Conv2d", [x.numpy()], result, **named).status == "fails"


# The shape of a difference: where it lies, and what turns one tensor into the other.


def tensor(shape: tuple[int, ...] = (48, 32), dtype: Any = np.float32) -> Array:
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def changed(change: Callable[[Array], Any], dtype: Any = np.float32) -> tuple[Array, Array]:
    a = tensor(dtype=dtype)
    b = a.copy()
    return a, b if (result := change(b)) is None else result.astype(dtype)


def scale_row(b: Array) -> None:
    b[5] *= 2


def garble(*places: Any) -> Callable[[Array], None]:
    def change(b: Array) -> None:
        for place in places:
            b[place] = np.random.default_rng(1).normal(size=b[place].shape)

    return change


def shuffle(b: Array) -> Array:
    return np.random.default_rng(2).permutation(b.reshape(-1)).reshape(b.shape)


@pytest.mark.parametrize(
    ("change", "where", "how", "axis", "value"),
    [
        (lambda b: b, "nowhere", "equal", None, None),
        (garble((3, 4)), "element", "other", None, None),
        (garble(7), "row", "other", 0, None),
        (garble((slice(None), 7)), "row", "other", 1, None),
        (garble(3, 17, 40), "rows", "other", 0, None),
        (garble((slice(16, 32), slice(0, 16))), "block", "other", None, None),
        (garble((slice(None), slice(None))), "everywhere", "other", None, None),
        (garble((np.arange(0, 48, 2), slice(None))), "scattered", "other", None, None),
        (garble((np.arange(0, 48, 5), np.arange(0, 30, 3))), "scattered", "other", None, None),
        (scale_row, "row", "factor", 0, 2.0),
        (lambda b: b * 4, "everywhere", "factor", None, 4.0),
        (lambda b: b / 3, "everywhere", "factor", None, 1 / 3),
        (lambda b: b + 1000, "everywhere", "offset", None, 1000.0),
        (lambda b: -b, "everywhere", "sign", None, None),
        (lambda b: b * 0, "everywhere", "zero", None, None),
        (lambda b: b * np.nan, "everywhere", "not finite", None, None),
        (lambda b: np.roll(b, 2, axis=0), "everywhere", "shift", 0, 2),
        (lambda b: np.concatenate([b[1:], b[:1] * 3]), "everywhere", "shift", 0, -1),
        (lambda b: np.roll(b, -3, axis=1), "everywhere", "shift", 1, -3),
        (lambda b: b[np.random.default_rng(3).permutation(48)], "everywhere", "permutation", 0, None),
        (shuffle, "everywhere", "permutation", None, None),
        (lambda b: np.nextafter(b, np.float32(9)), "everywhere", "rounding", None, None),
    ],
)
def test_each_change_has_its_shape(
    change: Callable[[Array], Any], where: str, how: str, axis: int | None, value: float | None
) -> None:
    difference = shape_of_difference(*changed(change))
    assert (difference.where, difference.how, difference.axis) == (where, how, axis)
    assert difference.value == (None if value is None else pytest.approx(value, rel=1e-5))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, np.int64])
@given(data=st.data())
def test_a_flipped_bit_is_found(dtype: Any, data: st.DataObject) -> None:
    a = (tensor() * 100).astype(dtype)
    bits = a.dtype.itemsize * 8
    bit, place = data.draw(st.integers(0, bits - 1)), data.draw(st.integers(0, a.size - 1))
    b = a.copy()
    b.view(f"u{a.dtype.itemsize}").reshape(-1)[place] ^= np.array(1 << bit, f"u{a.dtype.itemsize}")
    difference = shape_of_difference(a, b)
    assert (difference.where, difference.how, difference.value) == ("element", "bit", bit)
    assert str(difference).endswith(f": bit {bit}")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
def test_a_factor_is_told_within_the_rounding_of_the_type(dtype: Any) -> None:
    a = tensor(dtype=dtype)
    difference = shape_of_difference(a, (a.astype(np.float64) / 3).astype(dtype))
    assert difference.how == "factor"
    assert difference.value == pytest.approx(1 / 3, rel=1e-2)


def test_what_is_within_the_limit_does_not_count() -> None:
    a, b = changed(garble((3, 4)))
    b += np.float32(1e-6)
    assert not shape_of_difference(a, a + np.float32(1e-6), 1e-5)
    assert shape_of_difference(a, b, np.full(a.shape, 1e-5)).where == "element"


def test_scalars_nan_and_other_types_have_a_shape_too() -> None:
    nan = np.array([1.0, np.nan])
    assert not shape_of_difference(nan, nan.copy())
    assert shape_of_difference(np.array(True), np.array(False)).elements == 1
    assert shape_of_difference(np.array(2.5), np.array(3.5)).where == "element"
    assert shape_of_difference(np.array([1 + 2j, 3]), np.array([1 + 2j, 4])).where == "element"
    with pytest.raises(ValueError, match="float64"):
        shape_of_difference(nan, nan.astype(np.float32))


# Shards of parameters are put together as the modules that gather them have them.


WHOLE = np.arange(7 * 6).reshape(7, 6)


def place(placements: list[str], *at: int) -> ShardPlace:
    told = shard_place({"tensor": {"placements": placements, "mesh_coordinate": [*at]}})
    assert told is not None
    return told


@pytest.mark.parametrize(
    ("placements", "along", "shape"),
    [
        (["Shard(0)", "Shard(1)"], (1, 0), (7, 6)),
        (["Shard(0)", "Shard(1)"], (0,), (7, 3)),
        (["Shard(0)", "Shard(0)"], (1, 0), (7, 6)),
        (["_StridedShard(0)", "Shard(0)"], (0, 1), (7, 6)),
        (["_StridedShard(0)", "Shard(0)"], (0,), (4, 6)),
        (["Replicate()", "Shard(dim=0)"], (1,), (7, 6)),
        (["Shard(0)", "Shard(1)"], (), (4, 3)),
    ],
)
def test_shards_are_gathered_along_dimensions_of_the_mesh(
    placements: list[str], along: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    """Of a mesh of 2 x 2; the first shard of an axis is the longer one."""
    shards = {}
    for at in np.ndindex(2, 2):
        part = WHOLE
        outer_first = [1, 0] if placements[0].startswith("_") else [0, 1]
        for number in outer_first:
            if "Shard" in placements[number]:
                axis = int(placements[number].removesuffix(")")[-1])
                part = np.array_split(part, 2, axis)[at[number]]
        shards[place(placements, *at)] = part
    for own, held in shards.items():
        found = gathered(own, shards, along)
        assert found is not None
        value, cut = found
        np.testing.assert_array_equal(value[cut.own], held)
        if len(along) == len(own.cuts):
            np.testing.assert_array_equal(value, WHOLE)
    first = gathered(place(placements, 0, 0), shards, along)
    assert first is not None
    assert first[0].shape == first[1].shape == shape
    assert place(placements, 0, 0).kept(along) == (0,) * (len(own.cuts) - len(along))
    assert set(own.ways()) >= {along, ()}


def test_what_is_missing_or_not_told_is_not_gathered() -> None:
    own = place(["Shard(0)"], 0)
    assert gathered(own, {own: WHOLE, place(["Shard(0)"], 2): WHOLE}, (0,)) is None
    assert gathered(own, {own: WHOLE, place(["Shard(0)"], 1): WHOLE[:, :2]}, (0,)) is None
    assert shard_place({}) is None
    assert shard_place({"tensor": {"placements": ["Replicate()"], "mesh_coordinate": [0]}}) is None
    assert shard_place({"tensor": {"placements": ["Shard(0)"], "mesh_coordinate": []}}) is None
