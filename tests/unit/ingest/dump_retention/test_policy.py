"""Which committed steps may be deleted. What must stay is never deleted, whatever happens in which order."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ingest.dump_retention.policy import NO_NEWS, Candidate, RetentionPolicy
from ingest.steps.keeping import KeepReason
from tests.made_steps import made_commit
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.commit import Commit

KEY = StepKey(0, 1)
WHOLE = made_commit(KEY, "a")


@pytest.mark.parametrize(("keep_last", "newest"), [(0, {5}), (1, {5}), (2, {3, 5}), (9, {1, 3, 5})])
def test_the_newest_steps_of_each_rank_are_so_by_number(keep_last: int, newest: set[int]) -> None:
    keys = [StepKey(0, 5), StepKey(0, 1), StepKey(0, None), StepKey(0, 3), StepKey(7, 0)]
    chosen = RetentionPolicy(keep_last).newest(keys)
    assert {key.step for key in chosen if key.rank == 0} == newest
    assert StepKey(7, 0) in chosen


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Candidate(WHOLE), None),
        (Candidate(WHOLE, is_newest=True), KeepReason.NEWEST),
        (Candidate(None), KeepReason.NO_COMMIT),
        (Candidate(made_commit(KEY, "a", status="partial")), KeepReason.PARTIAL),
        (Candidate(WHOLE, UsageError("another dump")), KeepReason.ELSEWHERE),
        (Candidate(WHOLE, undecided=StepKey(1, 1), anomalous=KEY), KeepReason.UNDECIDED),
        (Candidate(WHOLE, anomalous=StepKey(1, 1)), KeepReason.ANOMALOUS),
    ],
)
def test_a_step_stays_for_the_first_reason_that_there_is(step: Candidate, reason: KeepReason | None) -> None:
    why = RetentionPolicy(keep_anomalous=True).why_kept(step)
    assert (None if why is None else why[0]) is reason
    assert why is None or why[1]


def test_anomalies_count_only_if_that_was_asked_for() -> None:
    assert RetentionPolicy().why_kept(Candidate(WHOLE, undecided=KEY, anomalous=KEY)) is None


def test_what_was_asked_for_is_no_news() -> None:
    assert RetentionPolicy(2).why_newest() == (KeepReason.NEWEST, "of the newest 2 of its rank")
    assert KeepReason.NEWEST in NO_NEWS
    assert KeepReason.NOT_STORED not in NO_NEWS


keys = st.builds(StepKey, st.integers(0, 1), st.integers(0, 4))


class Deleting(RuleBasedStateMachine):
    """Steps that come, are committed in one way or another, and are deleted as soon as they may be."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = RetentionPolicy()
        self.dump: dict[StepKey, Commit | None] = {}
        """What the dump has, and how it is committed; None while it is pending."""
        self.deleted: dict[StepKey, Commit] = {}

    @initialize(keep_last=st.integers(0, 3), keep_anomalous=st.booleans())
    def choose(self, keep_last: int, keep_anomalous: bool) -> None:
        self.policy = RetentionPolicy(keep_last, keep_anomalous)

    @rule(key=keys)
    def dump_has(self, key: StepKey) -> None:
        self.dump.setdefault(key, None)

    @rule(
        key=keys,
        status=st.sampled_from(["complete", "partial"]),
        anomalous=st.integers(0, 1),
        removed_tensors=st.booleans(),
        root=st.sampled_from(["/dump", "/other"]),
    )
    def is_committed(
        self, key: StepKey, status: str, anomalous: int, *, removed_tensors: bool, root: str
    ) -> None:
        if key in self.dump:
            self.dump[key] = made_commit(
                key, "a", status=status, anomalous=anomalous, removed_tensors=removed_tensors, root=root
            )

    @rule()
    def deletes(self) -> None:
        newest = self.policy.newest(self.dump)
        for key, commit in list(self.dump.items()):
            if commit is not None and self.policy.why_kept(self._candidate(key, commit, newest)) is None:
                self._check(key, commit)
                self.deleted[key] = commit
                del self.dump[key]

    def _candidate(self, key: StepKey, commit: Commit, newest: set[StepKey]) -> Candidate:
        alike = [(other, committed) for other, committed in self.dump.items() if other.step == key.step]
        pending = [other for other, committed in alike if committed is None]
        bad = [
            other for other, committed in alike if committed is not None and committed.summary.is_anomalous
        ]
        elsewhere = UsageError("from elsewhere") if commit.record.source.root != "/dump" else None
        return Candidate(commit, elsewhere, key in newest, next(iter(pending), None), next(iter(bad), None))

    def _check(self, key: StepKey, commit: Commit) -> None:
        later = [
            other for other in self.dump if other.rank == key.rank and (other.step or 0) > (key.step or 0)
        ]
        assert len(later) >= max(self.policy.keep_last, 1)
        assert commit.summary.status == "complete"
        assert commit.without_tensors is None
        assert commit.record.source.root == "/dump"
        if self.policy.keep_anomalous:
            assert not commit.summary.is_anomalous
            assert all(
                committed is not None for other, committed in self.dump.items() if other.step == key.step
            )

    @invariant()
    def every_rank_that_had_a_step_still_has_one(self) -> None:
        assert {key.rank for key in self.deleted} <= {key.rank for key in self.dump}


Deleting.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
TestDeleting = Deleting.TestCase
