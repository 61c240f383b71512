"""`gc --recompress`: which steps it takes, from Python and from the command line."""

import json
import threading
from pathlib import Path

import pytest

from ingest.api import open_store, plan_recompress, recompress_store
from tests.cli import run as cli_run
from tests.gc_stores import assert_sound, make_store, steps_of
from workers.errors import UsageError
from workers.store.packed import recompressing


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(recompressing, "_LEAST_SAVING", -1000.0)
    make_store(tmp_path)
    return tmp_path / "run.zarr"


def test_old_steps_with_tensors_are_taken_once(store: Path) -> None:
    assert plan_recompress(store).keys == ()  # they were committed just now
    plan = plan_recompress(store, older_than_s=0)
    assert [(key.rank, key.step) for key in plan.keys] == steps_of(store)
    assert plan.nbytes > 0
    assert len(plan_recompress(store, older_than_s=0, ranks=[1], steps=[2, 3]).keys) == 2
    stop = threading.Event()
    report = recompress_store(store, plan, stop=stop)
    assert (report.steps, report.stopped) == (len(plan.keys), False)
    assert_sound(store)
    assert plan_recompress(open_store(store), older_than_s=0).keys == ()
    stop.set()
    assert recompress_store(store, plan, stop=stop).to_dict()["stopped"]


def test_steps_that_are_not_there_are_a_mistake(store: Path) -> None:
    with pytest.raises(UsageError):
        plan_recompress(store, ranks=[17])


def test_the_command_line(tmp_path: Path) -> None:
    make_store(tmp_path)
    words = ("gc", "run.zarr", "--recompress", "0s")
    dry = cli_run(*words, "--rank", "1", cwd=tmp_path)
    assert dry.code == 0
    assert "6 steps to encode again" in dry.stderr + dry.stdout
    assert "Add --apply" in dry.stderr + dry.stdout
    done = cli_run(*words, "--apply", "--json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    row = json.loads(done.stdout)
    # Tensors of a hundred bytes: hardly anything is saved, and the reason is told.
    assert len(row["done"]) == 12
    assert "it would save less than 3%" in done.stderr
    wrong = cli_run(*words, "--older-than", "3d", cwd=tmp_path, code=2)
    assert "--recompress removes nothing" in wrong.stderr
