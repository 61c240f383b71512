"""`dump-ingest compare` as it is typed."""

import shutil
from pathlib import Path

import pytest

from tests.cli import run, strict_json
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly


@pytest.fixture(scope="module")
def nan_log(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("command") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"], store)
    return store


def test_differences_end_with_5_and_are_told(nan_log: Path, tmp_path: Path) -> None:
    done = run(
        "compare", f"{nan_log}@0,2", f"{nan_log}@1,2", "--top", 3, "--html", tmp_path / "o.html", code=5
    )
    counts, worst = done.stdout.split("\n\n")
    assert counts.split("\n")[1].split() == ["0", "|", "1", "2", "130", "113"]
    assert worst.split("\n")[1].split()[4:6] == ["different", "Log.Default_net-LogLoss_Log-op0.output.0"]
    assert len(worst.strip().split("\n")) == 4
    assert "first difference: step 2, rank 0: MatMul" in done.stderr
    assert "verdict: different" in done.stderr
    assert (tmp_path / "o.html").read_text().startswith("<!DOCTYPE html>")


def test_json_is_one_object(nan_log: Path) -> None:
    done = run("compare", f"{nan_log}@0,2", f"{nan_log}@1,2", "--json", code=5)
    found = done.json
    assert (found["verdict"], found["equal"], found["different"]) == ("different", 130, 113)
    assert found["first"]["name_a"].startswith("MatMul")
    assert found["left_out"] == []
    assert len(found["tensors"]) == 113
    assert found["tensors"][0]["max_abs"] > 0
    assert strict_json(done.stdout) == found


def test_what_is_within_its_thresholds_ends_with_0(nan_log: Path, dumps: DumpLibrary, tmp_path: Path) -> None:
    assert "verdict: equal" in run("compare", nan_log, dumps["nan-log-2rank"]).stderr
    thresholds = tmp_path / "t.yaml"
    thresholds.write_text("rules: [{name: '*', nan_inf_mismatch: 100}]")
    done = run("compare", f"{nan_log}@0,2", f"{nan_log}@1,2", "--thresholds", thresholds)
    assert "verdict: close" in done.stderr
    listed = run("compare", f"{nan_log}@0,2", f"{nan_log}@1,2", "-t", thresholds, "--all").stdout
    assert listed.count(" equal ") + listed.count(" close ") == 243 + 1


def test_damage_ends_with_3(nan_log: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "run.zarr"
    shutil.copytree(nan_log, damaged, ignore=shutil.ignore_patterns("float32"))
    done = run("compare", f"{damaged}@0,2", f"{damaged}@1,2", code=3)
    assert "not compared" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--thresholds", "none.yaml"], "none.yaml: No such file"),
        (["--html", "none/o.html"], "cannot be written"),
        (["--workers", "0"], "--workers"),
    ],
)
def test_mistakes_are_told_before_anything_is_read(nan_log: Path, options: list[str], said: str) -> None:
    assert said in run("compare", nan_log, nan_log, *options, code=2).stderr


def test_a_part_that_is_not_there_is_named(nan_log: Path) -> None:
    done = run("compare", f"{nan_log}@0,2", f"{nan_log}@1,9", code=2)
    assert "no step 9" in done.stderr
    assert "It holds ranks 0-1" in done.stderr


@pytest.mark.dask
def test_workers_of_its_own_say_the_same(nan_log: Path) -> None:
    found = run("compare", f"{nan_log}@0,2", f"{nan_log}@1,2", "--workers", 1, "--json", code=5).json
    assert (found["equal"], found["different"]) == (130, 113)
