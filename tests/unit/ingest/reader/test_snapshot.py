"""A store at one moment: its steps, tensors and statistics, and what is missing or damaged."""

import json
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import ingest
from ingest.api import DumpStore, open_store
from ingest.questions.name_pattern import BoundedPattern
from ingest.reader import catalog
from ingest.reader.catalog import Damage, DamagedStepWarning, warn_of
from ingest.reader.snapshot import LeftOut, take_snapshot
from ingest.reader.step_tables import histograms_of
from ingest.reader.tensor_filter import FilterFields, TensorFilter, checked_role
from ingest.reader.verifying import WRONG_SKETCHES, verify
from tests.cli import run_here
from tests.counted_requests import CountedRequests
from tests.damages import forget_checksums
from tests.replicas import Replicas
from tests.stores import DumpLibrary, MadeDump, ingest_and_open, ingest_directly, tensor_name
from workers.errors import DamagedStore, StoreDenied, TensorsRemoved, UsageError
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import Commit
from workers.store.model import StoreAddress
from workers.store.opening import open_objects
from workers.store.record import WithoutTensors
from workers.store.sketches import HISTOGRAM_TABLE, HISTOGRAMS

# A snapshot has the complete steps of one moment, and names all others.


def made() -> Replicas:
    """Two ranks with steps 0 to 2, of which rank 1 step 1 is partial."""
    replicas = Replicas()
    for rank in (0, 1):
        for step in range(3):
            status = "partial" if (rank, step) == (1, 1) else "complete"
            replicas.put(rank, step, {"Add.a.output.0": step}, status=status)
    return replicas


def test_complete_steps_are_taken_and_others_named() -> None:
    replicas = made()
    replicas.objects.put("rank_1/step_5/half-written", b"")
    replicas.objects.put("rank_0/step_7/zarr.json", b"{}")
    snapshot = take_snapshot(replicas.store)
    assert snapshot.keys == [StepKey(r, s) for r, s in ((0, 0), (1, 0), (0, 1), (0, 2), (1, 2))]
    partial, uncommitted, damaged = snapshot.left_out
    assert partial == LeftOut(StepKey(1, 1), "partial")
    assert uncommitted == LeftOut(StepKey(1, 5), "not committed")
    assert (damaged.key, damaged.reason.split(":")[0]) == (StepKey(0, 7), "damaged")


def test_a_part_of_a_snapshot_has_the_chosen_ranks_and_steps() -> None:
    snapshot = take_snapshot(made().store)
    assert snapshot.only(ranks=[1]).keys == [StepKey(1, 0), StepKey(1, 2)]
    assert snapshot.only(ranks=[0, 1], steps={2, 9}).keys == [StepKey(0, 2), StepKey(1, 2)]
    assert snapshot.only(steps=[0]).left_out == snapshot.left_out
    assert snapshot.only() is snapshot.only(ranks=[1, 0], steps=range(3)) is snapshot


def test_partial_steps_are_taken_on_request() -> None:
    snapshot = take_snapshot(made().store, include_partial=True)
    assert len(snapshot.keys) == 6
    assert snapshot.left_out == ()


def test_later_commits_change_nothing_in_it() -> None:
    replicas = made()
    store = replicas.store
    assert store.steps == [0, 1, 2]
    before = take_snapshot(store)
    replicas.put(0, 3, {"Add.a.output.0": 3})
    assert before.steps == [0, 1, 2]
    # A snapshot of the same store object reads the commits again.
    assert take_snapshot(store).steps == [0, 1, 2, 3]


def test_without_a_complete_step_the_error_names_the_first_that_is_not() -> None:
    with pytest.raises(UsageError, match=r"no complete step \(rank 1 step 1: partial\)") as raised:
        take_snapshot(made().store, rank=1, step=1)
    assert "--include-partial" in raised.value.hint


@pytest.mark.parametrize(
    "ask",
    [take_snapshot, ingest.layout, ingest.missing, lambda store: ingest.next_dump(store, "tensor", "a")],
)
def test_a_url_in_the_place_of_a_store_is_told(store: Path, ask: Callable[[Any], object]) -> None:
    for text in (store, str(store)):
        with pytest.raises(UsageError, match="is where a store is, and not a store") as caught:
            ask(text)
        assert "open_store" in caught.value.hint


# The catalog reads as much as a question needs, whatever else is in the store.


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
    store = ingest_and_open(directory / "dump", tmp_path / "run.zarr")
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


# Answers go on without damaged steps, and say so.


DAMAGES = [Damage(StepKey(0, 1), "a.npy", "truncated"), Damage(StepKey(0, 2), "", "missing")]


