"""What goes to a worker packed is there again when it is unpacked."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.dumps import DumpLibrary
from tests.pipeline import SMALL_GRID, plan_all
from workers.dump.model import TensorName
from workers.tasks import run as tasks
from workers.tasks.columns import EntryColumns
from workers.tasks.convert import convert
from workers.tasks.model import StepPlan


@pytest.fixture(
    params=["lenet-1rank/dump", "cann-bin-synthetic/torchair", "msprobe-26.2.0-pytorch-cpu/tensor-mix"]
)
def plans(request: pytest.FixtureRequest, dumps: DumpLibrary, store: Path) -> list[StepPlan]:
    """The plans of every step of a dump, each of several jobs: npy, several tensors in a file, and `.pt`."""
    name, _, part = request.param.partition("/")
    return plan_all(dumps[name] / part, store, SMALL_GRID)


def assert_same(one: StepPlan, other: StepPlan) -> None:
    # NaN, which statistics that are not known are, equals nothing.
    assert replace(one, reported={}, entries=tuple(one.entries)) == replace(other, reported={})
    assert repr(one.reported) == repr(other.reported)


def without_entries(plan: StepPlan) -> StepPlan:
    return replace(plan, jobs=tuple(replace(job, entries={}) for job in plan.jobs))


def test_a_plan_comes_back_as_it_was(plans: list[StepPlan]) -> None:
    for plan, unpacked in zip(plans, tasks.unpack_steps(tasks.pack_steps(plans)), strict=True):
        assert_same(unpacked, plan)
        assert_same(tasks.unpack_plan(tasks.pack_plan(plan)), without_entries(plan))
    assert any(len(plan.jobs) > 1 for plan in plans)


def test_a_job_comes_back_without_names_and_makes_the_same(plans: list[StepPlan]) -> None:
    for job in plans[-1].jobs[:20]:
        packed = tasks.pack_convert(job)
        unpacked = tasks.unpack_convert(packed)
        assert list(unpacked.entries) == list(job.entries)
        for row, entry in job.entries.items():
            other = unpacked.entries[row]
            assert (other.source, other.kind, other.header) == (entry.source, entry.kind, entry.header)
            assert other.source.writable == entry.source.writable
            assert other.name == TensorName()
        here, there = convert(job), tasks.run_convert(packed)
        assert here.digests.tolist() == there.digests.tolist()
        assert here.stored == there.stored


def test_a_step_of_which_nothing_is_read_comes_back(plans: list[StepPlan]) -> None:
    empty = replace(plans[0], entries=(), jobs=())
    assert_same(tasks.unpack_plan(tasks.pack_plan(empty)), empty)


def test_entries_by_columns_are_the_entries(plans: list[StepPlan]) -> None:
    entries = plans[-1].entries
    by_columns = EntryColumns.of(entries)
    assert len(by_columns) == len(entries)
    assert list(by_columns) == list(entries)
    assert [by_columns[0], by_columns[-1]] == [entries[0], entries[-1]]
    assert list(by_columns[1:3]) == list(entries[1:3])
    assert list(by_columns.column("name.op_name")) == [entry.name.op_name for entry in entries]
    assert EntryColumns.of(by_columns) is by_columns
    with pytest.raises(IndexError):
        by_columns[len(entries)]


def test_a_step_without_entries_has_no_columns() -> None:
    nothing = EntryColumns.of(())
    assert (len(nothing), list(nothing), list(nothing.column("kind"))) == (0, [], [])
