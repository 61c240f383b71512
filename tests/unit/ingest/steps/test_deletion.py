"""What is known of a committed step whose files are to be deleted."""

from ingest.steps.state import Deletion
from tests.made_steps import made_files
from workers.model import StepKey

FILES, OTHERS = made_files(StepKey(0, 1), 1, 2), made_files(StepKey(0, 1), 1, 3)


def test_a_settled_step_is_due_again_when_its_files_change() -> None:
    deletion = Deletion()
    assert deletion.is_due(FILES, now=0.0)
    deletion.settle(FILES)
    assert not deletion.is_due(FILES, now=1e9)
    assert deletion.is_due(OTHERS, now=0.0)


def test_a_step_that_failed_is_due_after_its_pause_and_counts_until_it_is_settled() -> None:
    deletion = Deletion()
    deletion.pause(until=10.0)
    assert (deletion.is_due(FILES, now=9.9), deletion.is_due(FILES, now=10.0)) == (False, True)
    tried_again = [deletion.is_to_be_tried_again]
    deletion.settle(FILES)
    tried_again.append(deletion.is_to_be_tried_again)
    assert tried_again == [True, False]
    deletion.end_pause()
    assert (deletion.failures, deletion.paused_until) == (0, 0.0)


def test_an_anomaly_is_known_of_the_files_that_it_was_found_with() -> None:
    assert not Deletion().has_anomaly
    deletion = Deletion(anomaly=(FILES, True))
    assert deletion.has_anomaly
    assert (deletion.is_anomaly_known(FILES), deletion.is_anomaly_known(OTHERS)) == (True, False)
