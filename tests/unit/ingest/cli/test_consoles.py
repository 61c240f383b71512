"""Where commands draw what moves."""

import pytest

from ingest.cli.consoles import err


def test_what_moves_is_drawn_on_stderr_without_colouring_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    err.print("3 of 5 steps")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "3 of 5 steps\n")
