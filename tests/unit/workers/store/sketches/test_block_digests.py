"""Which payloads have digests of their blocks, and under which row."""

from pathlib import Path

import numpy as np

import ingest
from ingest.reader.step_tables import read_entries
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.arrays.digest import RunningBlockDigests
from workers.store.sketches import BLOCK_TABLE as TABLE
from workers.store.sketches import blocks_by_digest as by_digest
from workers.store.sketches import distinct_payloads as distinct
from workers.store.sketches import marginals_in
from workers.tasks.consolidate import SketchJob, sketch


def test_large_payloads_have_them_once(made: MadeDump, store: Path) -> None:
    large = np.arange(300_000, dtype="<f4")
    for slot, values in enumerate((large[:100], large, large, large.view("<i4"))):
        made.add(values, tensor_name(slot=slot, time=slot), step=0)
    ingest_directly(made.root, store, sketches=True)
    step = ingest.open_store(store).step(0, 0)
    entries = read_entries(step, TABLE)
    assert entries[:, 0].tolist() == [1] * 19
    running = RunningBlockDigests()
    running.update(large.data.cast("B"))
    known = by_digest(entries, step.tables)
    assert {digest.hex() for digest in known} == {step.tensors()[1].digest}
    assert next(iter(known.values())).tolist() == running.result().tolist()
    assert sorted(distinct([3, 2, 1, 0], step.tables)) == [0, 1]
    assert marginals_in(step.commit.nodes) is not None
    assert list(ingest.open_store(store).verify()) == []


def test_they_are_added_as_they_would_have_been(made: MadeDump, store: Path, tmp_path: Path) -> None:
    made.add(np.arange(300_000, dtype="<f4").reshape(1500, 200), tensor_name(time=1), step=0)
    made.add(np.full(150_000, 1j, "<c8"), tensor_name(slot=1, time=2), step=0)
    ingest_directly(made.root, store, sketches=True)
    ingest_directly(made.root, tmp_path / "later.zarr")
    later = ingest.open_store(tmp_path / "later.zarr")
    assert sketch(SketchJob(later.objects.address, later.step(0, 0).key)).tensors == 1
    steps = [ingest.open_store(path).step(0, 0) for path in (store, tmp_path / "later.zarr")]
    assert read_entries(steps[0], TABLE).tolist() == read_entries(steps[1], TABLE).tolist()
    assert len(read_entries(steps[0], TABLE)) == 19 + 19
