"""`dump-ingest gc` as it is typed."""

import shutil
import threading
from pathlib import Path

import pytest
import typer

from ingest.cli import gc_run
from ingest.settings import load
from ingest.store_gc.plan import GcPolicy
from tests.cli import Answer


@pytest.fixture
def copy(nan_store: Path, tmp_path: Path) -> Path:
    """A store that a test may change."""
    return Path(shutil.copytree(nan_store, tmp_path / "run.zarr"))


def test_a_plan_is_written_and_carried_out(copy: Path, answer: Answer, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    written = answer("gc", copy, "--keep-last", 1, "--plan", plan)
    assert f"gc {copy} --plan {plan} --apply" in written.stderr
    done = answer("gc", copy, "--plan", plan, "--apply")
    assert done.stdout.splitlines()[1].split()[:4] == ["steps", "0-1", "1-2", "4"]
    assert {row["step"] for row in answer("ls", copy, "--json").json} == {None, 3}
    assert answer("gc", copy, "--keep-last", 1).stderr.startswith("Nothing is to be removed.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--older-than", "30"], "'30' is"),
        (["--grace", "soon"], "'soon' is"),
        (["--max-size", "much"], "--max-size: 'much' is not a number of bytes"),
        (["--plan", "PLAN", "--apply", "--keep-last", "1"], "has its own policy"),
        (["--plan", "PLAN", "--apply"], "No such file"),
        (["--plan", "."], "cannot be written"),
    ],
)
def test_mistakes_are_explained(
    nan_store: Path, answer: Answer, tmp_path: Path, options: list[str], message: str
) -> None:
    words = [str(tmp_path / "none.json") if word == "PLAN" else word for word in options]
    assert message in answer("gc", nan_store, *words, code=2).stderr


def test_an_interrupted_run_keeps_what_is_left(
    nan_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal comes before anything is removed."""
    stopped = threading.Event()
    stopped.set()
    monkeypatch.setattr(gc_run, "stop_on_signals", lambda: stopped)
    store = Path(shutil.copytree(nan_store, tmp_path / "run.zarr"))
    with pytest.raises(typer.Exit) as end:
        gc_run.carry_out(load(store=str(store)).settings, GcPolicy(keep_last=1), plan_file=None, json=False)
    assert end.value.exit_code == 130
    assert "run the same command again" in capsys.readouterr().err
    assert (store / "rank_0" / "step_1" / "zarr.json").exists()
