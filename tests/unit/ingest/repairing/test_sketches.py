"""Damaged histograms are made again: from the payloads, or else from the dump."""

from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store, repair
from tests import checker
from tests.damages import flip, only
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.store.sketches import ALL_MARGINALS, HISTOGRAM_TABLE

CHUNK = f"rank_1/step_2/*/{HISTOGRAM_TABLE.chunk}"


def reasons(store: Path) -> list[str]:
    return [damage.reason for damage in open_store(store).verify()]


def spoil(store: Path) -> None:
    """Make one histogram that contradicts its tensor, and has its counts."""
    path = only(store, CHUNK)
    step = open_store(store).step(1, 2)
    entries = HISTOGRAM_TABLE.decode(step.commit.nodes, {HISTOGRAM_TABLE.chunk: path.read_bytes()}, "").copy()
    entries[[0, 1], 1] = entries[[1, 0], 1]
    path.write_bytes(HISTOGRAM_TABLE.encode(np.sort(entries, axis=0))[1][HISTOGRAM_TABLE.chunk])


@pytest.mark.parametrize("dump_is_there", [True, False])
def test_histograms_come_from_the_payloads(store: Path, lone_store: Path, *, dump_is_there: bool) -> None:
    damaged = store if dump_is_there else lone_store
    before = checker.objects(damaged)
    flip(only(damaged, CHUNK))
    (reason,) = reasons(damaged)
    assert "crc32c" in reason
    done = repair(damaged, apply=True)
    assert done.is_clean
    assert [mended.origin for mended in done.repairs[0].mended] == ["the payloads, computed again"]
    assert checker.objects(damaged) == before


def test_histograms_that_contradict_the_payloads_are_made_again(store: Path) -> None:
    before = checker.objects(store)
    spoil(store)
    assert reasons(store)
    assert repair(store, apply=True).is_clean
    assert checker.objects(store) == before


@pytest.mark.parametrize("damaged", [ALL_MARGINALS.axes.chunk, f"{ALL_MARGINALS.values}/c/0/0"])
def test_of_the_two_tables_of_marginals_only_the_damaged_one_is_written(tmp_path: Path, damaged: str) -> None:
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    values = np.random.default_rng(0).normal(size=(32, 512)).astype("<f4")
    dump.add(values, tensor_name(slot=0, time=1), step=2, rank=1)
    ingest_directly(dump.root, store, sketches=True)
    before = checker.objects(store)
    path = only(store, f"rank_1/step_2/*/{damaged}")
    flip(path)
    (repaired,) = repair(store, apply=True).repairs
    assert [mended.path for mended in repaired.mended] == [str(path.relative_to(store))]
    assert checker.objects(store) == before
