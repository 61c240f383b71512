"""Why files of committed steps stay, over a dump and a store: commits are read, and other ranks looked at."""

from pathlib import Path

import numpy as np
import pytest

from ingest.dump_retention.policy import RetentionPolicy, SourceJudge
from ingest.layouts.detect import find_dump
from ingest.service.service import Service
from ingest.steps.keeping import KeepReason
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from tests.services import make_service
from workers.model import StepKey
from workers.store import commit
from workers.store.opening import open_objects, resolve

FIRST, SECOND = StepKey(0, 0), StepKey(1, 0)


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
    return {step.state.key: step.why_kept[0] if step.why_kept else None for step in judge.judge(states)}


def test_the_newest_of_each_rank_are_known_without_a_commit(filled: MadeDump, store: Path) -> None:
    _, judge = looked(filled, store, RetentionPolicy())
    assert judge.newest() == {StepKey(0, 1), StepKey(1, 1)}


def test_an_anomaly_of_any_rank_keeps_the_step_of_all(filled: MadeDump, store: Path) -> None:
    everything_goes = reasons(*looked(filled, store, RetentionPolicy()))
    assert everything_goes == {FIRST: None, SECOND: None}
    careful = reasons(*looked(filled, store, RetentionPolicy(keep_anomalous=True)))
    assert set(careful.values()) == {KeepReason.ANOMALOUS}


def test_a_rank_that_has_not_committed_leaves_the_others_undecided(filled: MadeDump, store: Path) -> None:
    filled.add(np.ones(3), rank=1, step=0)  # a late file: pending again
    service, judge = looked(filled, store, RetentionPolicy(keep_anomalous=True))
    assert reasons(service, judge) == {FIRST: KeepReason.UNDECIDED}
    service.table[SECOND].lose_files()
    service.table[SECOND].is_unchecked = True
    assert reasons(service, judge) == {FIRST: KeepReason.UNDECIDED}


def test_a_step_that_is_pending_by_now_is_left_out(filled: MadeDump, store: Path) -> None:
    service, judge = looked(filled, store, RetentionPolicy())
    service.table[FIRST].held = None
    assert [step.state.key for step in judge.judge([service.table[FIRST], service.table[SECOND]])] == [SECOND]


def test_files_go_only_with_the_commit_that_was_read_back(filled: MadeDump, store: Path) -> None:
    _, judge = looked(filled, store, RetentionPolicy())
    listing = next(step for step in find_dump(filled.root).scan({}).listings if step.key == FIRST)
    committed = commit.read(open_objects(resolve(str(store))), FIRST)
    assert committed is not None
    assert judge.may_go(listing, committed, committed.fingerprint)
    assert not judge.may_go(listing, committed, "another generation")
    assert not judge.may_go(listing, None, committed.fingerprint)
