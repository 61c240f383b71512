"""What ingesting the dumps of a job takes."""

from hypothesis import given
from hypothesis import strategies as st

from deploy.sizing import (
    JOBS,
    PAGE,
    Job,
    size,
    table,
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
