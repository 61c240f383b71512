"""What a task does, and what it is called."""

from pathlib import Path

import numpy as np
import pytest

from ingest.dispatch.submitter import PUBLISH, WHOLE, OfferedStep, TaskPart, call_of
from ingest.steps.state import StepState
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import SMALL_GRID, plan_all
from workers.tasks.convert import convert


@pytest.fixture
def step(made: MadeDump, store: Path) -> OfferedStep:
    """A step of several jobs."""
    for slot in range(8):
        made.add(np.full(80, slot, "<f4"), tensor_name(slot=slot), rank=3, step=40)
    (plan,) = plan_all(made.root, store, SMALL_GRID)
    state = StepState(plan.key)
    offered = OfferedStep(plan, state, state.offer(len(plan.jobs)), offered_at=0.0)
    offered.unread_nbytes = offered.nbytes(WHOLE)
    return offered


def part(step: OfferedStep, number: int) -> TaskPart:
    return TaskPart(step, number, step.nbytes(number))


def test_bytes_that_are_still_to_be_read_go_down_with_each_receipt(step: OfferedStep) -> None:
    assert sum(step.nbytes(job.number) for job in step.plan.jobs) == step.nbytes(WHOLE)
    assert step.nbytes(PUBLISH) == 0
    for job in step.plan.jobs:
        step.add_receipt(job.number, convert(job))
    assert (step.unread_nbytes, step.work.jobs_done) == (0, len(step.plan.jobs))


def test_only_whole_steps_that_never_failed_share_a_task(step: OfferedStep) -> None:
    shares = [part(step, WHOLE).may_share, part(step, 0).may_share, part(step, PUBLISH).may_share]
    assert shares == [True, False, False]
    step.state.is_isolated = True
    assert not part(step, WHOLE).may_share
    step.state.is_isolated, step.is_alone = False, True
    assert not part(step, WHOLE).may_share


@pytest.mark.parametrize(
    ("isolated", "names"),
    [
        (False, ["run_steps", "run_convert", "run_publish"]),
        (True, ["run_steps_isolated", "run_convert_isolated", "run_publish"]),
    ],
)
def test_an_isolated_step_is_converted_in_processes_of_its_own(
    isolated: bool, names: list[str], step: OfferedStep
) -> None:
    step.state.is_isolated = isolated
    for job in step.plan.jobs:
        step.add_receipt(job.number, convert(job))
    calls = [call_of([part(step, number)]) for number in (WHOLE, 0, PUBLISH)]
    assert [run.__name__ for _, run, _ in calls] == names
    assert [name for name, _, _ in calls] == ["ingest", "convert", "publish"]
