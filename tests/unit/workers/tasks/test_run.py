"""Arguments of tasks come back from packing as they were; tasks return what their functions do."""

from pathlib import Path

import numpy as np
import pytest

from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import SMALL_GRID, plan_all
from workers.errors import DumpIngestError, SourceChanged
from workers.store.model import CommitSummary
from workers.tasks import run as tasks
from workers.tasks.model import StepPlan


@pytest.fixture(
    params=["lenet-1rank/dump", "cann-bin-synthetic/torchair", "msprobe-26.2.0-pytorch-cpu/tensor-mix"]
)
def plans(request: pytest.FixtureRequest, dumps: DumpLibrary, store: Path) -> list[StepPlan]:
    """The plans of every step of a dump, each of several jobs: npy, several tensors in a file, and `.pt`."""
    name, _, part = request.param.partition("/")
    return plan_all(dumps[name] / part, store, SMALL_GRID)


def test_a_step_that_fails_does_not_fail_the_others_of_its_task(made: MadeDump, store: Path) -> None:
    for step in range(3):
        made.add(np.arange(4, dtype="<f4") + step, tensor_name(), step=step)
    plans = plan_all(made.root, store)
    (made.root / plans[1].entries[0].source.path).unlink()
    first, second, third = tasks.run_steps(tasks.pack_steps(plans))
    assert isinstance(second, SourceChanged)
    assert [summary.key for summary in (first, third) if isinstance(summary, CommitSummary)] == [
        plans[0].key,
        plans[2].key,
    ]


def test_an_unexpected_error_is_one_of_ours_and_names_the_step(
    made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        message = "a bug"
        raise ValueError(message)

    made.add(np.arange(4, dtype="<f4"))
    monkeypatch.setattr("workers.tasks.run.convert", broken)
    (error,) = tasks.run_steps(tasks.pack_steps(plan_all(made.root, store)))
    assert isinstance(error, DumpIngestError)
    assert error.message == "rank 0 step 0: ValueError: a bug"
