"""When a step is complete: content, later steps and silence."""

import pytest

from ingest.steps.decide import CompletenessPolicy, waits_for_content, waits_for_time
from ingest.steps.state import WaitFor
from tests.made_steps import made_inspected, made_listing
from workers.model import StepKey

POLICY = CompletenessPolicy(quiet_s=10, settle_s=1)
KEY, RUN = StepKey(0, 1), StepKey(0, None)


@pytest.mark.parametrize(
    ("key", "later_begun", "quiet_s", "reason"),
    [
        (KEY, False, 9.9, "quiet for 9.9 s of 10 s"),
        (KEY, False, 10.0, None),
        (KEY, True, 0.4, "quiet for 0.4 s of 1 s"),
        (KEY, True, 1.0, None),
        (RUN, False, 1.0, None),
    ],
)
def test_silence_is_short_once_a_later_step_has_begun_and_for_run_files(
    key: StepKey, later_begun: bool, quiet_s: float, reason: str | None
) -> None:
    wait = waits_for_time(made_listing(key, 1, later_begun=later_begun), quiet_s, POLICY)
    assert (None if wait is None else wait.reason) == reason


def test_a_step_without_files_waits_for_them_however_long_it_was_quiet() -> None:
    wait = waits_for_time(made_listing(KEY), 1e9, POLICY)
    assert wait is not None
    assert wait.wait_for is WaitFor.FILES


def test_a_file_that_may_grow_is_waited_for_through_the_quiet_period_and_no_longer() -> None:
    inspected = made_inspected(made_listing(KEY, 1, later_begun=True), unfinished="rank_0/1/0.npy")
    wait = waits_for_content(inspected, 5.0, POLICY)
    assert wait is not None
    assert (wait.wait_for, wait.reason) == (WaitFor.CONTENT, "rank_0/1/0.npy is not whole yet")
    assert waits_for_content(inspected, 10.0, POLICY) is None
    assert waits_for_content(made_inspected(made_listing(KEY, 1)), 5.0, POLICY) is None
