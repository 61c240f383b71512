"""What the dump has of a step compared with its commit: by names, times, and what the files hold."""

from pathlib import Path

import numpy as np
import pytest

from ingest.steps.committed import CommittedFiles, compare
from tests.made_steps import files_in, made_files
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly, plan_all
from workers.model import SourceFile, StepKey
from workers.store import commit
from workers.store.opening import open_objects, resolve
from workers.store.step import StoredStep

KEY = StepKey(3, 40)


def test_a_file_under_another_name_is_not_gone() -> None:
    committed = files_in(made_files(KEY, 1, 2))
    first, second = made_files(KEY, 1, 2)
    seen = compare(committed, (first, SourceFile("rank_3/40/renamed.npy", second.size, second.mtime_ns)))
    assert (seen.fresh, seen.gone, seen.lost) == (("rank_3/40/renamed.npy",), 0, 0)


@pytest.mark.parametrize("op", ["MatMul.net_MatMul-op0", "Add.%3-op0"])
def test_the_same_tensors_under_other_names_are_the_same_contents(
    op: str, made: MadeDump, store: Path
) -> None:
    """Names of dump files have the time in them. A table that tells of tensors does not hold them."""
    for slot in range(3):
        made.add(np.full(4, 1.0, "<f4"), tensor_name(op, slot=slot, time=5))
    table = made.add(b"Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot\n", "statistic.csv")
    ingest_directly(made.root, store)
    stored = commit.read(open_objects(resolve(str(store))), StepKey(0, 0))
    assert stored is not None
    committed = CommittedFiles.of(StoredStep(open_objects(resolve(str(store))), stored).tables)
    assert len(committed.versions) == len(committed.contents) == 4
    for path in table.parent.iterdir():
        path.unlink()
    for slot in range(2):
        made.add(np.full(4, 2.0, "<f4"), tensor_name(op, slot=slot, time=9))
    made.add(b"Op Type,Op Name\n", "statistic.csv")
    (plan,) = plan_all(made.root, store)
    seen = compare(committed, tuple(dict.fromkeys(entry.source for entry in plan.entries)), plan.entries)
    assert (len(seen.fresh), seen.gone, seen.lost, seen.rewritten) == (3, 3, 1, 1)
    assert seen.is_dumped_again
