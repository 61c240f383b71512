"""The table of all steps: it follows the dump, and forgets everything of what is gone."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from ingest.steps.state import StepState, StepTable
from workers.model import StepKey

KEYS = [StepKey(rank, step) for rank in range(2) for step in (None, 0, 1)]
A, B = KEYS[1], KEYS[2]


@given(st.lists(st.frozensets(st.sampled_from(KEYS)), max_size=6))
def test_the_table_has_the_steps_of_the_dump_and_a_step_that_comes_back_is_new(
    looks: list[frozenset[StepKey]],
) -> None:
    table = StepTable()
    before: dict[StepKey, StepState] = {}
    for keys in looks:
        dropped = table.follow(keys)
        assert {state.key for state in table} == keys
        assert {state.key for state in dropped} == before.keys() - keys
        for key in keys:
            assert (table[key] is before.get(key)) == (key in before)
        before = {key: table[key] for key in keys}
        for state in table:
            state.committed = "a"


def test_other_threads_may_read_while_steps_come_and_go() -> None:
    """The page of steps is made in a thread of the web server."""
    table, stop, failures = StepTable(), threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                assert all(state.key.rank == 0 for state in table)
            except RuntimeError as exc:
                failures.append(exc)

    reader = threading.Thread(target=read)
    reader.start()
    for first in range(300):
        table.follow({StepKey(0, step) for step in range(first, first + 200)})
    stop.set()
    reader.join()
    assert failures == []
