"""Commands that fill and keep stores, as they are typed."""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import typer

from ingest.cli import consolidate_follow, gc_run
from ingest.cli.consolidate_follow import Following
from ingest.cli.ingest_report import (
    IngestProgress,
    _say_problems,
    exit_as,
    print_report,
    progress_bar,
    say_missing,
    say_sources,
)
from ingest.dispatch.submitter import JobConverted, StepCommitted
from ingest.layouts.base import Problem
from ingest.questions.heatmap import heatmap_rows
from ingest.questions.trend import TrendAnswer
from ingest.reader.cube_conditions import open_cubes
from ingest.reader.step import Step, step_row
from ingest.reader.tensor import Tensor
from ingest.service.one_shot import Report
from ingest.settings import Settings, load
from ingest.steps.events import KeepReason, SourceKept
from ingest.steps.watcher import DumpState
from ingest.store_gc.plan import GcPolicy
from tests import checker
from tests.cli import Answer, run, run_here, start
from tests.damages import only
from tests.page_server import RunningPage
from tests.stores import (
    DumpLibrary,
    MadeDump,
    asked_dump,
    ingest_directly,
    listings,
    plan_all,
    store_of,
    tensor_name,
)
from workers.errors import DamagedStore, DumpIngestError, StoreError, StoreUnavailable
from workers.model import StepKey
from workers.store import strict_json
from workers.store.model import CommitSummary
from workers.store.opening import open_objects, resolve

# Commands that fill and keep stores, as they are typed.


# `dump-ingest ingest` as it is typed, and what it prints.


@pytest.mark.dask
def test_a_dump_is_ingested_once_and_then_unchanged(dumps: DumpLibrary, store: Path) -> None:
    dump = dumps["nan-log-2rank"] / "dump"
    done = run("ingest", dump, "--store", store)
    assert done.stdout.splitlines()[-1].split()[:5] == ["all", "3", "complete", "1458", "9"]
    assert f"dump-ingest origin {store}" in done.stderr
    assert f"findings of rules: 14 critical; by cause: dump-ingest anomalies {store}\n" in done.stderr
    checker.check(store, dump)
    again = run("ingest", dump, "--store", store)
    assert (again.stdout, again.stderr) == ("", "6 steps of 2 ranks unchanged: already in the store.\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep-last", "3"], "--keep-last does nothing without --after-commit delete"),
        (["--dry-run"], "--dry-run does nothing without --after-commit delete"),
        (["--after-commit", "remove"], "after_commit (--after-commit)"),
        (["--rank-map", "0"], "device=rank pairs"),
    ],
)
def test_mistakes_are_explained_before_anything_is_written(
    dumps: DumpLibrary, store: Path, answer: Answer, options: list[str], message: str
) -> None:
    words = ("ingest", dumps["nan-log-2rank"] / "dump", "--store", store, *options)
    assert message in answer(*words, code=2).stderr
    assert not store.exists()


def test_a_store_in_another_dump_is_refused(made: MadeDump, tmp_path: Path, answer: Answer) -> None:
    made.add(np.zeros(3))
    other = MadeDump(tmp_path / "other")
    other.add(np.ones(3))
    before = sorted(other.root.rglob("*"))
    for place in (other.root, other.root / "rank_0"):
        refused = answer("ingest", made.root, "--store", place, code=2).stderr
        assert f"error: {place} holds a dump, not a store\n  Is --store right?" in refused
        told = answer("doctor", made.root, "--store", place, code=1).stdout
        assert f"{place} holds a dump, not a store" in told
    assert sorted(other.root.rglob("*")) == before


@pytest.fixture
def dump(dumps: DumpLibrary, tmp_path: Path) -> Path:
    return asked_dump(dumps, tmp_path / "dump")


def said(store: Path, report: Report, capsys: pytest.CaptureFixture[str]) -> str:
    say_missing(report, Settings(store=str(store)))
    return capsys.readouterr().err


