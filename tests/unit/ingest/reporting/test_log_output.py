"""Lines of the log: for programs, and for people."""

import json
import logging
import math
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
import structlog

from ingest.reporting.log_output import configure
from ingest.reporting.logs import log_findings
from workers.store.model import Finding

FINDING = Finding("rule", "critical", 3, 7, 0, "0", "Relu.x.output.0", math.nan, 1.0, "what it is")


@pytest.fixture
def unconfigured() -> Iterator[None]:
    """Leave logging as it was."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before
    structlog.reset_defaults()


@pytest.mark.usefixtures("unconfigured")
def test_lines_are_json_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "auto")
    assert not sys.stderr.isatty()
    structlog.get_logger("dump_ingest").info("step_changed", rank=1)
    structlog.get_logger("dump_ingest").debug("too little to tell")
    logging.getLogger("library").warning("careful")
    logging.getLogger("distributed").warning("too much to tell")
    log_findings([FINDING, replace(FINDING, severity="info")], {"nan": 30, "large": 1})
    first, second, *rest = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["event"], first["rank"], first["level"]) == ("step_changed", 1, "info")
    assert (second["event"], second["level"]) == ("careful", "warning")
    assert [line["event"] for line in rest] == ["finding", "finding", "findings_not_logged"]
