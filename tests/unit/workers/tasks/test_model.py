"""What a row of the index and a job are about."""

from pathlib import Path

import numpy as np

from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import SMALL_GRID, plan_all
from workers.model import SourceFile
from workers.store.model import RowKind
from workers.tasks.model import StepPlan, array_of, payload_nbytes


def planned(made: MadeDump, store: Path) -> StepPlan:
    """Plan a step of three tensors and a table."""
    for slot in range(3):
        made.add(np.arange(100, dtype="<f4") + slot, tensor_name(slot=slot))
    made.add(b"a,b\n", "table.csv")
    (plan,) = plan_all(made.root, store, SMALL_GRID)
    return plan


def test_a_payload_of_a_tensor_goes_into_the_array_of_its_type(made: MadeDump, store: Path) -> None:
    by_kind = {entry.kind: entry for entry in planned(made, store).entries}
    tensor, file = by_kind[RowKind.TENSOR], by_kind[RowKind.FILE]
    assert (tensor.array, tensor.offset, tensor.nbytes) == ("tensors/float32", 128, 400)
    assert tensor.read_nbytes == tensor.source.size
    assert (file.array, file.offset, file.nbytes, file.read_nbytes) == ("files", 0, 4, 4)


def test_reported_statistics_have_no_payload() -> None:
    assert array_of(RowKind.STATISTICS, None) == ""
    assert payload_nbytes(RowKind.STATISTICS, None, 400) == 0


def test_jobs_share_the_rows_of_a_step(made: MadeDump, store: Path) -> None:
    plan = planned(made, store)
    assert len(plan.jobs) > 1
    assert sorted(row for job in plan.jobs for row in job.rows) == list(range(len(plan.entries)))
    assert sum(job.nbytes for job in plan.jobs) == sum(entry.read_nbytes for entry in plan.entries)


def test_a_job_takes_its_entries_from_those_of_the_step(made: MadeDump, store: Path) -> None:
    plan = planned(made, store)
    job = plan.jobs[-1].of(plan.entries)
    assert job.entries == {row: plan.entries[row] for row in job.rows}
    assert all(isinstance(entry.source, SourceFile) for entry in job.entries.values())