def test_what_is_missing_is_named_with_the_reason(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = ["Default/net-LogLoss/Log-op0", "While", *(f"Default/none-op{number}" for number in range(5))]
    store = store_of(dump, tmp_path / "s", device="Ascend", iteration="2|9", dump_mode=1, kernels=kernels)
    commits = [step.commit.summary for step in store.select()]
    report = Report(commits=commits, may_have_configuration=True, missing_steps=(9,))
    heading, *lines = said(tmp_path / "s", report, capsys).splitlines()
    assert heading.startswith("note: the dump lacks items that its configuration requests; `dump-ingest ls ")
    # Steps are named by another note.
    assert lines[0] == "  operator While: control flow has no tensors of its own"
    assert lines[-1] == "  and 1 more"
    assert len(lines) == 6


def test_the_bar_follows_jobs_up_to_the_bytes_of_the_dump(dumps: DumpLibrary, store: Path) -> None:
    dump = dumps["nan-log-2rank"] / "dump"
    found, plans, commits = listings(dump), plan_all(dump, store), ingest_directly(dump, store)
    drawn = progress_bar()
    with IngestProgress(drawn) as progress:
        progress.observe(DumpState(found, found, ()))
        bar = drawn.tasks[0]
        assert bar.total == sum(listing.nbytes for listing in found.values())
        for plan, summary in zip(plans, commits, strict=True):
            for job in plan.jobs:
                progress.observe(JobConverted(plan, job))
            progress.observe(StepCommitted(plan, summary, 1.0))
        assert bar.completed == bar.total
        assert bar.fields["files"] == sum(len(listing.files) for listing in found.values())


SETTINGS = Settings(store="/my stores/run.zarr")


@pytest.fixture(scope="module")
def commits(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> list[CommitSummary]:
    """Three steps of two ranks and their run files; NaN in two of them."""
    return ingest_directly(dumps["nan-log-2rank"] / "dump", tmp_path_factory.mktemp("report") / "run.zarr")


def printed(report: Report, capsys: pytest.CaptureFixture[str], *, json: bool = False) -> tuple[str, str]:
    print_report(report, SETTINGS, 2.0, dry_run=False, json=json)
    output = capsys.readouterr()
    return output.out, output.err


def code_of(report: Report, *, interrupted: bool = False) -> int:
    try:
        exit_as(report, interrupted=interrupted)
    except typer.Exit as end:
        return end.exit_code
    return 0


def test_problems_are_named_with_the_command_that_lists_them(
    commits: list[CommitSummary], capsys: pytest.CaptureFixture[str]
) -> None:
    partial = replace(commits[2], status="partial", quarantined=2, unparsed=1, disagreements=1)
    _, messages = printed(
        Report(
            commits=[partial],
            ranks_from={"device id": [0, 1]},
            missing_steps=(7, 8),
            failures={StepKey(0, step): StoreUnavailable("away", hint="Wait.") for step in range(3)},
        ),
        capsys,
    )
    key = partial.key
    for line in (
        f"problem: {key}: partial, 2 files quarantined, 1 file with names that are not understood; ",
        f"problem: {key}: the dumped statistics of 1 tensor do not match the elements; ",
        "note: the paths name no ranks: 0, 1 are device ids (--rank-map 0=8,1=9 gives the ranks)\n",
        "note: the dump's configuration requests steps that no rank has (yet): 7, 8\n",
        "error: away (and 2 more)\n  Wait.\n",
    ):
        assert line in messages


def test_the_exit_code_says_how_much_was_done(commits: list[CommitSummary]) -> None:
    failure = {StepKey(0, 1): DumpIngestError("x")}
    partial = [replace(commits[2], status="partial")]
    assert code_of(Report(commits=commits)) == 0
    assert code_of(Report(commits=commits), interrupted=True) == 130
    assert code_of(Report(failures=failure)) == 1
    assert code_of(Report(commits=commits, failures=failure)) == 4
    assert code_of(Report(unchanged=[StepKey(0, 1)], stopped_by=StoreError("x"))) == 4
    assert code_of(Report(commits=partial)) == 4
    assert code_of(Report(commits=commits, read_back_failures={StepKey(0, 1): StoreError("x")})) == 4
    assert code_of(Report(commits=commits, read_back_failures={StepKey(0, 1): DamagedStore("x")})) == 3


def test_a_line_break_in_a_name_begins_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    """It would look like something that this program says."""
    name = "x\nDeleted 4 dump files"
    kept = SourceKept(StepKey(0, 4), KeepReason.CHANGED, 1, f"{name} changed")
    say_sources(Report(source_kept=[kept]), dry_run=False)
    _say_problems(Report(problems=(Problem(name, "is a symbolic link"),)))
    lines = capsys.readouterr().err.splitlines()
    assert [line[:6] for line in lines] == ["Delete", "stays:", "proble"]
    assert "x\\nDeleted" in lines[1]


# `dump-ingest watch` as it is typed.


def test_it_waits_for_a_dump_and_says_once_why(tmp_path: Path) -> None:
    with start("watch", tmp_path / "dump", "--store", tmp_path / "run.zarr") as watcher:
        watcher.wait_until(lambda: watcher.events("waiting_for_dump"))
        (tmp_path / "dump").mkdir()
        watcher.wait_until(lambda: len(watcher.events("waiting_for_dump")) == 2)
        assert watcher.terminate() == 0
    first, second = (event["reason"] for event in watcher.events("waiting_for_dump"))
    assert "does not exist" in first
    assert "no dump of a known layout" in second
    assert not (tmp_path / "run.zarr").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no store is named"),
        (["--store", "x", "--keep-last", "2"], "--keep-last does nothing"),
        (["--store", "x", "--metrics", "9108"], "metrics (--metrics): must be host:port"),
        (
            ["--store", "x", "--after-commit", "remove"],
            "must be 'keep' or 'delete', got 'remove'",
        ),
        (["other", "--store", "x"], "watch DUMP --store run.zarr"),
    ],
)
def test_mistakes_are_explained_at_once(
    answer: Answer, tmp_path: Path, options: list[str], message: str
) -> None:
    assert message in answer("watch", tmp_path / "dump", *options, code=2).stderr


