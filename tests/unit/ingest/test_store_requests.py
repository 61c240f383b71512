"""What is asked of the store: as much as the question needs, whatever else is in it."""

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from ingest.api import DumpStore, open_store
from ingest.reader import catalog as reader
from ingest.reader.catalog import Damage
from tests.npy_files import MadeDump
from tests.pipeline import SMALL_GRID, ingest_directly
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey
from workers.store.backends.observed import ObservedObjects

RANKS, STEPS = 4, 50


class Counting:
    """Counts what an object store is asked for: objects, ranges and listings, one each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        get, get_many, get_range, children = (
            ObservedObjects.get,
            ObservedObjects.get_many,
            ObservedObjects.get_range,
            ObservedObjects.children,
        )

        def count_get(this: ObservedObjects, key: str) -> bytes | None:
            self.asked.append(key)
            return get(this, key)

        def count_get_many(this: ObservedObjects, keys: Sequence[str]) -> dict[str, bytes]:
            self.asked += keys
            return get_many(this, keys)

        def count_get_range(
            this: ObservedObjects, key: str, start: int, stop: int | None = None
        ) -> bytes | None:
            self.asked.append(key)
            return get_range(this, key, start, stop)

        def count_children(this: ObservedObjects, prefix: str = "") -> list[str]:
            self.asked.append(f"{prefix}/")
            return children(this, prefix)

        monkeypatch.setattr(ObservedObjects, "get", count_get)
        monkeypatch.setattr(ObservedObjects, "get_many", count_get_many)
        monkeypatch.setattr(ObservedObjects, "get_range", count_get_range)
        monkeypatch.setattr(ObservedObjects, "children", count_children)

    def of(self, question: Callable[[], object]) -> int:
        """Return how many requests a question takes."""
        self.asked.clear()
        question()
        return len(self.asked)


@pytest.fixture
def many(made: MadeDump, store: Path) -> Path:
    """Many steps of several ranks, each with what the first one holds."""
    made.add(np.arange(50.0, dtype=np.float32))
    ingest_directly(made.root, store)
    leaf = json.loads((store / "rank_0/step_0/zarr.json").read_text())
    (generation,) = [path for path in (store / "rank_0/step_0").iterdir() if path.is_dir()]
    for rank in range(RANKS):
        (store / f"rank_{rank}").mkdir(exist_ok=True)
        for step in range(STEPS):
            target = store / f"rank_{rank}/step_{step}"
            if (rank, step) != (0, 0):
                target.mkdir()
                (target / generation.name).symlink_to(generation)
                leaf["attributes"]["dump_ingest"] |= {"rank": rank, "step": step}
                (target / "zarr.json").write_text(json.dumps(leaf))
    return store


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(monkeypatch)


def test_one_step_is_one_request(many: Path, counting: Counting) -> None:
    assert counting.of(lambda: open_store(many)) == 1
    opened = open_store(many)
    assert counting.of(lambda: opened.step(3, 7)) == 1
    assert counting.of(lambda: opened.step(3, 7)) == 0


def test_a_selection_costs_what_it_selects(many: Path, counting: Counting) -> None:
    assert counting.of(lambda: open_store(many).select(3, 7)) == 1 + 1
    assert counting.of(lambda: open_store(many).select([1, 3], [7, 8, 9])) == 1 + 6
    # With the ranks listed, or the steps of one rank.
    assert counting.of(lambda: open_store(many).select(step=7)) == 1 + 1 + RANKS
    assert counting.of(lambda: open_store(many).select(rank=3)) == 1 + 1 + STEPS


def test_ranks_cost_what_there_are_of_ranks(many: Path, counting: Counting) -> None:
    opened = open_store(many)
    assert counting.of(lambda: opened.ranks) == 1 + 2 * RANKS
    assert opened.ranks == [0, 1, 2, 3]


def test_ranks_of_which_only_later_steps_are_committed_are_found(many: Path) -> None:
    for step in range(STEPS - 1):
        (many / f"rank_1/step_{step}/zarr.json").unlink()
        (many / f"rank_2/step_{step}/zarr.json").unlink()
    (many / f"rank_2/step_{STEPS - 1}/zarr.json").unlink()
    assert open_store(many).ranks == [0, 1, 3]


def test_a_step_that_is_not_there_reads_no_commit(many: Path, counting: Counting) -> None:
    """Its hint says what there is; listings tell."""

    def ask() -> None:
        with pytest.raises(UsageError, match="rank 3 step 99") as found:
            open_store(many).step(3, 99)
        assert found.value.hint == "The store has ranks 0-3; rank 3 has steps 0-49."

    assert counting.of(ask) == 1 + 1 + 1 + 1


def test_hints_name_steps_that_are_there_of_the_ranks_that_were_asked_for(many: Path) -> None:
    (many / "rank_1/step_3/zarr.json").unlink()
    store = open_store(many)
    for rank, step, what, of in (
        (9, 3, "no rank 9", "The store has ranks 0-3 and steps 0-49."),
        (1, 3, "no step 3", "The store has ranks 0-3; rank 1 has steps 0-2, 4-49."),
        (None, 99, "no step 99", "The store has ranks 0-3 and steps 0-49."),
    ):
        with pytest.raises(UsageError, match=what) as found:
            store.select(rank, step)
        assert found.value.hint == of
    with pytest.raises(UsageError, match="rank 9 step 3 is not in the store") as found:
        store.step(9, 3)
    assert found.value.hint == "The store has ranks 0-3 and steps 0-49."
    with pytest.raises(UsageError, match="rank 1 step 3 is not in the store") as found:
        store.step(1, 3)
    assert found.value.hint == "The store has ranks 0-3; rank 1 has steps 0-2, 4-49."


def test_everything_is_read_once(many: Path, counting: Counting) -> None:
    opened = open_store(many)
    assert counting.of(opened.select) == 1 + RANKS + RANKS * STEPS
    assert counting.of(opened.select) == 0
    assert len(opened.keys) == RANKS * STEPS
    assert opened.steps == list(range(STEPS))


def test_one_tensor_is_at_most_two_requests_after_its_step_was_opened(many: Path, counting: Counting) -> None:
    step = open_store(many).step(3, 7)
    (tensor,) = step.tensors()
    assert counting.of(tensor.read) <= 2


def test_one_damaged_commit_is_listed_beside_the_others(many: Path) -> None:
    (many / "rank_1/step_3/zarr.json").write_text("{}")
    opened = open_store(many)
    damages: list[Damage] = []
    assert len(opened.select(damages=damages)) == RANKS * STEPS - 1
    assert [damage.key for damage in damages] == [StepKey(1, 3)]
    assert "rank_1/step_3/zarr.json" in damages[0].reason
    with pytest.raises(DamagedStore, match="rank_1/step_3"):
        opened.select()
    # It is there, after all.
    assert StepKey(1, 3) in opened.keys
    assert opened.ranks == [0, 1, 2, 3]
    assert [damage.key for damage in opened.verify(rank=1, step=[2, 3])] == [StepKey(1, 3)]


def test_a_search_reads_each_index_once_and_keeps_what_was_found(
    many: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index takes megabytes, and there may be ten thousand."""
    monkeypatch.setattr(reader, "_TABLES_KEPT", 10)
    opened = open_store(many)
    chosen = opened.select()
    assert counting.of(lambda: opened.tensors(where="nan_count > 0")) == 5 * RANKS * STEPS
    assert counting.of(lambda: chosen[7].tables) == 5
    found = opened.tensors(where="max > 40")
    assert [(tensor.step, tensor.rank) for tensor in found] == [one.key.order for one in chosen]
    assert counting.of(lambda: [tensor.statistics for tensor in found]) == 0


