"""What ingesting the dumps of a job takes."""

from hypothesis import given
from hypothesis import strategies as st

from deploy.sizing import (
    INGEST_SECONDS,
    JOBS,
    PAGE,
    SMALL_STEP_SECONDS,
    STORED_RATIO,
    Job,
    puts,
    size,
    table,
    tasks,
    with_table,
)


def test_the_page_has_the_current_table() -> None:
    page = PAGE.read_text()
    assert table(JOBS) in page
    assert with_table(page) == page
    assert max(job.ranks for job in JOBS) == 10_000


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


def test_requests_and_tasks_of_a_measured_step() -> None:
    assert 29 <= puts(223e6) <= 45  # 29 objects, the large ones in parts
    assert tasks(722e6) == 7
    assert tasks(85e3) < 1
