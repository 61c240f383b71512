"""A store is plain Zarr: other libraries read all of it, each compared with numpy."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore
import zarr

from ingest.api import open_store
from ingest.reader.step import Step
from tests import checker
from tests.device_writer import FORMATS_2D, FORMATS_3D, MATRICES, write
from tests.dump_data_writer import DATA_TYPES, FORMAT_CODES, Tensor, dump_data
from tests.npy_files import MadeDump, npy_header, tensor_name
from tests.pipeline import SMALL_GRID, ingest_directly
from workers.arrays.device_format import DeviceLayout
from workers.store.model import Grid

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
