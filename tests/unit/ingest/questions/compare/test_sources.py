"""Stores and dumps as sides of a comparison."""

import shutil
from pathlib import Path

import pytest

from ingest.questions.compare.result import Verdict
from ingest.questions.compare.run import compare
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from workers.errors import DamagedStore, UsageError
from workers.store.model import Grid


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
