"""A generation is made again from a dump, which may have moved or was cut in another grid."""

from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store, repair
from ingest.layouts.detect import find_dump
from ingest.repairing.work import Dumps, grids_like
from tests.damages import only
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import SMALL_GRID, ingest_directly
from workers.errors import UsageError
from workers.model import StepKey
from workers.rules.schema import load_rules
from workers.store.model import Grid
from workers.store.objects import ObjectStore


def test_only_a_generation_of_the_name_that_is_wanted_is_made(
    whole: Path, whole_objects: ObjectStore
) -> None:
    step = open_store(whole / "run.zarr").step(0, 1)
    rules, named = load_rules().enabled, [find_dump(whole / "dump")]
    dumps = Dumps(whole_objects.address, grids_like(Grid()), rules, "host", named)
    made = dumps.remake(step.key, None, None)
    assert made is not None
    name = made.assembled.summary.fingerprint
    assert made.origin == f"the dump {whole / 'dump'}"
    again = dumps.remake(step.key, [name], step.commit.record)
    assert again is not None
    assert again.assembled.chunks == made.assembled.chunks
    assert dumps.remake(step.key, ["0" * 32], None) is None
    assert dumps.remake(StepKey(7, 1), None, None) is None


def test_another_place_of_the_dump_can_be_named(tmp_path: Path) -> None:
    """And only files with the digests of the index count: one was overwritten there."""
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    for step in (1, 2):
        dump.add(np.arange(99, dtype="<f4") + step, tensor_name(time=1), step=step)
    ingest_directly(dump.root, store)
    moved = dump.root.rename(tmp_path / "elsewhere")
    (changed,) = moved.glob("rank_0/*/*/2/*.npy")
    changed.write_bytes(changed.read_bytes()[:-4] + b"abcd")
    for step in (1, 2):
        only(store, f"rank_0/step_{step}/*/tensors/float32/c/0").unlink()
    assert len(repair(store).repairs) == 2
    done = repair(store, [moved], apply=True)
    assert [outcome.is_whole for outcome in done.repairs] == [True, False]
    with pytest.raises(UsageError, match="does not exist"):
        repair(store, [dump.root])


def test_dump_of_a_declared_layout_is_read_with_its_pattern(tmp_path: Path) -> None:
    """The commit names the dump, and not the pattern."""
    dump, store, layout = tmp_path / "dump", tmp_path / "run.zarr", "rank{rank}/step{step}/{module}.npy"
    (dump / "rank0" / "step1").mkdir(parents=True)
    np.save(dump / "rank0" / "step1" / "fc.npy", np.arange(99, dtype="<f4"))
    ingest_directly(dump, store, layout=layout)
    only(store, "rank_0/step_1/*/tensors/float32/c/0").unlink()
    assert not repair(store, apply=True).is_clean
    assert repair(store, layout=layout, apply=True).is_clean
    with pytest.raises(UsageError, match="no dump of a known layout"):
        repair(store, [dump])


def test_steps_of_another_grid_get_a_new_generation(tmp_path: Path) -> None:
    """The name of the generation depends on sizes that the commit does not say."""
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    dump.add(np.arange(99, dtype="<f4"), step=1)
    (summary,) = ingest_directly(dump.root, store, SMALL_GRID)
    only(store, "rank_0/step_1/*/index/labels/c/0/0").unlink()
    planned = repair(store)
    assert planned.repairs[0].generation not in ("", summary.fingerprint)
    assert repair(store, apply=True).is_clean
    assert open_store(store).step(0, 1).fingerprint == planned.repairs[0].generation
    assert repair(store, grid=SMALL_GRID).is_clean
