"""The catalog reads as much as a question needs, whatever else is in the store."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ingest.api import DumpStore, open_store
from ingest.reader import catalog
from tests.counted_requests import CountedRequests
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from workers.errors import UsageError

#: Of the store `many`.
RANKS, STEPS = 4, 50


def test_one_step_is_one_request(many: Path, requests: CountedRequests) -> None:
    assert requests.of(lambda: open_store(many)) == 1
    opened = open_store(many)
    assert requests.of(lambda: opened.step(3, 7)) == 1
    assert requests.of(lambda: opened.step(3, 7)) == 0


def test_ranks_of_which_only_later_steps_are_committed_are_found(many: Path) -> None:
    for step in range(STEPS - 1):
        (many / f"rank_1/step_{step}/zarr.json").unlink()
        (many / f"rank_2/step_{step}/zarr.json").unlink()
    (many / f"rank_2/step_{STEPS - 1}/zarr.json").unlink()
    assert open_store(many).ranks == [0, 1, 3]


def test_a_step_that_is_not_there_reads_no_commit(many: Path, requests: CountedRequests) -> None:
    """Its hint says what there is; listings tell."""

    def ask() -> None:
        with pytest.raises(UsageError, match="rank 3 step 99") as found:
            open_store(many).step(3, 99)
        assert found.value.hint == "The store has ranks 0-3; rank 3 has steps 0-49."

    assert requests.of(ask) == 1 + 1 + 1 + 1


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
    with pytest.raises(UsageError, match="'1' is not a rank or a step"):  # and not a damaged commit
        store.step("1", 2)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is not a name"):
        store.tensors(["Log*"])  # type: ignore[arg-type]


def test_a_search_reads_each_index_once_and_keeps_what_was_found(
    many: Path, requests: CountedRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index takes megabytes, and there may be ten thousand."""
    monkeypatch.setattr(catalog, "_TABLES_KEPT", 10)
    opened = open_store(many)
    chosen = opened.select()
    # One more, for the consolidated view, which there is not.
    assert requests.of(lambda: opened.tensors(where="nan_count > 0")) == 5 * RANKS * STEPS + 1
    assert requests.of(lambda: chosen[7].tables) == 5
    found = opened.tensors(where="max > 40")
    assert [(tensor.step, tensor.rank) for tensor in found] == [step.key.order for step in chosen]
    assert requests.of(lambda: [tensor.statistics for tensor in found]) == 0


def test_counts_of_nan_and_inf_are_the_truth(dumps: DumpLibrary, tmp_path: Path) -> None:
    """The first question of the engineer: which rank, step and operator was the first to produce a NaN?"""
    directory = dumps["nan-log-2rank"]
    truth: dict[str, Any] = json.loads((directory / "truth.json").read_text())
    ingest_directly(directory / "dump", tmp_path / "run.zarr")
    store = open_store(str(tmp_path / "run.zarr"))
    fields = ("nan", "pos_inf", "neg_inf")
    found = {
        tensor.source: tuple(int(getattr(tensor.statistics, f"{field}_count")) for field in fields)
        for tensor in store.tensors(where="nan_count + pos_inf_count + neg_inf_count > 0")
    }
    assert found == {path: tuple(file[field] for field in fields) for path, file in truth["files"].items()}
    first = store.tensors(where="nan_count > 0")[0]
    assert (first.rank, first.step) == (1, 2)
    assert sum(step.commit.summary.nan_count for step in store.select()) == sum(
        counts[0] for counts in found.values()
    )


def test_tensors_are_found_by_what_is_known_of_them(filled: DumpStore) -> None:
    assert (filled.ranks, filled.steps) == ([0, 1], [8, 9])
    assert len(filled.tensors()) == 40
    assert len(filled.tensors(rank=1)) == 20
    assert len(filled.tensors(rank=[0, 1], step=8)) == 20
    assert len(filled.tensors(op_type="Log", step=[8, 9])) == 20
    assert len(filled.tensors(name="*.a.output.[13]")) == 8
    assert len(filled.tensors(name=re.compile(r"Log.*\.4$"))) == 4
    (tensor,) = filled.tensors(where="nan_count > 0")
    assert (tensor.rank, tensor.step, tensor.name) == (1, 9, "Log.b.output.4")


@pytest.mark.parametrize("choice", [{"rank": 7}, {"step": 3}, {"rank": [0, 7]}, {"where": "nonsense > 1"}])
def test_what_is_not_there_is_said(choice: dict[str, Any], filled: DumpStore) -> None:
    """An empty result would look like a healthy run."""
    with pytest.raises(UsageError) as found:
        filled.tensors(**choice)
    assert found.value.hint
    with pytest.raises(UsageError, match="rank 5 step 1"):
        filled.step(5, 1)


def test_first_argument_of_a_search_is_a_name(filled: DumpStore) -> None:
    assert {tensor.op_type for tensor in filled.tensors("Log*", rank=0, step=8)} == {"Log"}
    with pytest.raises(UsageError, match=r"1 is not a name\n.*tensors\(rank=1, step=2\)"):
        filled.tensors(1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"'Log\*' is not a rank or a step.*\n.*name='Log\*'"):
        filled.select("Log*")


def test_counts_are_whole_numbers(filled: DumpStore) -> None:
    (tensor,) = filled.tensors(where="nan_count > 0")
    assert (repr(tensor.statistics.nan_count), repr(tensor.statistics.count)) == ("1", "50")
