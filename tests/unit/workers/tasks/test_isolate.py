"""Processes of their own, that really die."""

from pathlib import Path

import numpy as np
import pytest

from tests.npy_files import MadeDump, npy_header, tensor_name
from tests.pipeline import plan_all
from tests.poison.sitecustomize import EATS_MEMORY, KILLS_DECODER, KILLS_ONCE, KILLS_READER
from workers.errors import ClusterError, PoisonedFile, SourceChanged, WorkerDied
from workers.model import MIB
from workers.tasks import isolate
from workers.tasks.convert import convert
from workers.tasks.isolate import convert_apart
from workers.tasks.model import ShardJob


@pytest.fixture(autouse=True)
def deadly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3] / "poison"))


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What each process was to do."""
    orders: list[str] = []
    carry_out = isolate._carry_out

    def counting(order: isolate._Order) -> isolate._Outcome:
        orders.append(order.what)
        return carry_out(order)

    monkeypatch.setattr(isolate, "_carry_out", counting)
    return orders


def job_with(made: MadeDump, store: Path, payload: bytes, *, name: str | None = None) -> ShardJob:
    """Return a job that reads this payload between those of good tensors."""
    made.add(np.arange(5, dtype="<f4"), tensor_name(slot=0))
    padded = payload.ljust(256, b"\n")
    content = padded if name else npy_header("<f4", (64,)) + padded
    made.add(content, name or tensor_name(slot=1))
    made.add(np.ones(7, "<f4"), tensor_name(slot=2))
    (plan,) = plan_all(made.root, store)
    (job,) = plan.jobs
    return job


def test_job_that_kills_nobody_is_done_as_ever(made: MadeDump, store: Path, processes: list[str]) -> None:
    job = job_with(made, store, b"harmless")
    apart, here = convert(job, convert_apart), convert(job)
    assert processes == ["write"]
    assert apart.digests.tobytes() == here.digests.tobytes()
    assert np.array_equal(apart.statistics, here.statistics, equal_nan=True)
    assert (apart.stored, apart.ends) == (here.stored, here.ends)


@pytest.mark.parametrize("payload", [KILLS_DECODER, EATS_MEMORY])
def test_file_that_kills_is_named(
    payload: bytes, made: MadeDump, store: Path, processes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolate, "_memory_left", lambda: 300 * MIB)
    job = job_with(made, store, payload)
    with pytest.raises(
        PoisonedFile, match="out of memory" if payload == EATS_MEMORY else "SIGKILL"
    ) as caught:
        convert_apart(job)
    assert ".output.1." in caught.value.path
    assert processes == ["write", "read", "control", "read", "control"]


def test_file_that_kills_although_it_is_not_decoded_is_named(
    made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolate, "DEATHS_ALONE", 1)
    job = job_with(made, store, KILLS_READER, name="notes.txt")
    with pytest.raises(PoisonedFile) as caught:
        convert_apart(job)
    assert caught.value.path.endswith("notes.txt")


def test_file_during_which_a_process_happened_to_die_is_not_blamed(
    made: MadeDump, store: Path, tmp_path: Path, processes: list[str]
) -> None:
    """It was killed because of a neighbour, or somebody did it."""
    job = job_with(made, store, KILLS_ONCE + str(tmp_path / "done").encode())
    with pytest.raises(WorkerDied, match="another one did not"):
        convert_apart(job)
    assert processes == ["write", "read"]
    assert convert_apart(job).rows.tolist() == [0, 1, 2]


def test_file_is_not_blamed_where_everything_dies(
    made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without memory kills whatever asks for some."""
    monkeypatch.setattr(isolate, "_memory_left", lambda: 300 * MIB)
    monkeypatch.setattr(isolate, "_needed", lambda _: 4096 * MIB)
    job = job_with(made, store, KILLS_DECODER)
    with pytest.raises(WorkerDied, match="read nothing"):
        convert_apart(job)


def test_process_that_cannot_even_begin_blames_no_file(
    made: MadeDump, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken installation."""
    (tmp_path / "sitecustomize.py").write_text("import os; os.abort()")
    job = job_with(made, store, b"harmless")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ClusterError, match="SIGABRT"):
        convert_apart(job)


def test_other_errors_come_as_they_are(made: MadeDump, store: Path) -> None:
    job = job_with(made, store, b"harmless")
    (made.root / job.entries[1].source.path).write_bytes(b"other")
    with pytest.raises(SourceChanged, match="changed"):
        convert_apart(job)