def test_damaged_steps_are_warned_of_once() -> None:
    with pytest.warns(DamagedStepWarning) as warned:
        warn_of(DAMAGES, has_others=True)
    assert [str(warning.message) for warning in warned] == [
        "left out: rank 0 step 1: a.npy: truncated, and 1 more damaged steps"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of([], has_others=False)


# What is not a store is called by its name, with the command that was meant.


def refusal(place: Path | str) -> UsageError:
    with pytest.raises(UsageError) as error:
        open_store(place)
    return error.value


def test_a_file_is_called_a_file(tmp_path: Path) -> None:
    rules, other = tmp_path / "rules.yml", tmp_path / "notes.txt"
    for path in (rules, other):
        path.write_text("")
    assert refusal(rules).message == f"{rules} is a file, not a store"
    assert "--rules" in refusal(rules).hint
    assert "Name the directory or URL of a store" in refusal(other).hint


def test_a_dump_is_called_a_dump_and_how_to_ingest_it_is_told(dumps: DumpLibrary) -> None:
    dump = dumps["nan-log-2rank"] / "dump"
    assert refusal(dump).message == f"{dump} holds a dump, not a store"
    assert refusal(dump).hint == f"Ingest it first: dump-ingest ingest {dump} --store run.zarr"


def test_a_part_of_a_store_names_the_store(dumps: DumpLibrary, store: Path) -> None:
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    for part in ("rank_0", "rank_0/step_1"):
        assert refusal(store / part).hint == f"Name the store: {store}"
    assert refusal(store / "zarr.json").hint == f"It is a part of a store. Name the store: {store}"


def test_a_store_that_may_not_be_read_is_denied(store: Path, other_user: int) -> None:
    store.mkdir(mode=0o700)
    os.seteuid(other_user)
    try:
        with pytest.raises(StoreDenied):
            open_store(store)
    finally:
        os.seteuid(0)


# The histograms of a step, and verifying them.


@pytest.fixture
def opened(made: MadeDump, store: Path) -> ingest.DumpStore:
    """Tensors of real and of complex numbers."""
    made.add(np.array([1, -2, 0, np.nan, np.inf], "<f4"), tensor_name(time=1), step=0)
    made.add(np.array([3, 4], "<i2"), tensor_name(slot=1, time=2), step=0)
    made.add(np.array([1 + 2j], "<c8"), tensor_name(slot=2, time=3), step=0)
    return ingest_and_open(made.root, store, sketches=True)


def rewrite(committed: Commit, store: Path, entries: list[list[int]]) -> None:
    """Put other histograms of the same shape in their place, which a commit without checksums allows."""
    _, chunks = HISTOGRAM_TABLE.encode(np.array(entries))
    (store / committed.prefix / HISTOGRAM_TABLE.chunk).write_bytes(chunks[HISTOGRAM_TABLE.chunk])
    forget_checksums(store / committed.key.path / "zarr.json")


def test_a_histogram_that_contradicts_statistics_or_tensor_is_damage(
    opened: ingest.DumpStore, store: Path
) -> None:
    forget_checksums(store / "rank_0/step_0/zarr.json")
    committed = opened.step(0, 0).commit
    assert list(verify(opened)) == []
    rewrite(committed, store, [[0, -1, 1, 0], [0, 5, 0, 1], [1, 1, 2, 0]])
    (damage,) = verify(opened)
    assert damage.reason == WRONG_SKETCHES[HISTOGRAMS]
    rewrite(committed, store, [[0, -1, 1, 0], [0, 0, 0, 7], [1, 1, 2, 0]])
    (damage,) = verify(opened)
    assert "counts other elements than the statistics" in damage.reason
    with pytest.raises(DamagedStore, match="histograms of row 0"):
        histograms_of(ingest.open_store(store).step(0, 0))


# Statistics of a step are the same, whether they come from the cubes or from the indexes of the ranks.


# Choosing tensors: every condition by itself and together, and what is not one.


COLUMNS = {
    "name": np.array(["MatMul.a.output.0", "MatMul.b[0].output.0", "Log.c.input.0"], object),
    "op_type": np.array(["MatMul", "MatMul", "Log"], object),
    "io": np.array(["output", "output", "input"], object),
    "role": np.array(["activation", "gradient", ""], object),
    "max": np.array([1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        ({}, [0, 1, 2]),
        ({"op_type": "MatMul"}, [0, 1]),
        ({"op_type": "MatMul", "role": "gradient"}, [1]),
        ({"role": "Gradients"}, [1]),
        ({"name": "MatMul.*"}, [0, 1]),
        ({"name": "MatMul.b[0].output.0"}, [1]),
        ({"name": re.compile("put")}, [0, 1, 2]),
        ({"name": "*.output.*", "where": "max > 1"}, [1]),
        ({"where": "role == 'activation' or io == 'input'"}, [0, 2]),
        ({"op_type": None, "io": "input"}, [2]),
    ],
)
def test_all_conditions_count(fields: FilterFields, chosen: list[int]) -> None:
    choice = TensorFilter(fields, frozenset(COLUMNS))
    assert np.flatnonzero(choice.mask(COLUMNS, 3)).tolist() == chosen
    assert choice.names <= COLUMNS.keys()


def test_names_count_for_every_rank() -> None:
    choice = TensorFilter({"name": "MatMul.*", "where": "max > 1"}, frozenset(COLUMNS))
    columns = {**COLUMNS, "max": np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 3.0]])}
    assert choice.evaluate(columns, (2, 3)).tolist() == [[False, True, False], [True, False, False]]
    assert not choice.is_of_names
    assert TensorFilter({"name": "x", "io": "output"}, frozenset(COLUMNS)).is_of_names


