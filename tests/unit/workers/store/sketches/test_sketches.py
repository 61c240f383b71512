"""Sketches in a store: columns, tables and digests of blocks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import ingest
from ingest.api import open_store
from ingest.findings.backtest import backtest
from ingest.reader.step_tables import histograms_of, marginals_of, read_entries, read_marginals
from ingest.store_gc.plan import GcPolicy
from tests import checker
from tests.damages import flip
from tests.damages import only as only_file
from tests.gc_stores import age
from tests.rule_sets import only
from tests.stores import DumpLibrary, MadeDump, ingest_and_open, ingest_directly, tensor_name
from workers.arrays import marginals as arrays
from workers.arrays.digest import RunningBlockDigests
from workers.arrays.marginals import MarginalScope
from workers.errors import DamagedStore, UsageError
from workers.store import strict_json
from workers.store.sketches import (
    ALL_MARGINALS,
    HISTOGRAM_TABLE,
    LARGE_MARGINALS,
    SKETCH_PATHS,
    EntryTable,
    StepMarginals,
    marginals_in,
)
from workers.store.sketches import BLOCK_TABLE as TABLE
from workers.store.sketches import blocks_by_digest as by_digest
from workers.store.sketches import distinct_payloads as distinct
from workers.tasks.consolidate import HAS_SKETCHES, SketchJob, sketch

# Conditions over sketches: in searches, in rules when a step is committed, and in backtests.


#: Half of the elements vanish in e4m3; the 50th percentile lies in (1, 2], and the largest is 512.
VALUES = np.array([2.0**-20] * 5 + [1.5] * 4 + [512], "<f4")


def matrix() -> np.ndarray:
    values = np.random.default_rng(1).standard_normal((400, 300)).astype("<f4")
    values[:, 5] *= 100
    values[:, 7:9] = 0
    return values


@pytest.fixture
def filled(made: MadeDump, store: Path) -> ingest.DumpStore:
    """A step with a small tensor and a matrix with an outlier and two dead columns."""
    made.add(VALUES, tensor_name(time=1), step=0)
    made.add(matrix(), tensor_name(slot=1, time=2), step=0)
    return ingest_and_open(made.root, store, sketches=True)


CASES = [
    ("abs_p60 > 0.9 and abs_p60 < 2.5", [0]),
    ("abs_p60 > 1.2 and abs_p60 < 2.5", []),  # it is 1.5, and may be 1.1
    ("p99.9 > 0.9 and p99.9 <= 512 and name != 'p99.9'", [0, 1]),
    ("p100 == 512", [0]),
    ("underflow_e4m3 > 0.4", [0]),
    ("underflow_e4m3 > 0.5", []),
    ("overflow_e4m3 > 0.05", [0]),
    ("overflow_float16 > 0", []),
    ("outlier_channels > 0", [1]),
    ("dead_channels == 2 and saturated_channels == 0", [1]),
    ("not dead_channels > 2", [1, 0]),
]


@pytest.mark.parametrize(("where", "slots"), CASES)
def test_searches_find_what_is_certain(filled: ingest.DumpStore, where: str, slots: list[int]) -> None:
    assert [tensor.slot for tensor in filled.tensors(where=where)] == sorted(slots)


def test_what_bounds_do_not_decide_is_told(filled: ingest.DumpStore) -> None:
    undecided = filled.tensors(where="abs_p60 > 1.2 and abs_p60 < 2.5")
    assert (list(undecided), [tensor.slot for tensor in undecided.undecided]) == ([], [0])
    assert undecided.exactness == "bounded"
    # Both percentiles lie in (1, 2]: neither is certainly the larger one, nor that the difference is small.
    both = filled.tensors(where="abs(abs_p60 - abs_p70) < 0.1")
    assert not [tensor for tensor in both if tensor.slot == 0]
    assert 0 in [tensor.slot for tensor in both.undecided]
    assert filled.tensors(where="p100 == 512").exactness == "exact"
    # Zero is between the bounds, so the magnitude may be less than either of them.
    magnitude = filled.tensors(where="abs(abs_p60 - abs_p70) > 0.5")
    assert 0 not in [tensor.slot for tensor in magnitude]


@pytest.mark.parametrize(("where", "slots"), CASES)
def test_rules_find_the_same(filled: ingest.DumpStore, where: str, slots: list[int]) -> None:
    (result,) = backtest(filled, only(kind="condition", where=where)).rules
    assert not result.failed
    assert [int(finding.name[-1]) for finding in result.first] == sorted(slots)


def test_searches_and_rules_answer_the_same_when_gc_has_removed_the_tensors(
    made: MadeDump, store: Path
) -> None:
    for step in range(3):
        made.add(VALUES * np.float32(2**step), tensor_name(time=1), step=step)
        made.add(matrix(), tensor_name(slot=1, time=2), step=step)
    ingest_directly(made.root, store, sketches=True)
    age(store)
    kinds: list[dict[str, Any]] = [{"kind": "condition", "where": where} for where, _ in CASES]
    kinds += [
        {"kind": "drift", "distance_gt": 0.5},
        {"kind": "cast", "format": "e4m3", "underflow_gt": 0.3},
        {"kind": "percentile", "percent": 99.9, "gt": 9},
    ]

    def answers() -> list[Any]:
        reader = ingest.open_store(store)
        searches = (reader.tensors(where=where) for where, _ in CASES)
        chosen = [[*search, *search.undecided] for search in searches]
        names = [[(tensor.step, tensor.name) for tensor in tensors] for tensors in chosen]
        return [names, *(backtest(reader, only(**kind)).to_dict() for kind in kinds)]

    before = answers()
    assert ingest.apply_gc(store, ingest.plan_gc(store, GcPolicy(tensors_around_anomalies=0))).objects
    assert not ingest.open_store(store).step(0, 0).has_tensors
    assert strict_json.dumps(answers()) == strict_json.dumps(before)
    assert [rule["findings"] for rule in before[-3]["rules"]] == [2]  # drift


def test_rules_are_evaluated_at_the_commit(made: MadeDump, store: Path) -> None:
    made.add(matrix(), tensor_name(time=1), step=0)
    chosen = only(kind="condition", where="outlier_channels > 0")
    (summary,) = ingest_directly(made.root, store, rules=chosen, sketches=True)
    assert summary.findings == {"mine": 1}


def test_steps_without_sketches_are_named(made: MadeDump, store: Path) -> None:
    made.add(VALUES, tensor_name(time=1), step=0)
    ingest_directly(made.root, store)
    for where, what in (("p50 > 1", "1 tensor has no histogram"), ("dead_channels > 1", "no marginals")):
        with pytest.raises(UsageError, match=what) as raised:
            ingest.open_store(store).tensors(where=where)
        assert "dump-ingest sketch" in (raised.value.hint or "")
        (result,) = backtest(ingest.open_store(store), only(kind="condition", where=where)).rules
        assert what in result.failed[0]


# The table of histograms: what is stored of them, and for which rows.


def test_copies_share_the_histogram_of_one_row(made: MadeDump, store: Path) -> None:
    values = np.arange(1, 25, dtype="<f4")
    made.add(values, tensor_name(time=1), step=0)
    made.add(values, tensor_name(slot=1, time=2), step=0)
    made.add(values.view("<i4"), tensor_name(slot=2, time=3), step=0)
    made.add(np.zeros(3, "<f4"), tensor_name(slot=3, time=4), step=0)
    ingest_directly(made.root, store, sketches=True)
    step = open_store(store).step(0, 0)
    known = histograms_of(step)
    assert sorted(known) == step.rows()
    first, copy, bits, zeros = (known[row] for row in step.rows())
    assert first is copy
    assert first.at_most(8).low == 8
    assert bits.at_most(8).low == 0
    assert (zeros.finite, zeros.nonzero) == (3, 0)
    assert len(HISTOGRAM_TABLE.own(read_entries(step))) == 2


def test_a_step_without_sketches_is_byte_for_byte_as_before(dumps: DumpLibrary, tmp_path: Path) -> None:
    contents = []
    for sketches in (False, True):
        root = tmp_path / str(sketches)
        ingest_directly(dumps["nan-log-2rank"] / "dump", root, sketches=sketches)
        contents.append(
            {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        )
    without, with_them = contents
    added = with_them.keys() - without.keys()
    assert {path.name for path in added} == {"zarr.json", "0"}
    assert all(SKETCH_PATHS & set(path.parts) for path in added)
    changed = {path for path, data in without.items() if with_them[path] != data}
    assert all(path.name == "zarr.json" and len(path.parts) == 3 for path in changed)  # the commits


def test_another_zarr_reader_finds_the_bins_of_a_tensor(sketched_store: Path) -> None:
    tensor = open_store(sketched_store).tensors(rank=1, step=2, name="Log.*.output.0")[0]
    leaf: Any = zarr.open_group(sketched_store / "rank_1" / "step_2", mode="r")
    table: Any = leaf[leaf.attrs["dump_ingest"]["fingerprint"]]["histograms"]
    assert table.attrs["fields"] == ["row", "exponent", "positive", "negative"]
    bins = table[:][table[:][:, 0] == tensor.row]
    values = np.abs(tensor.read())
    assert {exponent: negative for _, exponent, _, negative in bins.tolist()} == {
        -1: int(((values > 0.5) & (values <= 1)).sum())
    }


# Tables with none, one or many entries for each row of the index.


BLOCKS = EntryTable("histograms", ("bin", "count"))


def entries(*rows: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    return np.array(rows, np.int64).reshape(-1, 3)


def test_a_later_version_may_have_more_fields_in_another_order() -> None:
    later = EntryTable("histograms", ("count", "new", "bin"))
    documents, chunks = later.encode(np.array([[3, 20, 99, 10]]))
    assert BLOCKS.decode(documents, chunks, "").tolist() == [[3, 10, 20]]
    with pytest.raises(DamagedStore, match="does not have the columns row, count, new, bin"):
        later.decode(*BLOCKS.encode(entries((1, 2, 3))), "rank 0 step 1")


@pytest.mark.parametrize("damage", [None, b"", "flipped", "cut"])
def test_a_damaged_table_is_named_with_its_step(damage: bytes | str | None) -> None:
    documents, chunks = BLOCKS.encode(entries((1, 2, 3), (4, 5, 6)))
    chunk = chunks[BLOCKS.chunk]
    data = {"flipped": bytes([chunk[0] ^ 1]) + chunk[1:], "cut": chunk[:-1]}.get(str(damage), damage)
    assert not isinstance(data, str)
    with pytest.raises(DamagedStore, match="rank 0 step 1: histograms"):
        BLOCKS.decode(documents, {} if data is None else {BLOCKS.chunk: data}, "rank 0 step 1")


# The marginals of a step: once for equal elements, found for every shape of them, and added later.


SUMMED_VALUES = np.random.default_rng(4).standard_normal((500, 300)).astype("<f4")


@pytest.fixture
def summed(made: MadeDump, store: Path) -> ingest.DumpStore:
    """One step: a matrix, the same in another shape, one in Fortran order, a small one, zeros."""
    tensors = (
        SUMMED_VALUES,
        SUMMED_VALUES.reshape(20, 25, 300),
        np.asfortranarray(SUMMED_VALUES[::-1]),
        SUMMED_VALUES[:3],
        0 * SUMMED_VALUES,
    )
    for slot, values in enumerate(tensors):
        made.add(values, tensor_name(slot=slot, time=slot), step=0)
    return ingest_and_open(made.root, store, sketches=True)


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
    np.testing.assert_array_equal(table[2, begin : begin + length], np.abs(SUMMED_VALUES).max(axis=0))


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
    made.add(SUMMED_VALUES, tensor_name(slot=1, time=2), step=0)
    made.add(SUMMED_VALUES, tensor_name(time=1), step=1)
    return ingest_and_open(made.root, store, sketches=True, marginals=MarginalScope.LARGE)


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
    flip(only_file(store, f"rank_0/step_0/*/{LARGE_MARGINALS.values}/c/0/0"))
    if "sketch" in source:
        flip(only_file(store, f"rank_0/step_0/*/{ALL_MARGINALS.axes.chunk}"))
    if "dump" in source:
        flip(only_file(store, "rank_0/step_0/*/tensors/float32/c/0"))
    damages = [str(damage) for damage in ingest.open_store(store).verify()]
    assert any("large_marginals" in damage for damage in damages)
    assert ingest.repair(store, apply=True).is_clean
    assert checker.objects(store) == before


# Which payloads have digests of their blocks, and under which row.


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
    later = ingest_and_open(made.root, tmp_path / "later.zarr")
    assert sketch(SketchJob(later.objects.address, later.step(0, 0).key)).tensors == 1
    steps = [ingest.open_store(path).step(0, 0) for path in (store, tmp_path / "later.zarr")]
    assert read_entries(steps[0], TABLE).tolist() == read_entries(steps[1], TABLE).tolist()
    assert len(read_entries(steps[0], TABLE)) == 19 + 19
