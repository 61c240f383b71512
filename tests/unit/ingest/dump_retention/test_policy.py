"""Why files of committed steps stay, over a dump and a store: commits are read, and other ranks looked at."""

from pathlib import Path

import numpy as np
import pytest

from ingest.dump_retention.policy import RetentionPolicy, SourceJudge
from ingest.service.service import Service
from ingest.steps.events import KeepReason, newest_steps
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from tests.services import make_service
from workers.model import StepKey

FIRST, SECOND = StepKey(0, 0), StepKey(1, 0)
CAREFUL = RetentionPolicy(keep_anomalous=True)


@pytest.fixture
def filled(made: MadeDump, store: Path) -> MadeDump:
    """Two ranks of two steps, in the store; step 0 of rank 1 has a NaN."""
    for rank in range(2):
        for step in range(2):
            value = np.nan if (rank, step) == (1, 0) else 1.0
            made.add(np.full(10, value, "<f4"), rank=rank, step=step)
    ingest_directly(made.root, store)
    return made


def looked(made: MadeDump, store: Path, policy: RetentionPolicy) -> tuple[Service, SourceJudge]:
    """Return a service that looked once, and the judge that it asks."""
    service = make_service(made.root, store, retention=policy, host="test-host")
    service.scan()
    assert service.retention is not None
    return service, service.retention.judge


def reasons(service: Service, judge: SourceJudge) -> dict[StepKey, KeepReason | None]:
    states = [state for state in service.table if state.held and state.key.step == 0]
    return {state.key: why[0] if why else None for state, _, _, why in judge.judge(states)}


@pytest.mark.parametrize(("keep_last", "newest"), [(1, {5}), (2, {3, 5}), (9, {1, 3, 5})])
def test_the_newest_steps_of_each_rank_are_so_by_number(keep_last: int, newest: set[int]) -> None:
    keys = [StepKey(0, 5), StepKey(0, 1), StepKey(0, None), StepKey(0, 3), StepKey(7, 0)]
    chosen = newest_steps(keys, keep_last)
    assert {key.step for key in chosen if key.rank == 0} == newest
    assert StepKey(7, 0) in chosen


def test_one_step_of_each_rank_stays_at_least(filled: MadeDump, store: Path) -> None:
    _, judge = looked(filled, store, RetentionPolicy(keep_last=0))
    assert judge.newest() == {StepKey(0, 1), StepKey(1, 1)}


def test_a_rank_that_has_not_committed_leaves_the_others_undecided(filled: MadeDump, store: Path) -> None:
    filled.add(np.ones(3), rank=1, step=0)  # a late file: pending again
    service, judge = looked(filled, store, CAREFUL)
    assert reasons(service, judge) == {FIRST: KeepReason.UNDECIDED}
    service.table.ensure(SECOND).lose_files()
    service.table.ensure(SECOND).is_unchecked = True
    assert reasons(service, judge) == {FIRST: KeepReason.UNDECIDED}
