"""What `gc` prints."""

import pytest

from ingest.cli.gc_report import json_row, print_plan, print_removed, say_notes, say_what_stays
from ingest.store_gc.execute import GcDone, GcReport
from ingest.store_gc.plan import GcAction, GcPlan, GcPolicy
from workers.model import StepKey

OLD = GcAction("step", 0, 3, "a" * 32, 10, 2048, "older than 30d")
RUN_FILES = GcAction("remains", 1, None, "b" * 32, 1, 1024, "no commit points to it")
NEWEST = GcPolicy(keep_last=2)
TEMPORARY_PATH = f"rank_0/.x.{'0' * 32}.tmp"
TEMPORARY = GcAction("temporary", None, None, "", 1, 5, "left by a crash", TEMPORARY_PATH)


def plan(*actions: GcAction, notes: tuple[str, ...] = (), policy: GcPolicy = NEWEST) -> GcPlan:
    return GcPlan("/run.zarr", "2026-01-01T00:00:00+00:00", policy, actions, notes, 2**20)


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[1:]]


def test_a_plan_has_a_row_for_each_kind_and_reason(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(plan(OLD, RUN_FILES, TEMPORARY))
    steps, remains, temporary, total = rows(capsys.readouterr().out)
    assert steps == ["steps", "0", "3", "1", "10", "2.0", "KiB", "older", "than", "30d"]
    assert remains[:5] == ["remains", "1", "run", "1", "1"]
    assert temporary[:6] == ["temporary", "files", "-", "-", "1", "1"]
    assert total == ["all", "0-1", "run,", "3", "3", "12", "3.0", "KiB", "of", "1.0", "MiB"]


def test_an_empty_plan_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(plan())
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "Nothing is to be removed. The store has 1.0 MiB.\n"


def test_what_was_removed_is_counted_without_what_was_left(capsys: pytest.CaptureFixture[str]) -> None:
    report = GcReport([GcDone(OLD, 9, 2000), GcDone(RUN_FILES, left="being written")])
    print_removed(report)
    printed = capsys.readouterr()
    assert [row[0] for row in rows(printed.out)] == ["steps"]
    assert printed.err == "9 objects, 2.0 KiB removed\n"


def test_what_stays_is_named_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    left = [
        GcDone(OLD, left="committed again"),
        GcDone(RUN_FILES, left="young"),
        GcDone(TEMPORARY, left="new"),
    ]
    say_what_stays(GcReport([*left, *[left[0]] * 30], broken=[StepKey(1, 2)]))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == [
        "left alone: rank 0 step 3: committed again",
        "left alone: rank 1 step run: young",
        f"left alone: {TEMPORARY_PATH}: new",
    ]
    assert len(lines) == 20 + 1 + 1
    assert lines[20] == "left alone: 13 more; --json names them"
    assert lines[21].startswith("damaged: rank 1 step 2 was committed from remains")
    assert "rank_1/step_2/zarr.json" in lines[21]


def test_notes_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    say_notes(plan(notes=("the clock is slow",)))
    assert capsys.readouterr().err == "note: the clock is slow\n"


@pytest.mark.parametrize("policy", [GcPolicy(), GcPolicy(keep_anomalous=True)])
def test_that_no_option_removes_steps_is_said(policy: GcPolicy, capsys: pytest.CaptureFixture[str]) -> None:
    say_notes(plan(policy=policy))
    assert "no option says which are to go: --older-than, --keep-last" in capsys.readouterr().err
    say_notes(plan(policy=GcPolicy(steps=(3,))))
    assert capsys.readouterr().err == ""


def test_json_tells_removed_from_left() -> None:
    row = json_row(plan(OLD), GcReport([GcDone(OLD, 9, 2000), GcDone(RUN_FILES, left="young")], stopped=True))
    assert [action["what"] for action in row["removed"]] == ["step"]
    assert [(action["what"], action["left"]) for action in row["left"]] == [("remains", "young")]
    assert (row["store"], row["objects"], row["nbytes"], row["stopped"]) == ("/run.zarr", 9, 2000, True)
