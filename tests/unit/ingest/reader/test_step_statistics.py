"""Statistics of a step are the same, whether they come from the cubes or from the indexes of the ranks."""

import numpy as np
import pytest

import ingest
from ingest.api import DumpStore, open_store
from ingest.reader.snapshot import take_snapshot
from ingest.reader.step_statistics import StepStatistics
from tests.counted_requests import CountedRequests
from tests.replicas import Replicas
from workers.store.consolidated.blocks import Block
from workers.store.tables import chunk_keys


def blocks_of(store: DumpStore) -> dict[int, Block]:
    return {block.step: block for block in StepStatistics(take_snapshot(store)).blocks()}


@pytest.fixture
def consolidated(filled: DumpStore) -> DumpStore:
    ingest.consolidate(filled.url)
    return open_store(filled.url)


def reads_indexes(requests: CountedRequests) -> bool:
    return any(key.endswith(chunk) for key in requests.keys for chunk in chunk_keys())


def test_steps_come_in_order_with_all_ranks(filled: DumpStore) -> None:
    blocks = blocks_of(filled)
    assert list(blocks) == [8, 9]
    for block in blocks.values():
        assert block.ranks == (0, 1)
        assert block.present.all()
        assert block.statistic("count").tolist() == [[50.0] * 10] * 2
    assert blocks[9].statistic("nan_count").sum() == 1


def test_cubes_save_reading_the_indexes(filled: DumpStore, requests: CountedRequests) -> None:
    from_tables = blocks_of(filled)
    assert reads_indexes(requests)
    ingest.consolidate(filled.url)
    requests.keys.clear()
    from_cubes = blocks_of(open_store(filled.url))
    assert not reads_indexes(requests)
    for step, block in from_cubes.items():
        np.testing.assert_array_equal(block.statistics, from_tables[step].statistics)
        np.testing.assert_array_equal(block.digest, from_tables[step].digest)
        np.testing.assert_array_equal(block.row, from_tables[step].row)


def test_cubes_of_other_generations_are_not_used(consolidated: DumpStore) -> None:
    """What is committed counts, also if the consolidator has not seen it yet."""
    statistics = StepStatistics(take_snapshot(consolidated))
    assert statistics._cubes is not None
    statistics._cubes.table("fingerprint")[0, 1] = "another generation"
    assert statistics._from_cubes(8, statistics.snapshot.of_step(8)) is None
    assert statistics._from_cubes(9, statistics.snapshot.of_step(9)) is not None
    assert statistics.block(8).statistic("count").sum() == 2 * 10 * 50


def test_tensors_keep_their_place_on_the_axis() -> None:
    replicas = Replicas()
    replicas.put(0, 0, {"A.a.output.0": 1})
    replicas.put(0, 1, {"B.b.output.0": 2, "A.a.output.0": 3})
    statistics = StepStatistics(take_snapshot(replicas.store))
    first, second = statistics.blocks()
    assert [key.op_type for key in statistics.axis.keys] == ["A", "B"]
    assert first.present.tolist() == [[True]]
    assert second.row.tolist() == [[1, 0]]