def test_a_lazy_array_outlives_a_new_generation(made: MadeDump, store: Path) -> None:
    """It was made from the old one, whose objects are still there."""
    path = made.add(np.arange(50.0))
    ingest_directly(made.root, store, SMALL_GRID)
    (old,) = open_store(store).tensors()
    lazy = old.dask()
    path.write_bytes(path.read_bytes()[:-8] + np.float64(7).tobytes())
    ingest_directly(made.root, store, SMALL_GRID)
    assert open_store(store).tensors()[0].read()[-1] == 7
    np.testing.assert_array_equal(lazy.compute(), np.arange(50.0))
    assert open_store(store).tensors()[0].dask().name != lazy.name


def test_a_lazy_array_is_small_and_reads_no_index(many: Path, counting: Counting) -> None:
    (tensor,) = open_store(many).step(3, 7).tensors()
    sent = pickle.dumps(tensor.dask())
    assert len(sent) < 10_000
    counting.asked.clear()
    np.testing.assert_array_equal(pickle.loads(sent).compute(), np.arange(50.0))  # noqa: S301
    assert len(counting.asked) <= 2


def test_a_step_travels(many: Path) -> None:
    step = open_store(many).step(1, 2)
    there = pickle.loads(pickle.dumps(step))  # noqa: S301
    assert there.key == step.key
    np.testing.assert_array_equal(there.tensors()[0].read(), step.tensors()[0].read())


def test_store_is_not_read_before_it_is_asked(many: Path, counting: Counting) -> None:
    opened = open_store(many)
    assert isinstance(opened, DumpStore)
    assert counting.of(lambda: repr(opened)) == 0
