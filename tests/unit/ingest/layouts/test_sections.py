"""Logs of many steps: each step has its lines, also while the log grows."""

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ingest.layouts.numerics import TE_LINE
from ingest.layouts.tree import LogSections, read_section


def line(step: int, text: str = "a_weight_max", second: int = 0) -> bytes:
    stamp = f"2026-01-01 00:00:{second:02},000"
    return f"{stamp} - INFO - {text} \t\t iteration={step:06} \t\t value=1.0\n".encode()


def texts(log: LogSections, path: Path) -> dict[int, bytes | None]:
    return {step: read_section(path, section, 1 << 20) for step, section in log.update(path).items()}


@given(st.lists(st.none() | st.integers(0, 3), max_size=12), st.integers(1, 400))
def test_lines_are_those_of_their_steps_however_the_log_grows(steps: list[int | None], cut: int) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"sections-{os.getpid()}.log"  # noqa: S108
    lines = [b"a warning\n" if step is None else line(step) for step in steps]
    content = b"head\n" + b"".join(lines)
    expected: dict[int, bytes] = {}
    last = None
    for step, text in zip(steps, lines, strict=True):
        last = last if step is None else step
        if last is not None:
            expected[last] = expected.get(last, b"") + text
    log = LogSections(TE_LINE)
    try:
        for end in (*range(0, len(content), cut), len(content)):
            path.write_bytes(content[:end])
            read = texts(log, path)
        assert read == expected
        # Also after a restart, or each of these steps would be ingested once more.
        assert log.update(path) == LogSections(TE_LINE).update(path)
    finally:
        path.unlink()


def test_only_the_last_step_is_unfinished_and_only_new_lines_change_a_section(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(line(0) + line(1))
    log = LogSections(TE_LINE)
    before = log.update(path)
    with path.open("ab") as file:
        file.write(line(2))
    after = log.update(path)
    assert [section.is_last for section in before.values()] == [False, True]
    assert [section.is_last for section in after.values()] == [False, False, True]
    assert (after[0], after[1].ranges, after[1].changed_ns) == (
        before[0],
        before[1].ranges,
        before[1].changed_ns,
    )


def test_log_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(line(0) + line(1))
    log = LogSections(TE_LINE)
    first = log.update(path)
    path.write_bytes(line(0, "b_weight_max") + line(1) + line(2))
    second = log.update(path)
    assert set(second) == {0, 1, 2}
    assert second[0].nbytes == first[0].nbytes
    assert second[0].changed_ns != first[0].changed_ns


def test_what_cannot_be_read_has_no_sections(tmp_path: Path) -> None:
    log = LogSections(TE_LINE)
    assert log.update(tmp_path / "none") == {}
    assert log.update(tmp_path) == {}
    os.mkfifo(tmp_path / "fifo")
    assert log.update(tmp_path / "fifo") == {}
    (tmp_path / "log").write_bytes(line(0))
    (section,) = log.update(tmp_path / "log").values()
    assert read_section(tmp_path / "log", section, section.nbytes - 1) is None
    assert read_section(tmp_path / "none", section, 1000) is None
