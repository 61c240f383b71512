"""The steps of a store are loaded from their indexes; elements are read where the index says."""

from ingest.api import open_store
from ingest.questions.compare.stored_steps import load_step
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
