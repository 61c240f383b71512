"""A committed step: every payload as it was dumped, and what happened to it since it was opened."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import SMALL_GRID, plan_all, run
from workers.errors import DamagedStore, StepRemoved, TensorsRemoved, UsageError
from workers.model import StepKey
from workers.store import commit
from workers.store import step as steps
from workers.store.opening import open_objects, resolve
from workers.store.record import WithoutTensors
from workers.store.step import StoredStep
from workers.store.tables import LABELS, NUMBERS
from workers.tasks.model import StepPlan

KEY = StepKey(0, 0)
LEAF = f"{KEY.path}/zarr.json"
WHY = WithoutTensors("2026-01-02T03:04:05+00:00", "gc", "old")
#: By slot; the first one has no elements.
VALUES = {slot: np.arange(40 * slot, dtype="<f4") for slot in range(4)}
TEXT = b"kept as it is, byte for byte"


def publish(made: MadeDump, store: Path) -> StoredStep:
    """Commit what the dump has, and open it."""
    (plan,) = plan_all(made.root, store, SMALL_GRID)
    run(plan)
    objects = open_objects(resolve(store))
    present = commit.read(objects, KEY)
    assert present is not None
    return StoredStep(objects, present)


@pytest.fixture
def step(made: MadeDump, store: Path) -> StoredStep:
    """Tensors and a file, in several shards."""
    for slot, values in VALUES.items():
        made.add(values, tensor_name(slot=slot, time=slot))
    made.add(TEXT, "notes.txt")
    return publish(made, store)


def row_of(step: StoredStep, slot: int) -> int:
    """Return the row of a tensor; -1 stands for the file."""
    return int(np.flatnonzero(step.tables.number("slot") == slot)[0])


def in_pieces(step: StoredStep, row: int) -> list[bytes]:
    return [piece for _, pieces in step.payloads([row], 64) for piece in pieces]


def test_a_payload_comes_back_in_whole_and_in_part(step: StoredStep) -> None:
    row = row_of(step, 3)
    assert step.read(row) == VALUES[3].tobytes()
    assert step.read(row, 40, 80) == VALUES[3].tobytes()[40:80]
    assert step.read(row, 40, 40) == step.read(row_of(step, 0)) == b""


def test_payloads_come_in_pieces_each_row_once(step: StoredStep) -> None:
    rows = range(len(step.tables.labels))
    contents = {row: [bytes(piece) for piece in pieces] for row, pieces in step.payloads(rows, 64)}
    expected = {row_of(step, slot): values.tobytes() for slot, values in VALUES.items()}
    assert {row: b"".join(pieces) for row, pieces in contents.items()} == {
        **expected,
        row_of(step, -1): TEXT,
    }
    assert max(len(piece) for pieces in contents.values() for piece in pieces) <= 64


def remove(step: StoredStep) -> None:
    step.objects.delete(LEAF)


def remove_tensors(step: StoredStep) -> None:
    commit.drop_tensors(step.objects, step.commit, WHY)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (remove, StepRemoved, "was removed since it was opened"),
        (remove_tensors, TensorsRemoved, "the tensors were removed on 2026-01-02T03:04 UTC by gc: old"),
    ],
)
def test_what_was_removed_meanwhile_is_not_damage(
    change: object, kind: type[UsageError], text: str, step: StoredStep
) -> None:
    """Its objects go, too; a reader is told what happened, and not that the store is broken."""
    assert callable(change)
    row = row_of(step, 3)
    assert step.removed_meanwhile() is None
    change(step)
    for key in step.objects.sizes(f"{step.commit.prefix}/tensors"):
        step.objects.delete(f"{step.commit.prefix}/tensors/{key}")
    with pytest.raises(kind, match=text):
        step.read(row)
    with pytest.raises(kind, match=text):
        in_pieces(step, row)


def test_a_step_without_tensors_has_its_files(step: StoredStep) -> None:
    without = StoredStep(step.objects, commit.drop_tensors(step.objects, step.commit, WHY))
    tensor, file = row_of(without, 3), row_of(without, -1)
    assert (without.has_tensors, without.has_payload(tensor), without.has_payload(file)) == (
        False,
        False,
        True,
    )
    assert without.read(file) == TEXT
    with pytest.raises(TensorsRemoved):
        without.read(tensor)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("array", "../../secret", "is not the name of an array"),
        ("array", "tensors/none", "the array tensors/none is missing"),
        ("offset", -1, "has no bytes"),
    ],
)
def test_a_place_that_nobody_wrote_is_damage(column: str, value: Any, text: str, step: StoredStep) -> None:
    row = row_of(step, 3)
    if column in LABELS:
        step.tables.labels[row, LABELS.index(column)] = value
    else:
        numbers = step.tables.numbers.copy()
        numbers[row, NUMBERS.index(column)] = value
        object.__setattr__(step.tables, "numbers", numbers)
    with pytest.raises(DamagedStore, match=f"rank 0 step 0: .*{text}"):
        step.read(row)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"dtype": "float17"}, "unknown type 'float17'"),
        ({"layout": "device", "device_shape": "1,x"}, "impossible device shape"),
        ({"layout": "device", "device_shape": "1,2", "format": "NZ"}, "impossible device layout"),
    ],
)
def test_a_tensor_that_cannot_be_is_damage(columns: dict[str, str], text: str, step: StoredStep) -> None:
    row = row_of(step, 3)
    for column, value in columns.items():
        step.tables.labels[row, LABELS.index(column)] = value
    with pytest.raises(DamagedStore, match=text):
        (step.element if "dtype" in columns else step.device)(row)


def test_an_abridged_commit_reads_one_array(step: StoredStep) -> None:
    """It goes with each task of Dask that reads a part of a tensor."""
    row = row_of(step, 3)
    path = str(step.tables.label("array")[row])
    alone = StoredStep(step.objects, step.commit.abridged(path), step.tables.only(row))
    assert list(alone.commit.nodes) == [path]
    assert alone.read(0) == VALUES[3].tobytes()


def committed(plan: StepPlan) -> StoredStep:
    run(plan)
    objects = open_objects(plan.store)
    present = commit.read(objects, plan.key)
    assert present is not None
    return StoredStep(objects, present)


@pytest.fixture
def rebuilt(made: MadeDump, store: Path) -> StoredStep:
    made.add(np.arange(40, dtype=">f8"))
    (plan,) = plan_all(made.root, store, SMALL_GRID)
    return committed(plan)


def test_a_payload_that_does_not_match_its_digest_is_damage(rebuilt: StoredStep) -> None:
    """At its end: a caller must not keep what it was given before."""
    pieces = iter([bytes(8), bytes(312)])
    parts = steps.part(rebuilt, 0, pieces)
    assert next(parts)
    with pytest.raises(DamagedStore, match="digest does not match"):
        list(parts)
