"""Choosing tensors in blocks gives what choosing them in the indexes gives."""

from pathlib import Path

import ingest
from ingest.reader.snapshot import take_snapshot
from ingest.reader.step_statistics import StepStatistics
from ingest.reader.tensor_filter import BlockFilter, FilterFields
from workers.store.roles import ROLES


def test_blocks_and_indexes_agree(nan_log: Path) -> None:
    store = ingest.open_store(nan_log)
    choices: list[FilterFields] = [{"role": role} for role in ROLES]
    choices += [
        {"where": "nan_count > 0 and role == 'loss'"},
        {"where": "rank == 1 and step > 1", "io": "input"},
    ]
    for fields in choices:
        statistics = StepStatistics(take_snapshot(store))
        choice = BlockFilter(fields, statistics.axis)
        rows = {
            (block.step, block.ranks[rank], int(row))
            for block in map(choice.applied, statistics.blocks())
            for rank, row in zip(*_present(block), strict=True)
        }
        tensors = store.tensors(**fields)
        assert rows == {
            (tensor.step, tensor.rank, tensor.row) for tensor in tensors if tensor.step is not None
        }


def _present(block: object) -> tuple[list[int], list[int]]:
    row = block.row  # type: ignore[attr-defined]
    ranks, places = (row >= 0).nonzero()
    return ranks.tolist(), row[ranks, places].tolist()