@pytest.mark.parametrize(
    ("text", "role"),
    [("LOSS", "loss"), ("losses", "loss"), ("optimizer state", "optimizer_state"), ("weights", "weight")],
)
def test_roles_are_understood_as_people_write_them(text: str, role: str) -> None:
    assert checked_role(text) == role


def test_what_is_not_a_role_is_refused_and_a_similar_one_suggested() -> None:
    with pytest.raises(UsageError, match="'gradeint' is not a role") as error:
        TensorFilter({"role": "gradeint"}, frozenset(COLUMNS))
    assert error.value.hint.startswith("Did you mean gradient?")
    with pytest.raises(UsageError) as error:
        checked_role("xyz")
    assert error.value.hint.startswith("Roles: loss")
    with pytest.raises(UsageError, match="'roel'"):
        TensorFilter({"where": "roel == 'loss'"}, frozenset(COLUMNS))


@pytest.mark.parametrize(
    ("fields", "message"), [({"nme": "Log*"}, "chosen by 'nme'"), ({"graph": 0}, "graph=0 is not text")]
)
def test_what_would_choose_all_tensors_is_refused(fields: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        TensorFilter(fields, frozenset(["name"]))
    assert error.value.hint


# Steps that are kept without the payloads of their tensors.


WHY = WithoutTensors("2026-01-02T03:04:05+00:00", "gc", "no anomaly within 3 steps")
KEY = StepKey(1, 2)


@pytest.fixture
def stripped(dumps: DumpLibrary, tmp_path: Path) -> Path:
    """A store of which rank 1 step 2, where the NaN is born, has lost its tensors."""
    path = tmp_path / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", path)
    objects = open_objects(StoreAddress(str(path)))
    found = commit.read(objects, KEY)
    assert found is not None
    after = commit.drop_tensors(objects, found, WHY)
    assert after.without_tensors == WHY
    assert after.fingerprint == found.fingerprint
    assert after.summary.stored_bytes < found.summary.stored_bytes
    assert after.summary.nan_count == found.summary.nan_count
    for shard in found.record.stored.keys() - after.record.stored.keys():
        (path / found.prefix / shard).unlink()
    return path


def test_everything_but_values_is_there(stripped: Path) -> None:
    opened = ingest.open_store(stripped)
    assert list(opened.verify()) == []
    assert not opened.step(1, 2).has_tensors
    assert opened.step(0, 2).has_tensors
    assert next(tensor.op_type for tensor in opened.tensors(where="nan_count > 0")) == "Log"
    origin = ingest.origin(opened)
    assert (origin.rank, origin.step, origin.op_type) == (1, 2, "Log")


def test_values_are_refused_with_the_reason(stripped: Path) -> None:
    tensor = ingest.open_store(stripped).tensors(rank=1, step=2, where="nan_count > 0")[0]
    with pytest.raises(TensorsRemoved, match=r"rank 1 step 2: the tensors were removed on 2026-01-02T03:04"):
        tensor.read()
    assert str(WHY) in run_here("show", stripped, "Log*output.0", "--rank", "1", "--step", "2").stdout


def test_a_plain_zarr_reader_finds_no_array_to_fill_with_zeros(stripped: Path) -> None:
    generation = ingest.open_store(stripped).step(1, 2).fingerprint
    leaf = zarr.open_group(stripped / KEY.path, mode="r")
    assert f"{generation}/statistics" in leaf
    assert f"{generation}/tensors" not in leaf


# A regular expression of a user ends.


def test_it_is_searched_for_like_a_pattern() -> None:
    pattern = BoundedPattern(r"^Log\..*output\.(\d+)$")
    assert pattern.search("Log.net-op0.output.0")
    assert pattern.search("MatMul.net-op0.output.0") is None


def test_one_that_backtracks_without_end_is_given_up() -> None:
    pattern = BoundedPattern(r"^(a|aa)+[^a]$", limit_s=0.2)
    with pytest.raises(UsageError, match="takes too long for 'aaa"):
        pattern.search("a" * 80)
