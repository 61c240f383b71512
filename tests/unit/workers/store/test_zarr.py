"""A store is plain Zarr, also for other libraries."""

import math
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore
import zarr
from zarr.core.dtype import get_data_type_from_json, get_data_type_from_native_dtype

from ingest.api import open_store
from ingest.reader.step import Step
from tests import checker
from tests.device_writer import FORMATS_2D, FORMATS_3D, MATRICES, write
from tests.dump_data_writer import DATA_TYPES, FORMAT_CODES, Tensor, dump_data
from tests.stores import SMALL_GRID, MadeDump, ingest_directly, npy_header, tensor_name
from workers.arrays.device_format import DeviceLayout
from workers.arrays.dtypes import FLOAT8
from workers.store.model import Grid
from workers.store.zarr_dtypes import TYPES, BFloat16

# bfloat16 and float8 in zarr-python: ordinary data types.


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: TensorStore has float8_e4m3fn and zarrs float8_e4m3, which differ in their largest numbers.
TENSORSTORE_LACKS = "float8_e4m3"
ZARRS_LACKS = "float8_e4m3fn"
ALL = np.arange(2**16, dtype=np.uint16).view(BFLOAT16)


@pytest.mark.skipif(
    zarr.__version__.startswith("3.1."), reason="zarr 3.1 loads no entry points of data types"
)
def test_zarr_finds_the_type_by_the_entry_point_alone() -> None:
    """Whoever has only zarr and this package installed reads bfloat16 without knowing of it."""
    code = (
        "import numpy, ml_dtypes; from zarr.core.dtype import get_data_type_from_native_dtype as find;"
        "print(type(find(numpy.dtype(ml_dtypes.bfloat16))).__name__)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "BFloat16\n"


def test_every_extended_type_is_registered() -> None:
    by_name = {cls._zarr_v3_name: cls for cls in TYPES}
    assert set(by_name) == {"bfloat16", *FLOAT8}
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["zarr.data_type"]
    assert {name: EntryPoint(name, value, "").load() for name, value in points.items()} == by_name


def test_array_written_by_zarr_is_read_by_tensorstore(tmp_path: Path) -> None:
    # Without `write_empty_chunks`, zarr compares all elements with the fill value, and numpy warns of NaNs.
    array = zarr.create_array(
        tmp_path / "a", shape=ALL.shape, dtype=BFLOAT16, chunks=(1000,), config={"write_empty_chunks": True}
    )
    array[:] = ALL
    assert np.asarray(zarr.open_array(tmp_path / "a")[:]).tobytes() == ALL.tobytes()
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "a")}}
    assert tensorstore.open(spec).result().read().result().tobytes() == ALL.tobytes()


def test_array_written_by_tensorstore_is_read_by_zarr(tmp_path: Path) -> None:
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(tmp_path / "a")},
        "metadata": {"shape": list(ALL.shape), "data_type": "bfloat16"},
    }
    tensorstore.open(spec, create=True).result().write(ALL).result()
    found = zarr.open_array(tmp_path / "a")
    assert found.dtype == BFLOAT16
    assert np.asarray(found[:]).tobytes() == ALL.tobytes()


@pytest.mark.parametrize(
    ("json", "value"),
    [
        (1.5, 1.5),
        (0, 0.0),
        ("NaN", math.nan),
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        ("0x7fc0", math.nan),
        ("0x3fc0", 1.5),
    ],
)
def test_fill_values(json: Any, value: float, tmp_path: Path) -> None:
    found = BFloat16().from_json_scalar(json, zarr_format=3)
    assert found.dtype == BFLOAT16
    assert float(found) == pytest.approx(value, nan_ok=True)
    array = zarr.create_array(tmp_path / "a", shape=(2,), dtype=BFLOAT16, fill_value=value)
    assert np.asarray(array[:]).astype(float).tolist() == pytest.approx([value] * 2, nan_ok=True)
    again = zarr.open_array(tmp_path / "a")
    assert float(again.fill_value) == pytest.approx(value, nan_ok=True)


def test_big_endian_array_is_read(tmp_path: Path) -> None:
    values = ALL[:64]
    array = zarr.create_array(
        tmp_path / "a",
        shape=(64,),
        dtype=BFLOAT16,
        serializer={"name": "bytes", "configuration": {"endian": "big"}},
    )
    array[:] = values
    assert np.asarray(zarr.open_array(tmp_path / "a")[:]).tobytes() == values.tobytes()
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "a")}}
    assert tensorstore.open(spec).result().read().result().tobytes() == values.tobytes()


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F81, 0x8000, 0x0001, 0xFF80])
def test_fill_value_keeps_its_bits(bits: int) -> None:
    scalar = np.array(bits, np.uint16).view(BFLOAT16)[()]
    json = BFloat16().to_json_scalar(scalar, zarr_format=3)
    assert np.array(BFloat16().from_json_scalar(json, zarr_format=3)).view(np.uint16) == bits


