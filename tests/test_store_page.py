"""docs/store.md is enough to read a store: a reader that was written from it uses nothing of this project."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.layouts.detect import find_dump
from tests import checker
from tests.device_writer import FORMATS_2D, FORMATS_3D, MATRICES, write
from tests.dump_data_writer import DATA_TYPES, FORMAT_CODES, Tensor, dump_data
from tests.plain_reader import functions_of_the_page
from tests.pools import PooledRun, replicas, small_pools
from tests.stores import DATA, DumpLibrary, MadeDump, ingest_directly, npy_header, tensor_name
from workers.arrays import device_format, dtypes
from workers.arrays.device_format import DeviceLayout, is_known
from workers.dump.formats.dump_data import FORMAT_NAMES
from workers.errors import UsageError
from workers.store.model import Grid

READER = Path(__file__).with_name("plain_reader.py")
PAGE = functions_of_the_page()
#: All formats that are brought into host layout, from the table of formats.
KNOWN = sorted(name for name in FORMAT_NAMES if is_known(name))
WRITTEN = {*FORMATS_2D, *FORMATS_3D, *MATRICES}


#: Formats, host shapes and groups: all lengths have a rest, so that there is padding where there can be.
LAYOUTS = [
    *((name, (18, 3, 3, 2), 1) for name in FORMATS_2D),
    *((name, (18, 5, 2, 3, 2), 1) for name in FORMATS_3D),
    *((name, (2, 20, 35), 1) for name in MATRICES),
    ("FRACTAL_Z", (18, 5, 3, 2), 3),
]


def read_plainly(*stores: Path) -> list[dict[str, Any]]:
    """Return what the plain reader says of stores, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", str(READER), *map(str, stores)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def roots_of(dump: Path) -> list[Path]:
    """Return a dump, or the dumps in it."""
    try:
        find_dump(dump)
    except UsageError:
        return sorted(path for path in dump.iterdir() if path.is_dir() and path.name != "expected")
    return [dump]


def test_every_file_of_the_real_dumps_is_rebuilt(dumps: DumpLibrary, tmp_path: Path) -> None:
    roots = [root for name in dumps for root in roots_of(dumps[name])]
    stores = [tmp_path / f"{number}.zarr" for number in range(len(roots))]
    for root, store in zip(roots, stores, strict=True):
        ingest_directly(root, store)
    answers = read_plainly(*stores)
    for root, answer in zip(roots, answers, strict=True):
        assert (answer["wrong"], answer["imported"]) == ([], []), root
        assert answer["files"] > 0, root
    assert sum(answer["rows"] for answer in answers) > 3000
    formats = {word for answer in answers for word in answer if word.startswith("host ")}
    assert {"host NC1HWC0", "host FRACTAL_NZ"} <= formats


def test_files_with_views_are_rebuilt(tmp_path: Path) -> None:
    with tarfile.open(DATA / "pt" / "torch-2.15.0-cpu.tar.xz") as packed:
        packed.extractall(tmp_path / "dump", filter="data")
    store = tmp_path / "run.zarr"
    ingest_directly(tmp_path / "dump", store, layout="torch-{step}.15.0-cpu/{module}.pt")
    (answer,) = read_plainly(store)
    assert (answer["wrong"], answer["imported"]) == ([], [])
    files = [path for path in (tmp_path / "dump").rglob("*") if path.is_file()]
    assert answer["files"] == len(files) < answer["rows"]
    checker.check(store, tmp_path / "dump")


def test_what_ranks_share_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pools(monkeypatch)
    pooled = PooledRun(tmp_path)
    pooled.begin(2, replicas(0))
    pooled.take(2, 1, replicas(1))
    assert pooled.commit(0, 1).record.pool
    (answer,) = read_plainly(pooled.store)
    assert (answer["wrong"], answer["imported"]) == ([], [])
    assert answer["files"] == 48


