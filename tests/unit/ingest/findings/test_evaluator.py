"""A step is evaluated once, and again only when it has become another step."""

import pytest

import ingest
from ingest.api import DumpStore
from ingest.consolidating.consolidator import Consolidator, StepsConsolidated
from ingest.findings.stored import SeriesEvaluator
from tests.rule_sets import consolidated, only, put
from tests.wrapped_objects import WrappedObjects
from workers.errors import StoreUnavailable
from workers.events import Event
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import Tombstone, ensure_tombstones, write_tombstone
from workers.store.objects import ObjectStore


def documents(objects: ObjectStore) -> dict[str, bytes | None]:
    return {name: objects.get(f"findings/{name}") for name in objects.sizes("findings")}


def test_a_step_is_evaluated_once_also_by_another_process_and_after_a_rebuild(objects: ObjectStore) -> None:
    put(objects, [[1], [1], [1]])
    chosen = only(kind="unchanged", include="*Grad*")
    first = consolidated(objects, chosen)
    assert [step.step for step in first if step.result.findings] == [2]
    written = documents(objects)
    assert len(written) == 1 + 3
    assert consolidated(objects, chosen) == []
    other = Consolidator(objects, evaluator=SeriesEvaluator(objects, only(kind="unchanged", steps=2)))
    assert not other.once(rebuild=True).findings
    assert documents(objects) == written


def test_killed_before_it_was_written_a_step_is_evaluated_again(objects: ObjectStore) -> None:
    put(objects, [[1], [1], [1], [1]])
    chosen = only(kind="unchanged", include="*Grad*")
    killed = Consolidator(objects, evaluator=SeriesEvaluator(objects, chosen))
    assert [step.step for step in killed.once(limit=2).findings] == [0, 1]
    steps = consolidated(objects, chosen)
    assert [(step.step, len(step.result.findings)) for step in steps] == [(2, 1), (3, 1)]


class Busy(WrappedObjects):
    """A store that does not take one object at first."""

    key = ""

    def put(self, key: str, data: bytes | bytearray) -> None:
        if self.key and key.startswith(self.key):
            self.key = ""
            raise StoreUnavailable("busy")
        super().put(key, data)


@pytest.mark.parametrize("key", ["findings/2.", "consolidated/zarr.json"])
def test_every_step_is_reported_once_although_the_store_fails_meanwhile(
    key: str, objects: ObjectStore
) -> None:
    """What was found is told to Prometheus and to people by the process that has found it."""
    busy, heard = Busy(objects), list[Event]()
    evaluator = SeriesEvaluator(busy, only(kind="unchanged", include="*Grad*"))
    consolidator = Consolidator(busy, evaluator=evaluator, observers=[heard.append])
    put(objects, [[1]])
    consolidator.once()
    put(objects, [[1], [1], [1], [1]])
    busy.key = key
    with pytest.raises(StoreUnavailable):
        consolidator.once()
    consolidator.once()
    rounds = [event for event in heard if isinstance(event, StepsConsolidated)]
    assert [step.step for event in rounds for step in event.findings] == [0, 1, 2, 3]
    assert [step for event in rounds for step in event.appended] == [0, 1, 2, 3]


def test_a_step_that_is_dumped_again_is_evaluated_again(objects: ObjectStore) -> None:
    chosen = only(kind="unchanged", include="*Grad*")
    put(objects, [[1], [1], [1]])
    consolidated(objects, chosen)
    assert [finding.step for finding in ingest.anomalies(DumpStore(objects)).findings] == [2]
    put(objects, [[1], [1], [5]])
    assert [step.step for step in consolidated(objects, chosen)] == [2]
    assert not ingest.anomalies(DumpStore(objects)).findings


def remove(objects: ObjectStore, key: StepKey) -> None:
    """Remove a step as `gc` does."""
    record = commit.read_records(objects, [key])[key]
    ensure_tombstones(objects, key.rank)
    tombstone = Tombstone(key.rank, key.step or 0, record.fingerprint, int(record.committed_at_s * 1000))
    write_tombstone(objects, tombstone, removed_at="", why="")
    objects.delete(f"{key.path}/zarr.json")


def test_a_step_of_which_ranks_were_removed_is_evaluated_again_only_if_others_dumped_it_again(
    objects: ObjectStore,
) -> None:
    chosen = only(kind="unchanged", include="*Grad*")
    for rank in range(3):
        put(objects, [[1], [1], [1]], rank=rank)
    consolidated(objects, chosen)
    remove(objects, StepKey(1, 2))
    assert consolidated(objects, chosen) == []
    put(objects, [[1], [1], [5]])
    (step,) = consolidated(objects, chosen)
    assert [finding.rank for finding in step.result.findings] == [2]
    remove(objects, StepKey(2, 2))
    assert consolidated(objects, chosen) == []
