"""The command line within this process, and a store to ask."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

import ingest
from ingest.cli import main
from tests.cli import PROMPT, Answer, Finished
from tests.stores import DumpLibrary, ingest_directly
from workers.rules.schema import load_rules


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """Leave the logs of the test process as they were: a command that writes configures them."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    loggers = [root, *(item for item in root.manager.loggerDict.values() if isinstance(item, logging.Logger))]
    levels = [logger.level for logger in loggers]
    yield
    root.handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Answer]:
    """Like `tests.cli.run`, without the second or two that a process takes to import everything."""
    for name in os.environ:
        if name.startswith("DUMP_INGEST_"):
            monkeypatch.delenv(name)
    for name, value in PROMPT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DUMP_INGEST_WORKERS")  # `consolidate` would start a cluster in this process
    monkeypatch.setenv("COLUMNS", "200")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*words: object, code: int = 0) -> Finished:
        monkeypatch.setattr(sys, "argv", ["dump-ingest", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        assert (end.value.code or 0) == code, (words, printed)
        return Finished(code, printed.out, printed.err)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def nan_store(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two ranks with their graphs: a NaN is born in step 2 of rank 1. Not to be changed."""
    store = tmp_path_factory.mktemp("cli") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    return store


@pytest.fixture(scope="session")
def found_store(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the findings of the built-in rules, and the consolidated view. Not to be changed."""
    store = tmp_path_factory.mktemp("cli") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store, rules=load_rules().enabled)
    ingest.consolidate(store)
    return store