def test_a_store_named_as_the_dump_is_refused(answer: Answer, tmp_path: Path) -> None:
    (tmp_path / "run.zarr" / "rank_0" / "Net" / "0" / "1").mkdir(parents=True)
    (tmp_path / "run.zarr" / "zarr.json").write_text("{}")
    refused = answer("watch", tmp_path / "run.zarr", "--store", tmp_path / "other.zarr", code=2).stderr
    assert "is a store, not a dump" in refused


def test_flags_that_do_nothing_and_a_dump_that_is_missing_are_refused(made: MadeDump, store: Path) -> None:
    assert "no dump" in run_here("watch", "--store", store, code=2).stderr
    assert "no dump" in run_here("watch", "--explain", "--store", store, code=2).stderr
    for flags in (["--json"], ["--from", "http://host:1"], ["--rank", 3], ["--step", 40]):
        refused = run_here("watch", made.root, "--store", store, *flags, code=2).stderr
        assert f"{flags[0]} does nothing without --explain" in refused
    assert "no store" in run_here("watch", made.root, "--explain", code=2).stderr
    unreachable = run_here("watch", "--explain", "--from", "http://127.0.0.1:1", code=1).stderr
    assert "no watcher answers at http://127.0.0.1:1/steps" in unreachable


# `dump-ingest wait`: the exit code says whether it came.


def test_it_ends_with_what_came(found_store: Path, answer: Answer) -> None:
    assert "NaN" in answer("wait", found_store).stdout
    assert answer("wait", found_store, "--until", "step", 3).stdout.startswith(
        "every rank has committed step 3"
    )
    assert answer("wait", found_store, "--until", "idle", "--idle", 0).stdout.startswith(
        "nothing was committed"
    )
    came = answer("wait", found_store, "--json").json
    assert (came["came"], came["incident"]["kind"]) == (True, "nan")


def test_time_that_is_over_has_a_code_of_its_own(found_store: Path, answer: Answer, tmp_path: Path) -> None:
    done = answer("wait", found_store, "--until", "step", 9, "--timeout", 0, code=124)
    assert done.stdout == "rank 0 has committed step 3, and not step 9\n"
    assert answer("wait", found_store, "--new", "--timeout", 0, code=124).stdout.startswith("no critical")
    assert answer("wait", tmp_path / "none", "--timeout", 0, code=124).stdout == "there is no store yet\n"


