"""Which ranks hold the same parameters."""

import numpy as np

from ingest.questions.placement.replicas import ReplicaCounts
from workers.arrays.statistics import FIELDS
from workers.store.consolidated.blocks import Block, TensorAxis, TensorKey


def counted(*parameters: tuple[str, int]) -> ReplicaCounts:
    """Count parameters, each given by a letter for what each rank holds, and its size."""
    ranks = tuple(range(len(parameters[0][0])))
    axis = TensorAxis(TensorKey("", "", "Parameter", f"p{n}", "output", 0) for n in range(len(parameters)))
    shape = len(ranks), len(parameters)
    digest = np.zeros((*shape, 16), np.uint8)
    statistics = np.zeros((*shape, len(FIELDS)))
    row = np.full(shape, -1, np.int32)
    for place, (letters, size) in enumerate(parameters):
        for rank, letter in enumerate(letters):
            if letter != "-":
                row[rank, place], digest[rank, place] = place, ord(letter)
        statistics[:, place, FIELDS.index("count")], statistics[:, place, FIELDS.index("max")] = size, 1
    counts = ReplicaCounts(ranks, axis)
    counts.visit(Block(0, ranks, row, statistics, digest))
    return counts


def test_norms_alone_make_no_replicas() -> None:
    """Two of three parameters are the same, and hardly any elements."""
    assert counted(("aaaa", 8), ("aaaa", 8), ("abab", 1000)).groups() == [(0, 2), (1, 3)]
    assert counted(("aa", 8), ("aa", 8), ("ab", 1000)).groups() == []


def test_a_replica_that_drifts_is_one() -> None:
    assert counted(("aaab", 10), ("aaaa", 100), ("aaaa", 100)).groups() == [(0, 1, 2, 3)]


def test_only_the_groups_of_a_mesh_are_taken() -> None:
    assert counted(("abab", 9)).grid() == [[0, 2], [1, 3]]
    assert counted(("aaaa", 9)).grid() == []
    assert counted(("abac", 9)).grid() == []
    assert counted(("aab-", 9)).grid() == []
