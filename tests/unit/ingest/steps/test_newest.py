"""Which steps are the newest of their rank."""

from ingest.steps.keeping import newest_steps
from workers.model import StepKey


def test_the_newest_are_counted_by_number_for_each_rank_and_run_files_are_not_steps() -> None:
    keys = [StepKey(0, 3), StepKey(0, 10), StepKey(0, None), StepKey(0, 9), StepKey(1, 2), StepKey(2, None)]
    assert newest_steps(keys, 2) == {StepKey(0, 10), StepKey(0, 9), StepKey(1, 2)}
    assert newest_steps(keys, 0) == set()
    assert newest_steps([], 3) == set()
