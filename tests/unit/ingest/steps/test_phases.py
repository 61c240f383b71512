"""The words for where a step is."""

import pytest

from ingest.steps.state import Phase, Wait, WaitFor


@pytest.mark.parametrize(
    ("wait_for", "phase"),
    [
        (WaitFor.FILES, Phase.WAITING),
        (WaitFor.CONTENT, Phase.WAITING),
        (WaitFor.PERMISSION, Phase.DENIED),
        (WaitFor.STORE, Phase.UNLISTED),
        (WaitFor.PAUSE, Phase.PAUSED),
    ],
)
def test_what_somebody_has_to_do_something_about_has_a_phase_of_its_own(
    wait_for: WaitFor, phase: Phase
) -> None:
    assert Wait(wait_for, "why").phase is phase
