"""How a command ends."""

import signal
from collections.abc import Iterator

import pytest

from ingest.cli.exits import exit_code_of, report_error, stop_on_signals
from workers.errors import DamagedStore, DumpIngestError, StoreUnavailable, UsageError


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Leave the signals of the test process as they were."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("error", "code"),
    [(UsageError("x"), 2), (DamagedStore("x"), 3), (StoreUnavailable("x"), 1), (DumpIngestError("x"), 1)],
)
def test_the_kind_of_an_error_is_the_exit_code(error: DumpIngestError, code: int) -> None:
    assert exit_code_of(error) == code


def test_an_error_is_printed_with_its_hint(capsys: pytest.CaptureFixture[str]) -> None:
    report_error(UsageError("no store [bold]\x1b[31m", hint="Name it."))
    printed = capsys.readouterr()
    assert printed.err == "error: no store [bold]\\x1b[31m\n  Name it.\n"
    assert printed.out == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_to_stop_and_the_second_ends_the_process(number: signal.Signals) -> None:
    stop = stop_on_signals()
    assert not stop.is_set()
    signal.raise_signal(number)
    assert stop.is_set()
    with pytest.raises(SystemExit) as end:
        signal.raise_signal(number)
    assert end.value.code == 130
