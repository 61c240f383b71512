"""Every file of a dump comes back out of the rows that have its parts."""

from pathlib import Path

import numpy as np
import pytest

from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump, npy_bytes
from tests.pipeline import SMALL_GRID, plan_all, run
from workers.dump.paths import from_text
from workers.errors import DamagedStore
from workers.store import commit
from workers.store import step as steps
from workers.store.opening import open_objects
from workers.store.step import StoredStep
from workers.tasks.model import StepPlan


def committed(plan: StepPlan) -> StoredStep:
    run(plan)
    objects = open_objects(plan.store)
    present = commit.read(objects, plan.key)
    assert present is not None
    return StoredStep(objects, present)


def restored(step: StoredStep) -> dict[str, bytes]:
    """Return the files of a step by path, each part at its place."""
    files: dict[str, bytearray] = {}
    for row, payload in step.payloads(range(len(step.tables.labels)), 64):
        if step.tables.label("kind")[row] == "statistics":
            continue
        part = b"".join(steps.part(step, row, payload))
        assert len(part) == steps.nbytes_of(step, row)
        file = files.setdefault(from_text(str(step.tables.label("source")[row])), bytearray())
        begin = steps.begin_of(step, row)
        file.extend(bytes(max(begin + len(part) - len(file), 0)))
        file[begin : begin + len(part)] = part
    return {path: bytes(content) for path, content in files.items()}


@pytest.mark.parametrize("name", ["nan-log-2rank/dump", "cann-bin-synthetic/torchair"])
def test_files_come_back_byte_for_byte(name: str, dumps: DumpLibrary, tmp_path: Path) -> None:
    """Headers, payloads in either layout, and several tensors in one file."""
    library, _, directory = name.partition("/")
    for plan in plan_all(dumps[library] / directory, tmp_path / "run.zarr")[:2]:
        for path, content in restored(committed(plan)).items():
            assert content == (Path(plan.origin.root) / path).read_bytes(), path


@pytest.fixture
def step(made: MadeDump, store: Path) -> StoredStep:
    made.add(np.arange(40, dtype=">f8"))
    (plan,) = plan_all(made.root, store, SMALL_GRID)
    return committed(plan)


def test_a_part_has_the_envelope_of_the_payload(step: StoredStep) -> None:
    (content,) = restored(step).values()
    assert content == npy_bytes(np.arange(40, dtype=">f8"))
    assert steps.begin_of(step, 0) == 0
    assert steps.nbytes_of(step, 0) == len(content)


def test_a_payload_that_does_not_match_its_digest_is_damage(step: StoredStep) -> None:
    """At its end: a caller must not keep what it was given before."""
    pieces = iter([bytes(8), bytes(312)])
    parts = steps.part(step, 0, pieces)
    assert next(parts)
    with pytest.raises(DamagedStore, match="digest does not match"):
        list(parts)
