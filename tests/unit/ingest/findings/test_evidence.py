"""Whether the evidence of an incident is safe."""

import pytest

from ingest.findings.evidence import CommittedStep, Evidence

STEPS = (CommittedStep(0, 3, 30), CommittedStep(1, 1, 10), CommittedStep(0, 2, 20), CommittedStep(1, 2, 25))


def test_the_newest_step_of_each_rank_counts() -> None:
    assert Evidence.of(STEPS).newest == {0: 3, 1: 2}
    assert Evidence.of(STEPS).has(2)
    assert not Evidence.of(STEPS).has(3)


@pytest.mark.parametrize(("since", "has"), [(20, True), (21, False), (26, False)])
def test_what_was_committed_of_the_step_before_the_job_began_does_not_count(
    since: float, *, has: bool
) -> None:
    assert Evidence.of(STEPS).has(2, since) is has
