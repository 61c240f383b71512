"""The table of all steps: it follows the dump, and forgets everything of what is gone."""

import threading

from ingest.steps.state import StepTable
from workers.model import StepKey


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
