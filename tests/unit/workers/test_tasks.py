"""What goes to a worker packed is there again when it is unpacked."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.dumps import DumpLibrary
from tests.pipeline import SMALL_GRID, plan_all
from workers import tasks
from workers.convert import convert
from workers.model import StepPlan, TensorName


@pytest.fixture(
    params=["lenet-1rank/dump", "cann-bin-synthetic/torchair", "msprobe-26.2.0-pytorch-cpu/tensor-mix"]
)
def plans(request: pytest.FixtureRequest, dumps: DumpLibrary, store: Path) -> list[StepPlan]:
    """The plans of every step of a dump, each of several jobs: npy, several tensors in a file, and `.pt`."""
    name, _, part = request.param.partition("/")
    return plan_all(dumps[name] / part, store, SMALL_GRID)


def assert_same(one: StepPlan, other: StepPlan) -> None:
    # NaN, which statistics that are not known are, equals nothing.
    assert replace(one, reported={}) == replace(other, reported={})
    assert repr(one.reported) == repr(other.reported)


def test_a_plan_comes_back_as_it_was(plans: list[StepPlan]) -> None:
    for plan in plans:
        assert_same(tasks.unpack_plan(tasks.pack_plan(plan)), plan)
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
