"""The elements and bits of the first outputs of broken operators."""

from pathlib import Path

import numpy as np

from ingest.api import open_store
from ingest.questions.divergence.broken_bits import with_bits
from ingest.questions.divergence.result import BrokenOperator
from ingest.reader.snapshot import take_snapshot
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly


def broken(name: str, ranks: tuple[int, ...], others: tuple[int, ...] = (), step: int = 0) -> BrokenOperator:
    outputs = (f"Mul.{name}.output.0",)
    return BrokenOperator(step, ranks, bool(others), others, "Net", "0", "Mul", name, 0, 1, outputs, 0)


def test_the_odd_rank_is_compared_with_one_of_the_others(made: MadeDump, store: Path) -> None:
    for rank in range(3):
        values = np.ones(4, np.float32)
        values[rank] += rank  # ranks 1 and 2 differ from rank 0 in one element each
        made.add(values, tensor_name("Mul.m"), rank=rank)
    ingest_directly(made.root, store)
    snapshot = take_snapshot(open_store(store))
    operators = [
        broken("m", (1,), (0, 2)),
        broken("m", (1, 2)),
        broken("gone", (1,), (0,)),
        broken("m", (1,), (0,), step=7),
    ]
    with_majority, without, gone, other_step = with_bits(operators, snapshot)
    assert with_majority.bits is not None
    assert [element.index for element in with_majority.bits.first] == [(1,)]
    assert without.bits is not None
    assert [element.index for element in without.bits.first] == [(1,), (2,)]
    assert (gone.bits, other_step.bits) == (None, None)