# `dump-ingest consolidate` as it is typed.


def test_what_adds_sketches_to_old_steps_is_named(answer: Answer) -> None:
    assert "dump-ingest sketch" in answer("consolidate", "--help").stdout


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon, and serve no metrics."""
    monkeypatch.setattr(consolidate_follow, "_STANDBY_S", 0.05)
    monkeypatch.setenv("DUMP_INGEST_CONSOLIDATOR_METRICS", "")


@contextmanager
def following(
    store: Path, *, rebuild: bool = False, patience_s: float = 0, finish: bool = False
) -> Iterator[Following]:
    """Follow a store in a thread."""
    stop = threading.Event()
    settings = load(store=str(store), finish=finish).settings
    follow = Following(settings, 0.05, patience_s, rebuild, json=False)
    thread = threading.Thread(target=follow.run, args=(stop,))
    thread.start()
    try:
        yield follow
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def wait_for_steps(store: Path, count: int) -> None:
    """Return when the view has `count` steps."""
    objects = open_objects(resolve(str(store)))
    waited = threading.Event()
    for _ in range(600):
        cubes = open_cubes(objects)
        if cubes is not None and len(cubes.steps) == count:
            return
        waited.wait(0.05)
    pytest.fail(f"the view has no {count} steps")


@pytest.mark.parametrize(("finish", "steps"), [(False, 2), (True, 3)])
def test_at_its_end_it_takes_what_a_rank_has_not_committed_if_asked_for(
    finish: bool, steps: int, nan_store: Path, tmp_path: Path
) -> None:
    """The job has ended: the other ranks do not come any more."""
    store = Path(shutil.copytree(nan_store, tmp_path / "run.zarr"))
    shutil.rmtree(store / "rank_1" / "step_3")
    with following(store, patience_s=3600, finish=finish):
        wait_for_steps(store, 2)
    cubes = open_cubes(open_objects(resolve(str(store))))
    assert cubes is not None
    assert len(cubes.steps) == steps


def test_at_its_end_it_takes_what_came_while_it_stood_by(
    nan_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(consolidate_follow, "_STANDBY_S", 3600)
    store, said = tmp_path / "run.zarr", ""
    with following(store, finish=True):
        while "waiting: " not in said:
            threading.Event().wait(0.05)
            said += capsys.readouterr().err
        shutil.copytree(nan_store, store)
    wait_for_steps(store, 3)


# `dump-ingest gc` as it is typed.


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


# `repair` says what it would do, does it, and ends with the code that follows.


@pytest.fixture
def damaged_dump(tmp_path: Path) -> MadeDump:
    made = MadeDump(tmp_path / "damaged_dump")
    for step in range(2):
        made.add(np.arange(50, dtype="<f4") + step, tensor_name(time=1), step=step)
    ingest_directly(made.root, tmp_path / "run.zarr")
    only(tmp_path / "run.zarr", "rank_0/step_1/*/tensors/float32/c/0").unlink()
    return made


def test_what_is_damaged_is_mended_on_request(damaged_dump: MadeDump, tmp_path: Path, answer: Answer) -> None:
    store = tmp_path / "run.zarr"
    assert f"dump-ingest repair {store}" in answer("verify", store, code=3).stderr
    planned = answer("repair", store, code=3)
    assert "rank 0 step 1: can be repaired: rank_0/step_1/" in planned.stdout
    assert f"from the dump {damaged_dump.root}" in planned.stdout
    assert "--apply" in planned.stderr
    assert "rank 0 step 1: repaired: " in answer("repair", store, "--apply").stdout
    assert "0 damaged" in answer("verify", store).stderr
    assert answer("repair", store, "--json").json["repairs"] == []


def test_what_is_lost_is_named_and_left_out_on_request(
    damaged_dump: MadeDump, tmp_path: Path, answer: Answer
) -> None:
    store = tmp_path / "run.zarr"
    shutil.rmtree(damaged_dump.root)
    lost = answer("repair", store, "--apply", code=3)
    assert "rank 0 step 1: lost: rank_0/Net/0/1/MatMul" in lost.stdout
    assert "--accept-loss" in lost.stderr
    accepted = answer("repair", store, "--accept-loss", "--apply", "--json", code=3).json
    assert accepted["repairs"][0]["generation"]
    assert accepted["repairs"][0]["remains"] == []
    answer("repair", store)
    assert "lost: " in answer("ls", store, "--problems").stdout
    assert "lost: " in answer("export", store, tmp_path / "out", code=3).stderr


def test_what_is_no_dump_is_refused(tmp_path: Path, damaged_dump: MadeDump, answer: Answer) -> None:
    store = tmp_path / "run.zarr"
    assert "does not exist" in answer("repair", store, "--dump", tmp_path / "no", code=2).stderr
    assert "no step 9" in answer("repair", store, "--step", 9, code=2).stderr
    assert damaged_dump.root.exists()


# `dump-ingest check`: a line for each thing that is wrong, with its source; exit code 1 if refused.


def test_a_wrong_one_is_explained_with_sources(
    nan_store: Path, dumps: DumpLibrary, answer: Answer, tmp_path: Path
) -> None:
    content = json.loads((dumps["nan-log-2rank"] / "data_dump.json").read_text())
    content["common_dump_settings"] |= {
        "dump_mode": 1,
        "kernels": ["Default/Nothing-op0", "Log"],
        "path": "dump",
    }
    content["e2e_dump_settings"]["sample_mode"] = 1
    config = tmp_path / "data_dump.json"
    config.write_text(json.dumps(content))
    done = answer("check", config, "--device", "CPU", "--store", nan_store, code=1)
    assert "refused: path: 'dump' is not absolute" in done.stdout
    assert "warning: sample_mode: 1 is for Ascend" in done.stdout
    assert "https://" in done.stdout
    assert "no operator in the store is called Default/Nothing-op0" in done.stdout
    assert "the first and the last 100 elements" in done.stdout


# `dump-ingest config` as it is typed.


def test_show_names_the_origin_of_each_setting(
    answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environment before file, file before default."""
    config = tmp_path / "settings.yaml"
    config.write_text("store: /from/file\nquiet_s: 7\ndrain_s: 3\nrank_map: 0=8\n")
    rows = answer("config", "show", "-c", config, "--json").json
    settings = {row["setting"]: row for row in rows}
    assert settings["store"] == {"setting": "store", "value": "/from/file", "origin": str(config)}
    assert settings["drain_s"]["value"] == 3
    assert settings["quiet_s"] == {"setting": "quiet_s", "value": 0, "origin": "DUMP_INGEST_QUIET_S"}
    assert settings["rank_map"]["value"] == '{"0": 8}'
    assert settings["shard_size"]["origin"] == "default"
    assert "/from/file" in answer("config", "show", "-c", config).stdout
    monkeypatch.setenv("DUMP_INGEST_CONFIG", str(config))
    assert answer("config", "show", "--json").json == rows


