"""The columns of the progress bar."""

import pytest

from ingest.cli.progress_bar import ProgressBar, RemainingColumn, SpeedColumn


def test_a_speed_has_the_units_of_the_bytes_and_waits_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    task = ProgressBar().drawn.tasks[0]
    task.total, task.completed = 40 * 1024**3, 20 * 1024**3
    monkeypatch.setattr(type(task), "elapsed", 1.0)
    assert [column.render(task).plain for column in (SpeedColumn(), RemainingColumn())] == ["", ""]
    monkeypatch.setattr(type(task), "elapsed", 10.0)
    assert SpeedColumn().render(task).plain == "2.0 GiB/s"
    assert RemainingColumn().render(task).plain == "0:00:10"
    task.completed = 10 * 1024**3
    assert RemainingColumn().render(task).plain == "0:00:30"
