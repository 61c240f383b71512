"""Whatever happened to a store before, gc keeps what it promises to keep, and a plan works once."""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from bench.steps import commit_tables, make_tables
from ingest.steps.keeping import newest_steps
from ingest.store_gc.execute import Execution
from ingest.store_gc.inventory import take_inventory
from ingest.store_gc.plan import DAY_S, GcPlan, GcPolicy
from ingest.store_gc.planner import make_plan
from workers.model import StepKey
from workers.store import commit
from workers.store.opening import open_objects, resolve
from workers.store.record import LEAF

#: A disk takes ten times as long to make and remove this many directories.
_MEMORY = Path("/dev/shm")  # noqa: S108  (the directory in it has a name of its own)
_KEYS = st.builds(StepKey, st.integers(0, 1), st.integers(0, 5))
_POLICIES = st.builds(
    GcPolicy,
    st.sampled_from([None, None, 0.0, 30 * DAY_S]),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([None, None, 0, 20_000, 40_000]),
    st.sampled_from([None, 0, 1]),
    st.booleans(),
    st.sampled_from([0.0, DAY_S]),
)


class StoreUnderGc(RuleBasedStateMachine):
    """A store in a directory, to which everything happens that may; and what is committed in it."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None)
        self.store = Path(self._directory.name) / "run.zarr"
        self.objects = open_objects(resolve(self.store))
        commit.ensure_root(self.objects)
        self.committed: dict[StepKey, str] = {}
        self.with_tensors: set[StepKey] = set()
        self.writes = 0

    def teardown(self) -> None:
        self._directory.cleanup()

    @initialize(anomalous=st.dictionaries(_KEYS, st.booleans(), min_size=4, max_size=7))
    def fill(self, anomalous: dict[StepKey, bool]) -> None:
        """Commit some steps some days ago."""
        for key, is_anomalous in anomalous.items():
            self.commit(key, is_anomalous)
        self.let_two_days_pass()

    @rule(key=_KEYS, is_anomalous=st.booleans())
    def commit(self, key: StepKey, is_anomalous: bool) -> None:
        """Commit a step, or commit it again: the previous generation stays."""
        self.writes += 1
        tables = make_tables(key, ["a"], [0] if is_anomalous else [], seed=self.writes)
        fingerprint = commit_tables(self.objects, key, tables)
        self.objects.put(f"{key.path}/{fingerprint}/tensors/float32/c/0", bytes(1000))
        self.committed[key] = fingerprint
        self.with_tensors.add(key)

    @rule(key=_KEYS)
    def crash(self, key: StepKey) -> None:
        """Write a part of a generation and the beginning of a commit, and die."""
        self.writes += 1
        name = f"{self.writes:032x}"
        self.objects.put(f"{key.path}/{name}/tensors/float32/c/0", bytes(1000))
        self.objects.put(f"{key.path}/.{LEAF}.{name}.tmp", b"half")

    @rule(key=_KEYS)
    def remove_commit(self, key: StepKey) -> None:
        """Remove a commit by hand: its generation becomes remains."""
        self.objects.delete(f"{key.path}/{LEAF}")
        self.committed.pop(key, None)
        self.with_tensors.discard(key)

    @rule()
    def let_two_days_pass(self) -> None:
        for path in self.store.rglob("*"):
            written = path.stat().st_mtime - 2 * DAY_S
            os.utime(path, (written, written))

    @rule(policy=_POLICIES)
    def collect(self, policy: GcPolicy) -> None:
        """Make a plan and carry it out, twice."""
        plan = make_plan(take_inventory(self.objects), policy, time.time())
        assert not Execution(self.objects, plan).run().left
        self._assert_kept(plan, policy)
        before = self.objects.sizes()
        again = Execution(self.objects, plan).run()
        assert (again.objects, again.left) == (0, [])
        assert self.objects.sizes() == before
        if policy.max_bytes is None and (policy.tensors_around_anomalies is None or policy.keep_anomalous):
            # Else tombstones take space, and steps with anomalies no longer protect those next to them.
            assert not make_plan(take_inventory(self.objects), policy, time.time()).actions

    def _assert_kept(self, plan: GcPlan, policy: GcPolicy) -> None:
        """Check that a step went as a whole, or lost its tensors, or nothing; and that the newest stayed."""
        gone = {action.key for action in plan.actions if action.what == "step"}
        thinned = {action.key for action in plan.actions if action.what == "tensors"}
        newest = newest_steps(self.committed, policy.keep_last or 0)
        assert not newest & (gone | (thinned & self.with_tensors))
        for key, fingerprint in list(self.committed.items()):
            kept = commit.read(self.objects, key)
            if key in gone:
                assert kept is None
                del self.committed[key]
                self.with_tensors.discard(key)
                continue
            if key in thinned:
                self.with_tensors.discard(key)
            assert kept is not None
            assert kept.fingerprint == fingerprint
            names = self.objects.sizes(kept.prefix)
            assert any(name.startswith("index/") for name in names)
            assert ("tensors/float32/c/0" in names) == (key in self.with_tensors)


TestStoreUnderGc = StoreUnderGc.TestCase
TestStoreUnderGc.settings = settings(max_examples=40, stateful_step_count=8, deadline=None)
