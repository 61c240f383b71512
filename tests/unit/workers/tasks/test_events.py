"""What a process says about its tasks."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.npy_files import MadeDump
from tests.pipeline import plan_all, run
from workers import events
from workers.errors import SourceChanged
from workers.events import Event
from workers.tasks.convert import convert
from workers.tasks.model import Converted, ConvertFailed, ConvertStarted, Published


@pytest.fixture
def observed() -> Iterator[list[Event]]:
    """The events of tasks in this test."""
    of_tasks: list[Event] = []

    def observe(event: Event) -> None:
        if isinstance(event, ConvertStarted | Converted | ConvertFailed | Published):
            of_tasks.append(event)

    events.subscribe(observe)
    yield of_tasks
    events.unsubscribe(observe)


def test_a_step_is_started_converted_and_published(
    made: MadeDump, store: Path, observed: list[Event]
) -> None:
    made.add(np.arange(4, dtype="<f4"))
    (plan,) = plan_all(made.root, store)
    summary = run(plan)
    started, converted, published = observed
    assert started == ConvertStarted(plan.jobs[0])
    assert isinstance(converted, Converted)
    assert (converted.job, converted.receipt.number) == (plan.jobs[0], 0)
    assert isinstance(published, Published)
    assert published.summary == summary


def test_a_conversion_that_fails_is_reported_with_its_error(
    made: MadeDump, store: Path, observed: list[Event]
) -> None:
    path = made.add(np.arange(4, dtype="<f4"))
    (plan,) = plan_all(made.root, store)
    path.unlink()
    with pytest.raises(SourceChanged) as raised:
        convert(plan.jobs[0])
    assert observed == [ConvertStarted(plan.jobs[0]), ConvertFailed(plan.jobs[0], raised.value)]
