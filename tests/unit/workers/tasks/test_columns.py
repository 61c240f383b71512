"""Entries by columns are the entries."""

import pickle
from pathlib import Path

import pytest

from tests.dumps import DumpLibrary
from tests.pipeline import plan_all
from workers.dump.model import TensorName
from workers.tasks.columns import EntryColumns, payload_columns, payload_entries
from workers.tasks.model import Entry


@pytest.fixture(
    params=["lenet-1rank/dump", "cann-bin-synthetic/torchair", "msprobe-26.2.0-pytorch-cpu/tensor-mix"]
)
def entries(request: pytest.FixtureRequest, dumps: DumpLibrary, store: Path) -> tuple[Entry, ...]:
    """The entries of a step: npy, several tensors in a file, and `.pt`."""
    name, _, part = request.param.partition("/")
    return tuple(plan_all(dumps[name] / part, store)[-1].entries)


def test_entries_by_columns_are_the_entries(entries: tuple[Entry, ...]) -> None:
    by_columns = EntryColumns.of(entries)
    assert len(by_columns) == len(entries)
    assert list(by_columns) == list(entries)
    assert [by_columns[0], by_columns[-1]] == [entries[0], entries[-1]]
    assert list(by_columns[1:3]) == list(entries[1:3])
    assert list(by_columns.column("name.op_name")) == [entry.name.op_name for entry in entries]
    assert EntryColumns.of(by_columns) is by_columns
    with pytest.raises(IndexError):
        by_columns[len(entries)]


def test_columns_come_back_from_a_pickle(entries: tuple[Entry, ...]) -> None:
    by_columns = pickle.loads(pickle.dumps(EntryColumns.of(entries)))  # noqa: S301  (its own)
    assert list(by_columns) == list(entries)


def test_entries_of_payloads_have_no_names(entries: tuple[Entry, ...]) -> None:
    for entry, payload in zip(entries, payload_entries(payload_columns(entries)), strict=True):
        assert (payload.source, payload.kind, payload.header) == (entry.source, entry.kind, entry.header)
        assert (payload.name, payload.problem) == (TensorName(), "")


def test_a_step_without_entries_has_no_columns() -> None:
    nothing = EntryColumns.of(())
    assert (len(nothing), list(nothing), list(nothing.column("kind"))) == (0, [], [])
