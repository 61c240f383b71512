"""One tensor: its elements, what is in them, and what a notebook or numpy makes of it."""

import shutil
import tracemalloc
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import ingest
from ingest.api import DumpStore, Tensor, open_store
from ingest.reader import xarray_engine
from ingest.reader.anatomy import (
    Anatomy,
    bit_difference,
    compare_bits,
    examine,
    keys_of,
    parse_index,
    percentiles,
    value_of,
    widened,
)
from ingest.reader.catalog import DamagedStepWarning
from ingest.reader.choice import format_ranges
from ingest.reader.text import MAX_NBYTES, html_table, printable, shortened, table_lines
from tests.counted_requests import CountedRequests
from tests.damages import only
from tests.stores import SMALL_GRID, MadeDump, Values, ingest_directly, numbers, plan_all, run, tensor_name
from workers.arrays.dtypes import from_name
from workers.arrays.statistics import summarise
from workers.errors import DamagedStore, UsageError
from workers.store.model import Grid

# One tensor: its elements as they were dumped, what the index knows of it, its neighbours.


def objects_of(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("c/**/*") if path.is_file())


def read_everything(store: Path) -> list[bytes]:
    return [tensor.read().tobytes() for tensor in open_store(str(store)).tensors()]


def damage_of(store: Path) -> str:
    """Return what reading everything says: it warns of a step without an index, and refuses a tensor."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", DamagedStepWarning)
        try:
            read_everything(store)
        except DamagedStore as exc:
            return str(exc)
    return "\n".join(str(warning.message) for warning in warned)


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove"])
@pytest.mark.usefixtures("filled")
def test_damage_is_named_and_never_read_as_zeros(damage: str, store: Path) -> None:
    """Whichever object of the step it is."""
    intact = read_everything(store)
    paths = [path for path in objects_of(store) if "step_9" in str(path) and "files" not in str(path)]
    assert len(paths) > 15
    for path in paths:
        content = path.read_bytes()
        match damage:
            case "flip":
                path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
            case "truncate":
                path.write_bytes(content[:-3])
            case "empty":
                path.write_bytes(b"")
            case _:
                path.unlink()
        relative = str(path.relative_to(store))
        table = relative.removesuffix("/c/0/0").split("/", 3)[-1]
        assert table in damage_of(store)
        path.write_bytes(content)
    assert read_everything(store) == intact


def test_old_generation_is_not_mixed_with_the_new(made: MadeDump, store: Path) -> None:
    """Whoever opened a step keeps reading what was committed then."""
    path = made.add(np.arange(5.0))
    ingest_directly(made.root, store)
    (old,) = open_store(str(store)).tensors()
    path.write_bytes(path.read_bytes()[:-8] + np.float64(7).tobytes())
    ingest_directly(made.root, store)
    (new,) = open_store(str(store)).tensors()
    assert old.read()[-1] == 4
    assert new.read()[-1] == 7


def test_one_tensor_is_at_most_two_requests_after_its_step_was_opened(
    many: Path, requests: CountedRequests
) -> None:
    step = open_store(many).step(3, 7)
    (tensor,) = step.tensors()
    assert requests.of(tensor.read) <= 2


@pytest.mark.parametrize("fortran", [False, True])
def test_indexing_is_that_of_numpy(made: MadeDump, store: Path, *, fortran: bool) -> None:
    values = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    made.add(np.asfortranarray(values) if fortran else values)
    ingest_directly(made.root, store)
    (tensor,) = open_store(store).tensors()
    for index in np.s_[1:3, 0, -1, :, ..., ::-1, 5:2, 2:0:-1, (1, 2), (slice(None), 1), (0, 1, -2), (..., 3)]:
        assert np.array_equal(tensor[index], values[index]), index
    assert np.array_equal(np.asarray(tensor), values)
    assert (len(tensor), bool(tensor)) == (3, True)
    with pytest.raises(IndexError):
        tensor[3]


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_payload_of_another_step_is_not_examined(order: Any, made: MadeDump, store: Path) -> None:
    for step in range(2):
        made.add(np.full((4, 5), step, "<f4", order=order), step=step)
    ingest_directly(made.root, store)
    assert open_store(store).tensors(step=0)[0].examine().elements == 20
    shutil.copy(*(only(store, f"rank_0/step_{step}/*/tensors/float32/c/0") for step in (1, 0)))
    with pytest.raises(DamagedStore, match="the digest does not match"):
        open_store(store).tensors(step=0)[0].examine()


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 5), (3, 2), (100, 200)])
def test_elements_beyond_a_tensor_are_refused(made: MadeDump, store: Path, start: int, stop: int) -> None:
    """The elements of another tensor lie behind them in the store."""
    for op in ("A.a", "B.b"):
        made.add(np.arange(4, dtype=np.float32), tensor_name(op))
    ingest_directly(made.root, store)
    tensor = open_store(store).tensors("A.*")[0]
    with pytest.raises(UsageError, match=f"from {start} to {stop}"):
        tensor.elements(start, stop)
    assert tensor.elements(0, 4).tolist() == [0, 1, 2, 3]
    assert [len(edge) for edge in tensor.edges(-1)] == [0, 0]


def test_elements_that_were_left_out_are_said_to_be(made: MadeDump, store: Path) -> None:
    made.add(numbers(1, 2))
    for plan in plan_all(made.root, store, leave_out_tensors="disk is full"):
        run(plan)
    (tensor,) = open_store(store).tensors()
    assert tensor.is_dumped
    assert "disk is full" in tensor.removed
    assert tensor.statistics.max == 2


# A tensor is used like an array of numpy, and reads what it needs.


VALUES = np.arange(60, dtype=np.float32).reshape(5, 3, 4)


def dumped(made: MadeDump, store: Path, values: Any, grid: Grid = SMALL_GRID) -> Tensor:
    made.add(values)
    ingest_directly(made.root, store, grid)
    (tensor,) = open_store(store).tensors()
    return tensor


def test_it_becomes_an_array(made: MadeDump, store: Path) -> None:
    tensor = dumped(made, store, VALUES)
    assert np.array_equal(np.asarray(tensor), VALUES)
    assert np.asarray(tensor, np.float64).dtype == np.float64
    assert (len(tensor), len(list(tensor)), bool(tensor)) == (5, 5, True)
    assert float(np.max(tensor)) == 59
    with pytest.raises(ValueError, match="copy=False is impossible"):
        np.array(tensor, copy=False)


# What is in a tensor: as numpy says it, in bounded memory.


PERCENTS = (0, 1, 12.5, 50, 99, 100)
TYPES = ["f2", "f4", "f8", "i1", "u1", "i4", "i8", "u8", "?", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]


def anatomy(values: np.ndarray[Any, Any], piece: int = 7, order: str = "C", **options: Any) -> Anatomy:
    """Examine an array in small pieces."""
    flat = values.reshape(-1, order="F" if order == "F" else "C")

    def pieces() -> Iterator[np.ndarray[Any, Any]]:
        return (flat[begin : begin + piece] for begin in range(0, flat.size, piece))

    return examine(pieces, values.shape, order=order, **{"percents": PERCENTS, **options})


@given(
    arrays.arrays(
        st.sampled_from(["f2", "f4", "f8", "i2", "i8", "u8"]),
        st.integers(1, 40),
        elements={"allow_nan": True},
    )
)
def test_percentiles_are_those_of_numpy(values: np.ndarray[Any, Any]) -> None:
    finite = values[np.isfinite(values)]
    answer = anatomy(values).percentiles
    if finite.size == 0:
        assert answer == {}
        return
    assert (answer[0], answer[100]) == (float(finite.min()), float(finite.max()))
    in_order = np.sort(finite)
    for part in PERCENTS:
        place = part / 100 * (len(in_order) - 1)
        low, high = float(in_order[int(np.floor(place))]), float(in_order[int(np.ceil(place))])
        share = place % 1
        expected = low if low == high else low * (1 - share) + high * share
        assert answer[part] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_examined(dtype: Any) -> None:
    values = np.arange(100).reshape(10, 10).astype(dtype)
    answer = anatomy(values)
    assert answer.elements == sum(answer.counts) == 100
    wide = values.astype(np.float64)
    assert answer.percentiles[50] == np.percentile(wide, 50)
    assert (answer.edges[0], answer.edges[-1]) == (wide.min(), wide.max())


def test_a_histogram_is_that_of_numpy() -> None:
    values = np.random.default_rng(1).normal(size=5000).astype(np.float32)
    counts, edges = np.histogram(values.astype(np.float64), 20)
    answer = anatomy(values, piece=999)
    assert answer.counts == tuple(counts.tolist())
    assert answer.edges == pytest.approx(edges.tolist(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("order", ["C", "F"])
def test_places_of_what_is_not_finite(order: str) -> None:
    values = np.ones((4, 3, 5), np.float32)
    values[2, 1, :] = np.nan
    values[3, 0, 4] = -np.inf
    answer = anatomy(values, order=order)
    assert (answer.nan, answer.pos_inf, answer.neg_inf) == (5, 0, 1)
    assert {element.index for element in answer.first} == {(3, 0, 4), *((2, 1, k) for k in range(5))}
    rows, channels, _ = answer.axes
    assert (rows.affected, rows.worst) == (2, ((2, 5), (3, 1)))
    assert channels.worst == ((1, 5), (0, 1))


@pytest.mark.parametrize("real", [1.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("imaginary", [1.0, np.inf, -np.inf, np.nan])
def test_complex_numbers_count_as_in_the_statistics(real: float, imaginary: float) -> None:
    """Such as inf - inf j, whose parts have no sum: `show` would contradict itself."""
    values = np.array([complex(real, imaginary)])
    halves = np.array([real, imaginary], np.float16).view(from_name("complex32").to_numpy())
    for array in (values, halves):
        answer, statistics = anatomy(array), summarise(array)
        assert (answer.nan, answer.pos_inf, answer.neg_inf) == (
            statistics.nan_count,
            statistics.pos_inf_count,
            statistics.neg_inf_count,
        )


def test_memory_does_not_grow_with_the_tensor() -> None:
    """64 MB pass by in pieces of 1 MB; the limit is that of the documentation."""
    piece = np.random.default_rng(2).normal(size=1 << 18).astype(np.float32)
    tracemalloc.start()
    try:
        examine(
            lambda: (piece for _ in range(64)), (64, 1 << 18), percents=(0, 1, 5, 25, 50, 75, 95, 99, 100)
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50_000_000


ODD_VALUES = np.arange(120).reshape(4, 5, 6)


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("1", 1),
        ("-1", -1),
        ("1:3,:", np.s_[1:3, :]),
        ("[0, 1, 2]", np.s_[0, 1, 2]),
        ("...,0", np.s_[..., 0]),
        ("::-1, ::2", np.s_[::-1, ::2]),
        (":100", np.s_[:100]),
    ],
)
def test_an_index_is_that_of_numpy(text: str, index: Any) -> None:
    assert np.array_equal(ODD_VALUES[parse_index(text, ODD_VALUES.shape)], ODD_VALUES[index])


@pytest.mark.parametrize("text", ["a", "1:2:0", "1,2,3,4", "4", "...,6", "...,...", "1:2:3:4", "1.5"])
def test_what_is_wrong_is_named(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_index(text, ODD_VALUES.shape)
    assert caught.value.hint


AnyValues = np.ndarray[Any, Any]


@given(
    arrays.arrays(
        st.sampled_from(["f4", "f8", "i8", "u8"]),
        st.integers(1, 30),
        elements={"allow_nan": False, "allow_infinity": False},
    )
)
def test_keys_sort_as_numbers_do_and_name_them(values: AnyValues) -> None:
    keys = keys_of(values)
    assert values[np.argsort(keys, kind="stable")].tolist() == np.sort(values).tolist()
    assert [value_of(int(key), values.dtype) for key in keys] == [float(value) for value in values]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_subnormal_numbers_and_both_zeros_have_their_place(dtype: str) -> None:
    tiny = np.nextafter(np.array(0, dtype), np.array(1, dtype))
    values = np.array([np.finfo(dtype).min, -1, -tiny, -0.0, 0.0, tiny, 1, np.finfo(dtype).max], dtype)
    keys = keys_of(values).tolist()
    assert keys == sorted(set(keys))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i2", "i8", "u8"])
def test_big_endian_numbers_keep_their_values(dtype: str) -> None:
    limits = np.finfo(dtype) if dtype.startswith("f") else np.iinfo(dtype)
    values = np.array([limits.min, 1, limits.max], dtype)
    assert widened(values.astype(f">{dtype}")).tobytes() == widened(values).tobytes()


class Reads:
    """Yields values in pieces, and counts how often they were read."""

    def __init__(self, values: AnyValues, piece: int) -> None:
        self.values, self.piece, self.passes = values, piece, 0

    def __call__(self) -> Iterable[AnyValues]:
        self.passes += 1
        return (self.values[at : at + self.piece] for at in range(0, len(self.values), self.piece))


@pytest.mark.parametrize(("dtype", "passes"), [("f4", 2), ("f8", 4), ("i8", 4), ("u8", 4)])
@pytest.mark.parametrize("piece", [1, 64, 1000])
def test_a_pass_for_each_16_bits_finds_what_numpy_finds(dtype: str, passes: int, piece: int) -> None:
    values = (np.random.default_rng(1).normal(size=300) * 1e6).astype("i8").astype(dtype)
    read = Reads(values, piece)
    answer = percentiles(read, len(values), values.dtype, [0, 25, 50, 99.9, 100])
    assert answer == pytest.approx(
        {percent: float(np.percentile(values.astype("f8"), percent)) for percent in answer}, rel=1e-12
    )
    assert read.passes == passes


# Which elements of two tensors differ, and in which bits.


BITS = np.arange(12, dtype="<f4").reshape(3, 4)


def ingested(made: MadeDump, store: Path, other: Values) -> tuple[Tensor, Tensor]:
    made.add(BITS, tensor_name("Mul.m", time=1), rank=0)
    made.add(other, tensor_name("Mul.m", time=1), rank=1)
    ingest_directly(made.root, store)
    return pair(open_store(store))


def pair(opened: DumpStore) -> tuple[Tensor, Tensor]:
    first, second = opened.tensors()
    return first, second


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_flipped_bit_has_its_index_in_the_order_of_the_axes(
    made: MadeDump, store: Path, order: str
) -> None:
    changed = BITS.copy()
    changed[2, 1] = -changed[2, 1]
    first, second = ingested(made, store, changed)
    if order == "F":  # the same elements, from files that numpy wrote column by column
        for rank in range(2):
            for path in made.root.glob(f"rank_{rank}/**/*.npy"):
                path.unlink()
        made.add(np.asfortranarray(BITS), tensor_name("Mul.m", time=1), rank=0)
        made.add(np.asfortranarray(changed), tensor_name("Mul.m", time=1), rank=1)
        ingest_directly(made.root, store.with_name("fortran.zarr"))
        first, second = pair(open_store(store.with_name("fortran.zarr")))
    answer = compare_bits(first, second)
    assert answer is not None
    assert [(element.index, element.bits) for element in answer.first] == [((2, 1), (31,))]


@pytest.mark.parametrize(
    "other",
    [BITS.astype("<f8"), BITS.reshape(4, 3), np.asfortranarray(BITS)],
    ids=["type", "shape", "order"],
)
def test_what_lies_differently_has_no_bits_in_common(
    made: MadeDump,
    store: Path,
    other: Values,
) -> None:
    assert compare_bits(*ingested(made, store, other)) is None


def test_zeros_of_both_signs_differ_and_equal_nan_do_not() -> None:
    first, second = np.array([0.0, np.nan]), np.array([-0.0, np.nan])
    answer = bit_difference([first], [second], (2,))
    assert [(element.index, element.bits) for element in answer.first] == [((0,), (63,))]


@pytest.mark.parametrize("orders", ["<>", "><", ">>"])
def test_bits_are_those_of_the_number_whatever_the_order_of_its_bytes(orders: str) -> None:
    first = np.array([1, 2], f"{orders[0]}i4")
    second = np.array([1, 2 + (1 << 20)], f"{orders[1]}i4")
    answer = bit_difference([first], [second], (2,))
    assert [(element.index, element.bits) for element in answer.first] == [((1,), (20,))]


# A store as a dataset of xarray.


LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def opened(store: Path, **options: Any) -> xr.Dataset:
    return xr.open_dataset(store, engine="dump-ingest", **options)


def test_every_tensor_of_a_step_is_a_variable(nan_log: Path) -> None:
    dataset = opened(nan_log, rank=1, step=2)
    tensors = ingest.open_store(nan_log).tensors(rank=1, step=2)
    assert list(dataset) == [tensor.name for tensor in tensors]  # in order of execution
    for tensor in tensors:
        variable = dataset[tensor.name]
        assert variable.dims == tuple(f"d{axis}_{n}" for axis, n in enumerate(tensor.shape))
        assert variable.attrs["digest"] == tensor.digest
        assert variable.values.tobytes() == tensor.read().tobytes()
    assert (dataset.attrs["rank"], dataset.attrs["step"], dataset.attrs["status"]) == (1, 2, "complete")


@pytest.mark.parametrize("key", [(slice(2, 5), 3), (-1, slice(None, None, -2)), ([4, 1], [0, 3]), (..., 0)])
def test_parts_are_those_of_numpy(made: MadeDump, store: Path, key: Any) -> None:
    values = np.arange(60, dtype=np.float32).reshape(6, 10)
    made.add(np.asfortranarray(values))
    ingest_directly(made.root, store)
    (variable,) = opened(store, rank=0, step=0).values()
    index = {
        f"d{axis}_{n}": k for axis, (n, k) in enumerate(zip(values.shape, key, strict=True)) if k is not ...
    }
    expected = values[np.ix_(*key)] if isinstance(key[0], list) else values[key]
    assert np.array_equal(variable.isel(index).values, expected)


def test_a_part_reads_no_more_than_it_needs(made: MadeDump, store: Path, requests: CountedRequests) -> None:
    made.add(np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32))
    ingest_directly(made.root, store, Grid(chunk_nbytes=64 * 1024))
    (lazy,) = opened(store, rank=0, step=0).values()
    dask = lazy.chunk({"d0_1024": 128})
    requests.clear()
    assert lazy[500, 7].values.dtype == np.float32
    assert sum(requests.range_nbytes) < 150_000  # the index of the shard, and one chunk
    requests.clear()
    assert dask[:128].mean().compute().dtype == np.float32
    assert 0 < sum(requests.range_nbytes) < 700_000


def test_bfloat16_is_written_on_as_it_is(made: MadeDump, store: Path, tmp_path: Path) -> None:
    made.add(np.arange(8).astype(ml_dtypes.bfloat16))
    ingest_directly(made.root, store)
    dataset = opened(store, rank=0, step=0)
    dataset.to_zarr(tmp_path / "copy.zarr", consolidated=False)
    (copy,) = xr.open_zarr(tmp_path / "copy.zarr", consolidated=False).values()
    assert copy.dtype == ml_dtypes.bfloat16
    assert copy.values.tobytes() == next(iter(dataset.values())).values.tobytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1}, "`rank` is given and `step` is not"),
        ({"step": 1}, "`step` is given and `rank` is not"),
        ({"rank": 9, "step": 1}, "rank 9 step 1 is not in the store"),
        ({"rank": "a", "step": 1}, "'a' is not a rank or a step"),
        ({}, "no consolidated view"),
        ({"storage_options": {"secret": "x"}}, "looks like a credential"),
    ],
)
def test_a_wrong_request_says_what_to_give(nan_log: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        opened(nan_log, **options)
    assert raised.value.hint


def test_a_partial_step_is_refused_unless_it_is_asked_for(made: MadeDump, store: Path) -> None:
    made.add(np.zeros(4, np.float32), tensor_name("A.a"))
    made.add(b"\x93NUMPY, but no more", tensor_name("B.b"))
    ingest_directly(made.root, store)
    with pytest.raises(UsageError, match="rank 0 step 0 is partial: 1 file quarantined"):
        opened(store, rank=0, step=0)
    assert list(opened(store, rank=0, step=0, include_partial=True)) == ["A.a.output.0"]


def test_step_with_many_tensors_needs_a_name(nan_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook would show each of its variables: 24 MB for 5000."""
    monkeypatch.setattr(xarray_engine, "MAX_VARIABLES", 100)
    with pytest.raises(UsageError, match=r"rank 1 step 2 has 243 tensors.*\n.*name=.\*Log\*"):
        opened(nan_log, rank=1, step=2)
    assert list(opened(nan_log, rank=1, step=2, name="Log.*output.0")) == [LOG]
    assert list(opened(nan_log, rank=1, step=2, name=LOG)) == [LOG]
    assert len(opened(nan_log, rank=1, step=2, name="*")) == 243
    with pytest.raises(UsageError, match="no tensor is named 'log'"):
        opened(nan_log, rank=1, step=2, name="log")
    with pytest.raises(UsageError, match="`name` is given without `rank` and `step`"):
        opened(nan_log, name="*")