@pytest.mark.parametrize("keep_device_layout", [False, True])
def test_every_type_and_format_is_rebuilt(tmp_path: Path, *, keep_device_layout: bool) -> None:
    """Also types that zarr-python lacks: a tensor of one must not hide the other tensors of its step."""
    made = MadeDump(tmp_path / "dump")
    made.root.mkdir()
    rng = np.random.default_rng(0)
    made.add(npy_header("<E2", (40,)) + rng.bytes(80), tensor_name("Half.x"))
    made.add(rng.normal(size=(3, 5)).astype(">f4"), tensor_name("Big.x"))
    made.add(np.array(["ä", "bc"]), tensor_name("Text.x"))
    directory = made.root / "20260101000000" / "3" / "Net" / "1" / "7"
    directory.mkdir(parents=True)
    typed = [Tensor(rng.bytes(8 * 16), code, (8,), (8,)) for code in DATA_TYPES.values()]
    arranged = []
    for name, shape, groups in LAYOUTS:
        device, layout = write(rng.normal(size=shape).astype(np.float16), name, groups=groups)
        code = FORMAT_CODES[name]
        float16 = DATA_TYPES["float16"]
        arranged.append(
            Tensor(device.tobytes(), float16, layout.shape, shape, code, groups if groups > 1 else 0)
        )
    for number, tensor in enumerate([*typed, *arranged]):
        (directory / f"Op.of_{number}.5.2.{1_700_000_000_000_000 + number}").write_bytes(dump_data([tensor]))
    ingest_directly(made.root, tmp_path / "run.zarr", Grid(keep_device_layout=keep_device_layout))
    (answer,) = read_plainly(tmp_path / "run.zarr")
    assert (answer["wrong"], answer["imported"]) == ([], [])
    assert answer["files"] == 3 + len(typed) + len(arranged)
    layout_names = "device" if keep_device_layout else "host"
    assert {word.partition(" ")[2] for word in answer if word.startswith(layout_names)} == WRITTEN


@st.composite
def layouts(draw: st.DrawFn, name: str) -> tuple[np.ndarray[Any, Any], DeviceLayout]:
    """Return a host array, in any order of axes that the format knows, and its layout on the device."""
    short, long = st.integers(1, 4), st.integers(1, 37)
    c0, groups = draw(st.sampled_from([8, 16, 32])), 1
    permutation: tuple[int, ...] = ()
    if name in MATRICES:
        shape = (*draw(st.lists(short, max_size=2)), draw(long), draw(long))
        shape = shape[-1:] if name == "FRACTAL_NZ" and draw(st.booleans()) else shape
    elif name in ("NC", "CN"):
        shape = (draw(long), draw(long))
    elif (len(set(name) & set("NCDHW")) == 5 and name in FORMATS_3D) or name == "NCDHW" or "3D" in name:
        shape = tuple(draw(st.tuples(long, long, short, short, short)))
        permutation = draw(st.sampled_from([(0, 1, 2, 3, 4), (0, 2, 3, 4, 1), (2, 3, 4, 1, 0)]))
    else:
        channels = short if name == "FRACTAL_Z_C04" else long
        shape = tuple(draw(st.tuples(long, channels, short, short)))
        groups = draw(st.sampled_from([1, 1, 2, 3, 6])) if name == "FRACTAL_Z" else 1
        shape = (groups * draw(st.integers(1, 10)), *shape[1:]) if groups > 1 else shape
        if groups == 1:
            permutation = draw(st.sampled_from([(0, 1, 2, 3), (0, 2, 3, 1), (2, 3, 1, 0)]))
            shape = shape[1 : draw(st.integers(2, 4))] if draw(st.booleans()) else shape
    host = np.arange(1, np.prod(shape) + 1, dtype=np.int32).reshape(shape)
    if name in WRITTEN:
        _, layout = write(host, name, c0=c0, groups=groups)
    else:
        device_shape = shape if draw(st.booleans()) or len(shape) != len(name) else shape[::-1]
        layout = DeviceLayout(name, device_shape)
    if permutation and len(shape) == len(permutation):
        host = np.ascontiguousarray(host.transpose(permutation))
    return host, layout


@pytest.mark.parametrize("name", KNOWN)
@given(data=st.data())
def test_the_page_defines_every_format_as_it_is_implemented(name: str, data: st.DataObject) -> None:
    host, layout = data.draw(layouts(name))
    if not device_format.convertible(layout, host.shape, dtypes.from_name("int32")):
        return
    device = PAGE["to_device"](host, name, layout.shape, layout.groups)
    np.testing.assert_array_equal(device, device_format.to_device(host, layout))
    np.testing.assert_array_equal(PAGE["to_host"](device, name, host.shape, layout.groups), host)
