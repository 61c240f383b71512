"""Whether the evidence of an incident is safe."""

import pytest

from ingest.findings.evidence import CommittedEvidence, CommittedStep

STEPS = (CommittedStep(0, 3, 30), CommittedStep(1, 1, 10), CommittedStep(0, 2, 20), CommittedStep(1, 2, 25))


def test_the_newest_step_of_each_rank_counts() -> None:
    assert CommittedEvidence.of(STEPS).newest == {0: 3, 1: 2}
    assert CommittedEvidence.of(STEPS).has(2)
    assert not CommittedEvidence.of(STEPS).has(3)


@pytest.mark.parametrize(("since", "has"), [(20, True), (21, False), (26, False)])
def test_what_was_committed_of_the_step_before_the_job_began_does_not_count(
    since: float, *, has: bool
) -> None:
    assert CommittedEvidence.of(STEPS).has(2, since) is has
