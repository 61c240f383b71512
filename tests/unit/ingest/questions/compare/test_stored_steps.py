"""The steps of a store are loaded from their indexes; elements are read where the index says."""

from ingest.api import open_store
from ingest.questions.compare.selection import Selection
from ingest.questions.compare.stored_steps import StoreSource, load_step
from workers.arrays.digest import digest
from workers.tasks.operands import read_whole


def test_operands_lead_to_the_bytes_that_the_index_has_digests_of(nan_log: str) -> None:
    store = open_store(nan_log)
    tensors = load_step(store, store.step(0, 1))
    operands = [tensors.operand(number) for number in range(len(tensors.keys))]
    payloads = read_whole(operands)
    assert [digest(payload) for payload in payloads if isinstance(payload, bytes | memoryview)] == [
        row.tobytes() for row in tensors.digests
    ]
    assert tensors.dumped.all()
    assert not tensors.removed


def test_a_source_has_the_chosen_steps_by_step_then_rank(nan_log: str) -> None:
    store = open_store(nan_log)
    source = StoreSource(Selection(nan_log), store, include_partial=False)
    assert source.keys == sorted(source.keys, key=lambda key: key.order)
    assert {key.rank for key in source.keys} == set(store.ranks)
    one = StoreSource(Selection(nan_log, rank=1, step=1), store, include_partial=False)
    assert [(key.rank, key.step) for key in one.keys] == [(1, 1)]
    assert one.load(one.keys[0]).key == one.keys[0]
