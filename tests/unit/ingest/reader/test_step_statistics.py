"""Statistics of a step are the same, whether they come from the cubes or from the indexes of the ranks."""

import numpy as np

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


def test_tensors_keep_their_place_on_the_axis() -> None:
    replicas = Replicas()
    replicas.put(0, 0, {"A.a.output.0": 1})
    replicas.put(0, 1, {"B.b.output.0": 2, "A.a.output.0": 3})
    statistics = StepStatistics(take_snapshot(replicas.store))
    first, second = statistics.blocks()
    assert [key.op_type for key in statistics.axis.keys] == ["A", "B"]
    assert first.present.tolist() == [[True]]
    assert second.row.tolist() == [[1, 0]]