def write_float8(path: Path, name: str, *, fill_value: Any = 0x3A) -> bytes:
    """Write all codes with zarr-python; return what reading must give, filled up at the end."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    codes = np.arange(256, dtype=np.uint8)
    array = zarr.create_array(
        path,
        shape=(300,),
        dtype=dtype,
        chunks=(64,),
        fill_value=np.array(fill_value, np.uint8).view(dtype)[()],
        config={"write_empty_chunks": True},
    )
    array[:256] = codes.view(dtype)
    return codes.tobytes() + bytes([fill_value]) * 44


@pytest.mark.parametrize("name", FLOAT8)
def test_float8_comes_back_from_zarr(name: str, tmp_path: Path) -> None:
    written = write_float8(tmp_path / "a", name)
    found = zarr.open_array(tmp_path / "a")
    assert found.dtype == np.dtype(getattr(ml_dtypes, name))
    assert np.asarray(found[:]).tobytes() == written
    assert type(get_data_type_from_native_dtype(found.dtype))._zarr_v3_name == name


@pytest.mark.parametrize("name", sorted({*FLOAT8} - {TENSORSTORE_LACKS}))
def test_float8_goes_to_tensorstore_and_back(name: str, tmp_path: Path) -> None:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "a")}}
    written = write_float8(tmp_path / "a", name)
    store = tensorstore.open(spec).result()
    assert store.read().result().tobytes() == written
    reverse = np.frombuffer(written, getattr(ml_dtypes, name))[::-1]
    store.write(reverse).result()
    assert np.asarray(zarr.open_array(tmp_path / "a")[:]).tobytes() == reverse.tobytes()


@pytest.mark.parametrize("name", sorted({*FLOAT8, "bfloat16"} - {ZARRS_LACKS}))
def test_float8_is_read_by_zarrs(name: str, tmp_path: Path) -> None:
    """By zarrs itself: it warns where it leaves an array to zarr-python."""
    if name == "bfloat16":
        array = zarr.create_array(tmp_path / "a", shape=(64,), dtype=BFLOAT16, chunks=(16,))
        array[:] = ALL[:64]
        written = ALL[:64].tobytes()
    else:
        written = write_float8(tmp_path / "a", name)
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.asarray(zarr.open_array(tmp_path / "a")[:]).tobytes() == written


@pytest.mark.parametrize(
    ("name", "json", "bits"),
    [
        ("float8_e4m3fn", 1.5, 0x3C),
        ("float8_e4m3fn", "NaN", 0x7F),
        ("float8_e5m2", "-Infinity", 0xFC),
        ("float8_e5m2", "0xfe", 0xFE),
        ("float8_e5m2fnuz", "NaN", 0x80),
        ("float8_e8m0fnu", 1.0, 127),
        ("float8_e8m0fnu", "NaN", 255),
        ("float8_e8m0fnu", "0x00", 0),
    ],
)
def test_float8_fill_values(name: str, json: Any, bits: int) -> None:
    data_type = get_data_type_from_json(name, zarr_format=3)
    found = data_type.from_json_scalar(json, zarr_format=3)
    assert np.array(found).view(np.uint8) == bits
    assert data_type.to_json_scalar(found, zarr_format=3) == f"0x{bits:02x}"


@pytest.mark.parametrize(
    ("name", "json"),
    [
        ("float8_e4m3fn", "Infinity"),
        ("float8_e8m0fnu", "-Infinity"),
        ("float8_e5m2", "0x100"),
        ("bfloat16", "0x-1"),
        ("float8_e5m2", "many"),
    ],
)
def test_what_a_type_cannot_hold_is_a_value_error(name: str, json: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        get_data_type_from_json(name, zarr_format=3).from_json_scalar(json, zarr_format=3)


# A store is plain Zarr: other libraries read all of it, each compared with numpy.


DTYPES: list[Any] = [
    *(f"{order}{kind}" for kind in ("i2", "u4", "i8", "f2", "f4", "f8") for order in "<>"),
    *("<c8", "<c16", "|b1", "|i1", "|u1", ml_dtypes.bfloat16),
]


@pytest.fixture
def url(made: MadeDump, store: Path) -> str:
    """A store with every type, in arrays of several shards, with copies, gaps and files."""
    rng = np.random.default_rng(0)
    for number, dtype in enumerate(DTYPES):
        for slot in range(4):
            values = (rng.normal(size=(5, 7)) * 9).astype(np.float32).astype(dtype)
            made.add(values, tensor_name(f"Op{number}.x", slot=slot, time=number * 10 + slot))
            made.add(values, tensor_name(f"Op{number}.copy", slot=slot, time=number * 10 + slot))
    made.add(
        npy_header("<U3", (4,)) + np.array(["a", "äöü", "", "€"], "<U3").tobytes(), tensor_name("Text.x")
    )
    made.add("Grüße".encode(), "notes.txt")
    ingest_directly(made.root, store, SMALL_GRID)
    return str(store)


@pytest.fixture
def step(url: str) -> Step:
    return open_store(url).step(0, 0)


@pytest.fixture(params=["zarr-python", "zarrs"])
def _pipeline(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "zarrs":
        with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
            yield
    else:
        yield


def native(values: np.ndarray[Any, Any]) -> bytes:
    """Return the bytes in the byte order of this machine."""
    return values.astype(values.dtype.newbyteorder("=")).tobytes()


@pytest.mark.usefixtures("_pipeline")
def test_zarr_reads_every_tensor(url: str, step: Step) -> None:
    group = zarr.open_group(f"{url}/{step.key.path}", mode="r")
    offset, size = step.tables.number("offset"), step.tables.number("size")
    tensors = step.tensors()
    assert len(tensors) == 8 * len(DTYPES) + 1
    for tensor in tensors:
        array = group[f"{step.fingerprint}/{step.tables.label('array')[tensor.row]}"]
        assert isinstance(array, zarr.Array)
        stored = np.asarray(array[offset[tensor.row] : offset[tensor.row] + size[tensor.row]])
        values = tensor.read()
        wanted = values.tobytes() if stored.dtype == np.uint8 else native(values)
        assert stored.tobytes() == wanted


def test_tensorstore_reads_every_tensor(url: str, step: Step) -> None:
    offset, size, labels = (
        step.tables.number("offset"),
        step.tables.number("size"),
        step.tables.label("array"),
    )
    arrays = {}
    for path in set(labels):
        spec = {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": f"{url}/{step.commit.prefix}/{path}"},
        }
        arrays[path] = tensorstore.open(spec).result()
        assert arrays[path].domain.labels == (f"{path.rsplit('/', 1)[-1]}_element",)
    for tensor in step.tensors():
        array = arrays[labels[tensor.row]]
        stored = array[offset[tensor.row] : offset[tensor.row] + size[tensor.row]].read().result()
        values = tensor.read()
        assert stored.tobytes() == (values.tobytes() if stored.dtype == np.uint8 else native(values))


@pytest.mark.parametrize("path", ["index/numbers", "index/shape", "index/digest", "statistics"])
def test_tensorstore_reads_the_tables_of_numbers(path: str, url: str, step: Step) -> None:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{url}/{step.commit.prefix}/{path}"}}
    stored = tensorstore.open(spec).result().read().result()
    np.testing.assert_array_equal(stored, getattr(step.tables, path.rsplit("/", 1)[-1]))


#: Formats, host shapes and groups: all lengths have a rest, so that there is padding where there can be.
LAYOUTS = [
    *((name, (18, 3, 3, 2), 1) for name in FORMATS_2D),
    *((name, (18, 5, 2, 3, 2), 1) for name in FORMATS_3D),
    *((name, (2, 20, 35), 1) for name in MATRICES),
    ("FRACTAL_Z", (18, 5, 3, 2), 3),
]


def as_dumped(values: np.ndarray[Any, Any], layout: DeviceLayout, shape: tuple[int, ...]) -> Tensor:
    groups = layout.groups if layout.groups > 1 else 0
    code = FORMAT_CODES[layout.format]
    return Tensor(values.tobytes(), DATA_TYPES["float16"], layout.shape, shape, code, groups)


@pytest.mark.parametrize("keep_device_layout", [False, True])
def test_files_in_device_layout_are_rebuilt_with_plain_zarr(
    keep_device_layout: bool, made: MadeDump, store: Path
) -> None:
    """By formulas written apart, whatever is stored; something in the padding keeps a tensor as it was."""
    directory = made.root / "20260101000000" / "3" / "Net" / "1" / "7"
    directory.mkdir(parents=True)
    wanted = {}
    for number, (name, shape, groups) in enumerate(LAYOUTS):
        host = np.random.default_rng(number).normal(size=shape).astype(np.float16)
        device, layout = write(host, name, groups=groups)
        dirty = device.copy()
        dirty[device == 0] = 1
        parts = [as_dumped(values, layout, shape) for values in (device, dirty)]
        file = directory / f"Op.of_{number}.5.2.{1_700_000_000_000_000 + number}"
        file.write_bytes(dump_data(parts[:1], parts))
        wanted[str(file.relative_to(made.root))] = (host, (device, dirty))

    (summary,) = ingest_directly(made.root, store, Grid(keep_device_layout=keep_device_layout))

    assert (summary.status, summary.tensors) == ("complete", 3 * len(LAYOUTS))
    checker.check(store, made.root)
    step = open_store(str(store)).step(3, 7)
    for tensor in step.tensors():
        host, devices = wanted[tensor.source]
        device = devices[tensor.io == "output" and tensor.slot == 1]
        is_clean = np.count_nonzero(device) == host.size
        stored = step.tables.label("layout")[tensor.row]
        assert stored == ("host" if is_clean and not keep_device_layout else "device")
        assert tensor.read().tobytes() == host.tobytes()
        assert tensor.read_device().tobytes() == device.tobytes()
        assert tensor.statistics.count == host.size
