"""The loops as numba compiles them: their state, and how many pairs they added."""

import numpy as np

from workers.arrays.compiled import comparison_loops
from workers.arrays.compiled.comparison_loops import BLOCK, DD, MAX_ABS, PLACES, UNEQUAL


def test_the_number_of_added_pairs_is_the_first_word() -> None:
    a, b = np.arange(BLOCK + 3.0), np.arange(BLOCK + 3.0)
    b[[5, BLOCK + 1]] += 2
    state, scratch = np.zeros(len(PLACES)), np.empty((4, BLOCK))
    words = scratch.view(np.int64)
    comparison_loops.run(a, b, state, scratch, words)
    assert words[0, 0] == a.size
    assert (state[UNEQUAL], state[MAX_ABS], state[DD]) == (2, 2, 8)


def test_a_block_whose_squares_overflow_ends_the_run() -> None:
    a = np.full(2 * BLOCK, 1.0)
    a[BLOCK] = 1e200
    state, scratch = np.zeros(len(PLACES)), np.empty((4, BLOCK))
    words = scratch.view(np.int64)
    comparison_loops.run(a, a, state, scratch, words)
    assert words[0, 0] == BLOCK
