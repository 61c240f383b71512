"""A step whose files are being read back: what is proven, what stays, and whether it has changed since."""

import numpy as np

from ingest.dump_retention.retention import StepDeletion
from ingest.steps.keeping import KeepReason
from ingest.steps.state import Phase
from tests.made_steps import made_files, made_listing, made_state
from workers.model import StepKey
from workers.store.model import StoreAddress
from workers.tasks.read_back import ReadBack, ReadBackJob, ReadBackVerdict

KEY = StepKey(0, 1)


def under_way() -> StepDeletion:
    """Return a step of three files in two jobs."""
    state = made_state(KEY, 1, 2, 3)
    state.hold(Phase.COMMITTED)
    assert state.listing is not None
    files = state.listing.files
    jobs = [
        ReadBackJob(KEY, number, "a", "/dump", StoreAddress("/store"), part)
        for number, part in enumerate((files[:2], files[2:]))
    ]
    return StepDeletion(state, state.listing, "a", 0.0, {job.number: job for job in jobs})


def result(number: int, *verdicts: ReadBackVerdict) -> ReadBack:
    changed_ns = np.arange(len(verdicts), dtype=np.int64) + 100 * number
    return ReadBack(number, np.array(verdicts, np.int8), changed_ns, nbytes=0, seconds=0.0)


def test_files_are_proven_one_by_one_once_all_jobs_are_done() -> None:
    step = under_way()
    step.results[1] = result(1, ReadBackVerdict.SAME)
    is_read_back = [step.is_read_back]
    step.results[0] = result(0, ReadBackVerdict.NOT_STORED, ReadBackVerdict.NOT_UNDERSTOOD)
    is_read_back.append(step.is_read_back)
    assert is_read_back == [False, True]
    files = made_files(KEY, 1, 2, 3)
    assert [(proven.file, proven.changed_ns) for proven in step.proven()] == [(files[2], 100)]
    assert step.others() == {KeepReason.NOT_STORED: [files[0]], KeepReason.NOT_UNDERSTOOD: [files[1]]}


def test_a_step_has_changed_when_its_files_have_or_the_store_does_not_hold_it() -> None:
    step = under_way()
    step.state.record_listing(made_listing(KEY, 1, 2, 3, later_begun=True), now=1.0, reached=0.0)
    changed = [step.has_changed]
    step.state.record_listing(made_listing(KEY, 1, 2, 9), now=2.0, reached=0.0)
    changed.append(step.has_changed)
    step.state.record_listing(step.listing, now=3.0, reached=0.0)
    step.state.await_turn(is_quiet=True)
    changed.append(step.has_changed)
    step.state.lose_files()
    changed.append(step.has_changed)
    assert changed == [False, True, True, True]