def test_validate_says_yes_or_what_is_wrong(
    answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All mistakes of a file at once, each with the name of its setting; units may be written out."""
    config = tmp_path / "settings.yaml"
    config.write_text("shard_size: 64MiB\norder: newest\ndask: {distributed.comm.retry.count: 5}\n")
    assert "valid" in answer("config", "validate", "-c", config).stderr
    config.write_text("shard_size: 1\norder: random\nqueue: kafka\nmetrics: 9108\n")
    monkeypatch.setenv("DUMP_INGEST_METRICS", "nowhere")
    wrong = answer("config", "validate", "-c", config, code=2)
    for word in ("shard_size", "order", "queue", "metrics", "is not a setting"):
        assert word in wrong.stderr
    assert wrong.stdout == ""


def test_secrets_of_the_environment_are_not_shown(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`config show` may be pasted into a ticket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    done = answer("config", "show")
    assert "hunter2" not in done.stdout + done.stderr


# `dump-ingest doctor` as it is typed; tests/integration/test_cluster.py has a cluster and a bucket.


def test_tensors_that_would_be_kept_as_files_get_a_pattern(answer: Answer, tmp_path: Path) -> None:
    """`rank_0` and `step3/rank0` are names of MindSpore and msProbe: no error would say anything."""
    trees = {
        "rank_0/step_3/fc/fwd_out.npy": "rank_{rank}/step_{step}/{module}/{graph}_{io}.npy",
        "step3/rank0/fc.output.npy": "step{step}/rank{rank}/{module}.{io}.npy",
    }
    for number, (path, pattern) in enumerate(trees.items()):
        dump, store = tmp_path / f"dump{number}", tmp_path / f"store{number}"
        (dump / path).parent.mkdir(parents=True)
        np.save(dump / path, np.ones(2))
        (check,) = [row for row in answer("doctor", dump, "--json").json if row["check"] == "layout"]
        assert check["ok"]
        assert f"--layout '{pattern}'" in check["hint"]
        assert "proposes a pattern" in answer("ingest", dump, "--store", store).stderr
        again = answer("ingest", dump, "--store", tmp_path / f"own{number}", "--layout", pattern, "--json")
        assert [(step["rank"], step["step"], step["tensors"]) for step in again.json] == [(0, 3, 1)]
        assert "proposes" not in again.stderr


# `dump-ingest skill`.


def test_the_skill_is_printed_line_by_line_and_installed(answer: Answer, tmp_path: Path) -> None:
    text = files("ingest.agents").joinpath("SKILL.md").read_text("utf-8")
    assert answer("skill").stdout == text
    answer("skill", "--install", "--to", tmp_path)
    assert (tmp_path / "dump-ingest" / "SKILL.md").read_text("utf-8") == text


# `dump-ingest serve` as it is typed: what it refuses before it listens; its API against other commands.


LOG = "Log.Default_net-LogLoss_Log-op0.output.0"
#: Views, and what the API calls the answers that they show.
LOG_PLACE = f"rank=1&step=2&name={LOG}"
VIEWS = (
    ("incidents", ["incidents"]),
    ("incidents?rank=1&step=2", ["incidents?rank=1&step=2"]),
    ("matrix", ["matrix"]),
    ("matrix?stat=findings&ranks=1", ["matrix?stat=findings&ranks=1"]),
    (
        "matrix?stat=max&name=*Log*&steps=2-3&ranks=0-1",
        ["matrix?stat=max&name=*Log*&steps=2-3&ranks=0-1"],
    ),
    ("cell?rank=1&step=2", ["tensors?rank=1&step=2"]),
    (
        f"tensor?{LOG_PLACE}",
        [f"tensor?{LOG_PLACE}", f"values?{LOG_PLACE}", f"precision?{LOG_PLACE}"],
    ),
    ("live", ["steps"]),
    ("compare?with=b.zarr", ["comparison?with=b.zarr&step=3&partial=1", "growth?with=b.zarr&rank=0"]),
    (
        "compare?with=b.zarr&rank=1&step=2&stat=max",
        ["comparison?with=b.zarr&rank=1&step=2&partial=1", "growth?with=b.zarr&rank=1&stat=max"],
    ),
)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--listen", "0.0.0.0:0"), "open to other hosts"),
        (("--listen", "nowhere"), "is not an address"),
        (("--base-path", "/a b"), "is not a base path"),
        (("--cache", "much"), "--cache"),
        (("--token-file", "absent"), "cannot read the token"),
        (("--watchers", "node1"), "--watchers: 'node1' is not an address"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    nan_store: Path, answer: Answer, options: tuple[str, ...], words: str
) -> None:
    assert words in answer("serve", nan_store, *options, code=2).stderr


def test_the_api_answers_what_commands_print(nan_store: Path, tmp_path: Path, answer: Answer) -> None:
    root = tmp_path / "runs"
    for name in ("a.zarr", "b.zarr"):
        shutil.copytree(nan_store, root / name)
    with RunningPage(root) as page:
        api = "/api/v1/runs/a.zarr"
        for at in ((), ("--at", "0,:2")):
            shown = answer("show", root / "a.zarr", LOG, "--rank", "1", "--step", "2", *at, "--json").json
            query = f"rank=1&step=2&name={LOG}" + (f"&at={quote(at[1])}" if at else "")
            assert page.get(f"{api}/tensor?{query}").json == shown
        sides = [f"{root}/a.zarr@rank=1,step=2", f"{root}/b.zarr@rank=1,step=2"]
        compared = answer("compare", *sides, "--json").json
        assert page.get(f"{api}/comparison?with=b.zarr&rank=1&step=2").json == compared
        whole = answer("compare", root / "a.zarr", root / "b.zarr", "--include-partial", "--json").json
        assert page.get(f"{api}/comparison?with=b.zarr&partial=true").json == whole
        assert page.get(f"{api}/comparison?with=..%2Fb.zarr").status == 404
        wrong = page.get(f"{api}/tensor?rank=1&step=2&name={LOG}&at=x")
        assert (wrong.status, "x" in wrong.json["error"]["message"]) == (404, True)


@pytest.fixture(scope="module")
def runs(sketched_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPage]:
    """The page of the same run twice, and of one with a channel that stands out."""
    root = tmp_path_factory.mktemp("runs")
    for name in ("a.zarr", "b.zarr"):
        (root / name).symlink_to(sketched_store)
    dump = MadeDump(tmp_path_factory.mktemp("dump"))
    values = np.random.default_rng(0).standard_normal((300, 260)).astype("<f4")
    values[:, 100] *= 1e6
    dump.add(values, tensor_name("Mul.m[1]"))
    ingest_directly(dump.root, root / "odd.zarr", sketches=True)
    with RunningPage(root) as page:
        yield page


def shown_lines(page: RunningPage, view: str) -> tuple[list[str], list[str]]:
    """Return the command lines below a view, and the lines of Python."""
    got = page.get(view)
    assert got.status == 200, got.text
    shell, python = got.lines
    return shell.splitlines(), python.splitlines()


def words_of(line: str) -> list[str]:
    """Return the words that a shell makes of a line, without the first one."""
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True
    )
    return done.stdout.split("\0")[1:-1]


def as_json(value: Any) -> Any:
    """Return what Python answered as JSON has it."""
    if isinstance(value, list | tuple):
        plain: Any = [as_json(member) for member in value]
    elif isinstance(value, Step):
        plain = step_row(value)
    else:
        plain = value.to_dict() if hasattr(value, "to_dict") else value
    return json.loads(strict_json.dumps(plain))


def assert_lines_answer(page: RunningPage, answer: Answer, run: str, view: str, questions: list[str]) -> None:
    """Run every line below a view, and compare what it gives with the answers of the API."""
    shell, python = shown_lines(page, f"/runs/{run}/{view}")
    names: dict[str, Any] = {}
    exec("\n".join(python[:2]), names)  # noqa: S102  (as a reader of the page does)
    expressions = python[2:]
    # What is drawn over the steps has no question of its own: its lines are the last ones.
    for line, expression in zip(shell[len(questions) :], expressions[len(questions) :], strict=True):
        value = eval(expression, names)  # noqa: S307  (as below)
        rows = TrendAnswer(value).to_json() if words_of(line)[0] == "trend" else heatmap_rows(value)
        assert answer(*words_of(line), "--json").json == as_json(rows), line
    for line, expression, question in zip(shell, expressions, questions, strict=False):
        expected = page.get(f"/api/v1/runs/{run}/{question}").json
        assert answer(*words_of(line), "--json").json == expected, line
        value = eval(expression, names)  # noqa: S307  (as a reader of the page does)
        if isinstance(value, Tensor):
            expected = {name: expected[name] for name in value.to_dict()}
        assert as_json(value) == expected, expression


@pytest.mark.parametrize(("view", "questions"), VIEWS, ids=[view for view, _ in VIEWS])
def test_the_lines_below_a_view_give_its_answer(
    runs: RunningPage, answer: Answer, view: str, questions: list[str]
) -> None:
    assert_lines_answer(runs, answer, "a.zarr", view, questions)
