"""What ingesting the dumps of a job takes."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.sizing import (
    COLUMNS,
    INGEST_SECONDS,
    JOBS,
    LISTED_IN_TURN,
    PAGE,
    SMALL_STEP_SECONDS,
    STORED_RATIO,
    Job,
    lists,
    main,
    puts,
    size,
    table,
    tasks,
    with_table,
)
from ingest.consolidating import listing


def test_the_page_has_the_current_table() -> None:
    page = PAGE.read_text()
    assert table(JOBS) in page
    assert with_table(page) == page
    assert max(job.ranks for job in JOBS) == 10_000


def test_an_old_table_is_replaced_and_the_rest_stays() -> None:
    head, _, tail = PAGE.read_text().partition(table(JOBS))
    assert with_table(head + table(JOBS[:2]).replace("722 MB", "9 MB") + tail) == PAGE.read_text()
    with pytest.raises(SystemExit, match="has no table"):
        with_table("# Sizing\n")


@given(st.integers(1, 20_000), st.floats(1, 1e12), st.floats(0.1, 1e5), st.floats(1.1, 10))
def test_more_to_do_never_takes_less(ranks: int, step_bytes: float, every_s: float, more: float) -> None:
    base = size(Job(ranks, step_bytes, every_s))
    for other in (
        size(Job(ranks, step_bytes * more, every_s)),
        size(Job(ranks, step_bytes, every_s / more)),
        size(Job(ranks * 2, step_bytes, every_s)),
    ):
        assert other.workers >= base.workers >= 1
        assert other.upload > base.upload
        assert other.puts_per_s >= base.puts_per_s
        assert other.dollars_per_month > base.dollars_per_month


def test_workers_keep_up_with_what_was_measured() -> None:
    """Two workers took 722 MB in that time: planned with, they have a third to spare."""
    assert size(Job(1, 722e6, INGEST_SECONDS)).workers >= 3
    assert size(Job(1, 722e6, INGEST_SECONDS * 1.6)).workers <= 2


def test_figures_are_those_that_were_measured() -> None:
    """The table of 004 is what `make bench` measured; whatever is computed here starts from it."""
    measured = (PAGE.parent / "design" / "004-performance.md").read_text()
    assert f"| ingest, 2 workers, S3 | s3fs.put(recursive=True) | {INGEST_SECONDS} s |" in measured
    assert f"| a rank-step of 20 files, of 1000 | 20 ms | {SMALL_STEP_SECONDS * 1000:.2f} ms |" in measured
    assert f"| stored bytes | raw bytes | 223 MB | 722 MB | {STORED_RATIO} |" in measured


def test_listings_are_those_of_the_consolidator() -> None:
    assert LISTED_IN_TURN == listing.WINDOW
    assert lists(64) == 66
    assert lists(10_000) == 512 + 10 + 1
    assert size(Job(10_000, 722e6, 600)).lists_per_s < 10_000 / 5 / 10


def test_requests_and_tasks_of_a_measured_step() -> None:
    assert 29 <= puts(223e6) <= 45  # 29 objects, the large ones in parts
    assert tasks(722e6) == 7
    assert tasks(85e3) < 1


def test_one_job_is_printed_by_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--ranks", "64", "--step-mb", "722", "--every", "60", "--keep-days", "1")
    monkeypatch.setattr(sys, "argv", ["sizing.py", *words])
    assert main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(COLUMNS)
    assert lines[3].split() == ["workers", "9"]
    assert lines[-1].startswith("1 days on S3")


def test_half_a_job_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["sizing.py", "--ranks", "64"])
    with pytest.raises(SystemExit):
        main()
    assert "give all of --ranks, --step-mb and --every" in capsys.readouterr().err