# What a notebook shows is small and safe, whatever a dump calls its tensors.


HOSTILE = "<script>alert('x')</script>\x1b[2J\u202e" * 50


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_table_has_a_bound(rows: int) -> None:
    table = html_table(HOSTILE, [HOSTILE] * 9, ([HOSTILE] * 9 for _ in range(rows)), total=rows)
    assert len(table.encode()) <= MAX_NBYTES
    assert rows < 1000 or f"{rows - table.count('<tr>') + 1} more" in table


def test_store_steps_and_tensors_have_tables(filled: DumpStore) -> None:
    """Without reading any elements."""
    tensors, steps = filled.tensors(), filled.select()
    shown = [value._repr_html_() for value in (filled, tensors, steps, tensors[0], steps[0])]
    assert all(0 < len(page) <= MAX_NBYTES and "<td" in page for page in shown)
    assert "ranks" in shown[0]
    assert "40 tensors" in shown[1]
    assert "20 more" in shown[1]


# Text of values from dumps.


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    lines = table_lines(("name", "NaN"), [("a", "1"), ("longer\x1b", "200")], right=("NaN",))
    assert list(lines) == ["name        NaN", "a             1", "longer\\x1b  200"]


@given(st.text())
def test_printable_text_has_nothing_that_a_terminal_would_obey(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


def test_short_names_differ_where_names_do() -> None:
    names = [f"Net_{'layer' * 20}-{number}-{'block' * 20}.output.0" for number in range(30)]
    names += ["short", names[0], "a" * 200, "a" * 201]
    short = shortened(names, 40)
    assert len(set(short)) == len(set(names))
    assert all(len(text) <= 40 for text in short)
    assert (short[30], short[31]) == ("short", short[0])
    assert shortened([], 40) == []


# Ranges of numbers are written shortly, and without losing one.


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], "none"), ([7], "7"), ([3, 1, 2], "1-3"), ({0, 1, 2, 7, 9, 10}, "0-2, 7, 9-10"), ([-1, 0], "-1-0")],
)
def test_neighbours_become_a_range(numbers: list[int], text: str) -> None:
    assert format_ranges(numbers) == text


@given(st.sets(st.integers(0, 50)))
def test_ranges_hold_exactly_the_numbers(numbers: set[int]) -> None:
    text = format_ranges(numbers)
    held: set[int] = set()
    for part in [] if text == "none" else text.split(", "):
        first, _, last = part.partition("-")
        held |= set(range(int(first), int(last or first) + 1))
    assert held == numbers
