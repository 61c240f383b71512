"""Verifying names every kind of damage."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingest.api import DumpStore, open_store
from ingest.reader.verifying.verify import _payload_damage, _rounding, verify
from tests.device_writer import write
from tests.dump_data_writer import DATA_TYPES, FORMAT_CODES, Tensor, dump_data
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from workers.arrays.statistics import FIELDS
from workers.model import StepKey
from workers.store.model import Grid
from workers.store.record import CompactLeaf, encode_leaf


@pytest.mark.usefixtures("filled")
def test_verify_reads_what_other_libraries_open(store: Path) -> None:
    """They know nothing of the commit: to them the document beside an array is all there is."""
    (path,) = store.glob("rank_0/step_9/*/tensors/float32/zarr.json")
    path.write_text(path.read_text().replace("little", "big"))
    (damage,) = open_store(store).verify()
    assert str(path.relative_to(store)) in damage.reason


def test_missing_and_cut_objects_are_named(filled: DumpStore, store: Path) -> None:
    (lost,) = store.glob("rank_0/step_8/*/tensors/float32/c/0")
    (cut,) = store.glob("rank_0/step_9/*/tensors/float32/c/0")
    lost.unlink()
    cut.write_bytes(cut.read_bytes()[:-3])
    reasons = {damage.key: damage.reason for damage in reversed(list(verify(filled)))}
    assert reasons == {
        StepKey(0, 8): f"{lost.relative_to(store)} is missing",
        StepKey(0, 9): f"{cut.relative_to(store)} has {cut.stat().st_size} bytes instead of "
        f"{cut.stat().st_size + 3}",
    }


def test_totals_that_contradict_the_rows_are_named(filled: DumpStore, store: Path) -> None:
    path = store / "rank_1/step_9/zarr.json"
    document = json.loads(path.read_text())
    document["attributes"]["dump_ingest"]["summary"]["nan_count"] = 5
    path.write_text(json.dumps(document))
    reasons = [damage.reason for damage in verify(filled, [StepKey(1, 9)])]
    assert reasons == ["the commit says nan_count 5, its rows make 1"]


def test_statistics_are_computed_again(filled: DumpStore) -> None:
    step = filled.step(0, 8)
    (row, *_) = step.rows()
    wrong = step.tables.statistics.copy()
    wrong[row, FIELDS.index("max")] += 1
    step._tables = replace(step.tables, statistics=wrong)
    for _, pieces in step.payloads([row], 64):
        assert _payload_damage(step, row, pieces) == "the statistics do not match: max"


def test_mean_may_differ_by_the_rounding_of_large_elements() -> None:
    stored = np.zeros(len(FIELDS))
    stored[FIELDS.index("min")], stored[FIELDS.index("max")] = -1e6, 2e6
    tolerance = dict(zip(FIELDS, _rounding(stored), strict=True))
    assert (tolerance["mean"], tolerance["std"], tolerance["max"]) == (2e-3, 2e-3, 0)


def test_device_layout_is_verified_as_a_whole(made: MadeDump, store: Path) -> None:
    host = np.random.default_rng(2).normal(size=(2, 5, 3, 4)).astype(np.float16)
    device, layout = write(host, "NC1HWC0")
    directory = made.root / "20260101000000/3/net/0/0"
    directory.mkdir(parents=True)
    tensor = Tensor(
        device.tobytes(), DATA_TYPES["float16"], layout.shape, host.shape, FORMAT_CODES["NC1HWC0"]
    )
    (directory / "Op.of_all.5.2.1700000000000000").write_bytes(dump_data([], [tensor]))
    ingest_directly(made.root, store, Grid(keep_device_layout=True))
    assert list(verify(open_store(store))) == []


def test_a_statistic_that_an_older_version_did_not_store_is_not_missed(filled: DumpStore) -> None:
    """A version that knows one more statistic reads it as NaN from older steps."""
    step = filled.step(0, 9)
    document = step.commit.nodes["statistics"]
    fewer = {**document["attributes"], "fields": [name for name in FIELDS if name != "l2_norm"]}
    nodes = {**step.commit.nodes, "statistics": {**document, "attributes": fewer}}
    leaf = CompactLeaf.of(encode_leaf(step.commit.record, nodes), step.fingerprint)
    older = replace(step.commit, leaf=leaf)
    tables = replace(
        step.tables, statistics=np.where(np.array(FIELDS) == "l2_norm", np.nan, step.tables.statistics)
    )
    assert _payload_damage(type(step)(step.objects, older, tables), 0, iter([bytes(step.read(0))])) == ""
    current = type(step)(step.objects, step.commit, tables)
    assert "l2_norm" in _payload_damage(current, 0, iter([bytes(step.read(0))]))
