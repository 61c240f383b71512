"""Stores and dumps as sides of a comparison, as they are typed."""

import shutil
from pathlib import Path

import pytest

from ingest.api import open_store
from ingest.questions.compare.result import Verdict
from ingest.questions.compare.run import compare
from ingest.questions.compare.selection import parse_selection
from ingest.questions.compare.sources import keys_of, load_step
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from workers.arrays.digest import digest
from workers.dump.formats.header import TensorHeader
from workers.dump.model import TensorName
from workers.errors import DamagedStore, UsageError
from workers.model import SourceFile
from workers.store.model import Grid, RowKind
from workers.tasks.model import Entry
from workers.tasks.operands import read_whole


@pytest.mark.parametrize(
    "text", ["r@x", "r@1,2,3", "r@-1", "r@rank=1,rank=2", "r@1,rank=2", "r@", "r@99999999999999999999"]
)
def test_what_is_no_rank_and_step_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a rank and step"):
        parse_selection(text)


def test_layouts_of_accelerators_are_compared_in_the_order_of_the_axes(
    dumps: DumpLibrary, tmp_path: Path
) -> None:
    dump = dumps["cann-bin-synthetic"] / "torchair"
    ingest_directly(dump, tmp_path / "host.zarr")
    ingest_directly(dump, tmp_path / "device.zarr", Grid(keep_device_layout=True))
    of_host, of_device, of_dump = tmp_path / "host.zarr", tmp_path / "device.zarr", dump
    for a, b in ((of_host, of_device), (of_device, of_host), (of_host, of_dump), (of_dump, of_device)):
        found = compare(a, b, include_partial=True)
        assert set(found.counts) <= {Verdict.EQUAL}, [tensor.reason for tensor in found.tensors]


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("none.zarr", "none.zarr", "does not exist"),
        ("long" * 2000 + "@0", "{store}", "does not exist"),
        ("run\0.zarr@0", "{store}", "does not exist"),
        (__file__, "{store}", "is a file"),
        ("{store}@9", "{store}", "no rank 9"),
        ("{store}@0,9", "{store}", "no step 9"),
        ("{store}@0,1", "{store}@1,9", "no step 9"),
        ("{dump}@7", "{store}", "does not have this rank and step"),
    ],
)
def test_what_is_not_there_is_a_users_mistake(
    nan_log: str, dumps: DumpLibrary, a: str, b: str, said: str
) -> None:
    a, b = (side.format(store=nan_log, dump=dumps["nan-log-2rank"]) for side in (a, b))
    with pytest.raises(UsageError, match=said):
        compare(a, b)


def test_a_store_that_has_lost_its_root_is_no_dump(nan_log: Path, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    shutil.copytree(nan_log, store)
    (store / "zarr.json").unlink()
    with pytest.raises(DamagedStore, match=r"its zarr\.json is missing"):
        compare(f"{store}@0", f"{store}@1")


def test_operands_lead_to_the_bytes_that_the_index_has_digests_of(nan_log: str) -> None:
    store = open_store(nan_log)
    tensors = load_step(store, store.step(0, 1))
    operands = [tensors.operand(number) for number in range(len(tensors.keys))]
    payloads = read_whole(operands)
    assert [digest(payload) for payload in payloads if isinstance(payload, bytes | memoryview)] == [
        row.tobytes() for row in tensors.digests
    ]
    assert tensors.dumped.all()
    assert not tensors.removed


NAME = TensorName("Net", "0", "Mul", "m", "input", 0)
FILE = SourceFile("a.npy", 100, 1)


def entry(name: TensorName = NAME, header: TensorHeader | None = None) -> Entry:
    return Entry(FILE, RowKind.TENSOR, name, header)


def test_names_that_occur_twice_are_copies() -> None:
    keys = keys_of([entry(), entry(NAME._replace(slot=1)), entry(), entry(NAME._replace(occurrence=1))])
    assert [(key.slot, key.occurrence, key.copy) for key in keys] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 0, 1),
        (0, 1, 0),
    ]
    assert len(set(keys)) == 4
