"""The marginals of a step: once for equal elements, found for every shape of them, and added later."""

from pathlib import Path

import numpy as np
import pytest
import zarr

import ingest
from ingest.reader.step_tables import marginals_of, read_marginals
from tests import checker
from tests.damages import flip, only
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.arrays import marginals as arrays
from workers.arrays.marginals import MarginalScope
from workers.errors import DamagedStore
from workers.store.sketches import ALL_MARGINALS, LARGE_MARGINALS, StepMarginals
from workers.tasks.consolidate import HAS_SKETCHES, SketchJob, sketch

VALUES = np.random.default_rng(4).standard_normal((500, 300)).astype("<f4")


@pytest.fixture
def summed(made: MadeDump, store: Path) -> ingest.DumpStore:
    """One step: a matrix, the same in another shape, one in Fortran order, a small one, zeros."""
    tensors = (VALUES, VALUES.reshape(20, 25, 300), np.asfortranarray(VALUES[::-1]), VALUES[:3], 0 * VALUES)
    for slot, values in enumerate(tensors):
        made.add(values, tensor_name(slot=slot, time=slot), step=0)
    ingest_directly(made.root, store, sketches=True)
    return ingest.open_store(store)


def test_tensors_of_equal_elements_share_what_they_have_in_common(summed: ingest.DumpStore) -> None:
    step = summed.step(0, 0)
    known = marginals_of(step)
    assert {row: sorted(axes) for row, axes in known.items()} == {0: [0, 1], 1: [2], 2: [0, 1]}
    assert set(read_marginals(step).entries[:, 0].tolist()) == {0, 2}
    for row, tensor in enumerate(step.tensors()[:3]):
        values = tensor.read()
        for axis, marginal in known[row].items():
            assert marginal.agrees_with(arrays.marginals_of(values, [axis])[axis])
    assert known[1][2] is known[0][1]
    assert list(summed.verify()) == []


def test_other_readers_find_them(summed: ingest.DumpStore) -> None:
    step = summed.step(0, 0)
    group = zarr.open_group(f"{summed.url}/{step.commit.prefix}", mode="r")
    axes, table = group["marginal_axes"], group["marginals"]
    assert isinstance(axes, zarr.Array)
    assert isinstance(table, zarr.Array)
    row, axis, begin, length = np.asarray(axes[1]).tolist()
    assert (row, axis, length) == (0, 1, 300)
    assert table.attrs["fields"] == ["sum", "l2_norm", "abs_max"]
    np.testing.assert_array_equal(table[2, begin : begin + length], np.abs(VALUES).max(axis=0))


def test_damage_is_named_and_repaired(summed: ingest.DumpStore) -> None:
    step = summed.step(0, 0)
    path = Path(summed.url, step.commit.prefix, "marginals", "c", "0", "0")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    (damage, *_) = ingest.open_store(summed.url).verify()
    assert "marginals" in str(damage)
    with pytest.raises(DamagedStore, match="marginals"):
        marginals_of(ingest.open_store(summed.url).step(0, 0))
    ingest.repair(summed.url, apply=True)
    assert path.read_bytes() == whole
    values = step_values(summed)
    values[1, 5] += 1
    path.write_bytes(
        ALL_MARGINALS.encode(StepMarginals(read_marginals(step).entries, values))[1]["marginals/c/0/0"]
    )
    (damage,) = ingest.open_store(summed.url).verify()
    assert "the marginals do not match" in str(damage)


def step_values(store: ingest.DumpStore) -> np.ndarray:
    return read_marginals(ingest.open_store(store.url).step(0, 0)).values.copy()


def test_many_places_are_cut_into_chunks_and_shards() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((3, 1_100_000)).astype(np.float32)
    entries = np.array([[0, 1, 0, 1_000_000], [3, 0, 1_000_000, 100_000]])
    documents, chunks = ALL_MARGINALS.encode(StepMarginals(entries, values))
    assert sorted(chunks) == ["marginal_axes/c/0/0", "marginals/c/0/0", "marginals/c/0/1"]
    assert sorted(ALL_MARGINALS.chunk_keys(documents, "")) == sorted(chunks)
    decoded = ALL_MARGINALS.decode(documents, chunks, "")
    np.testing.assert_array_equal(decoded.values, values)
    joined = StepMarginals.joined([decoded, StepMarginals.none(), decoded])
    assert joined.entries[:, 0].tolist() == [0, 0, 3, 3]
    np.testing.assert_array_equal(joined.of_row(3)[0].sum, values[0, 1_000_000:])
    chunks.pop("marginals/c/0/1")
    with pytest.raises(DamagedStore, match="missing"):
        ALL_MARGINALS.decode(documents, chunks, "")
    documents["marginals"]["shape"] = [3, 2**60]
    with pytest.raises(DamagedStore, match="impossible shape"):
        ALL_MARGINALS.decode(documents, chunks, "")


LARGE = np.random.default_rng(5).standard_normal((600, 500)).astype("<f4")


@pytest.fixture
def of_large(made: MadeDump, store: Path) -> ingest.DumpStore:
    """Marginals of large tensors alone, in a step that has a large matrix and in one that has none."""
    made.add(LARGE, tensor_name(time=1), step=0)
    made.add(VALUES, tensor_name(slot=1, time=2), step=0)
    made.add(VALUES, tensor_name(time=1), step=1)
    ingest_directly(made.root, store, sketches=True, marginals=MarginalScope.LARGE)
    return ingest.open_store(store)


def test_those_of_other_tensors_are_added_and_nothing_is_replaced(of_large: ingest.DumpStore) -> None:
    before = checker.objects(Path(of_large.url))
    for number in range(2):
        key = of_large.step(0, number).key
        assert sketch(SketchJob(of_large.objects.address, key)).left == ""
        assert sketch(SketchJob(of_large.objects.address, key)).left == HAS_SKETCHES
    after = checker.objects(Path(of_large.url))
    changed = {path for path in before if after[path] != before[path]}
    assert changed == {"rank_0/step_0/zarr.json", "rank_0/step_1/zarr.json"}
    reopened = ingest.open_store(of_large.url)
    assert {row: sorted(axes) for row, axes in marginals_of(reopened.step(0, 0)).items()} == {
        0: [0, 1],
        1: [0, 1],
    }
    assert list(marginals_of(reopened.step(0, 1))) == [0]
    assert list(reopened.verify()) == []


@pytest.mark.parametrize("source", ["payloads", "dump", "dump, after `sketch`"])
def test_damaged_ones_of_large_tensors_are_made_again(of_large: ingest.DumpStore, source: str) -> None:
    store, step = Path(of_large.url), of_large.step(0, 0)
    if "sketch" in source:
        assert sketch(SketchJob(of_large.objects.address, step.key)).left == ""
    before = checker.objects(store)
    flip(only(store, f"rank_0/step_0/*/{LARGE_MARGINALS.values}/c/0/0"))
    if "sketch" in source:
        flip(only(store, f"rank_0/step_0/*/{ALL_MARGINALS.axes.chunk}"))
    if "dump" in source:
        flip(only(store, "rank_0/step_0/*/tensors/float32/c/0"))
    damages = [str(damage) for damage in ingest.open_store(store).verify()]
    assert any("large_marginals" in damage for damage in damages)
    assert ingest.repair(store, apply=True).is_clean
    assert checker.objects(store) == before
