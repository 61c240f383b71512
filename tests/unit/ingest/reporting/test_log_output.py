"""Lines of the log: for programs, and for people."""

import json
import logging
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import structlog

from ingest.dispatch.outcomes import StepCommitted
from ingest.reporting.log_output import configure
from ingest.reporting.logs import ServiceLog, log_findings
from tests.npy_files import MadeDump
from tests.pipeline import plan_all, run
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


@pytest.mark.usefixtures("unconfigured")
def test_people_get_one_line_for_a_step_and_one_for_all_that_was_found_in_it(
    made: MadeDump, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.add(np.arange(5, dtype="<f4"))
    (plan,) = plan_all(made.root, store)
    summary = run(plan)
    found = replace(summary, findings={"nan": 500, "large": 1}, first_findings=(FINDING,) * 50)
    configure("info", "console")
    ServiceLog().observe(StepCommitted(plan, found, 1.0))
    ServiceLog().observe(
        StepCommitted(plan, replace(summary, key=replace(summary.key, step=None), findings={}), 1.0)
    )
    commit, findings, run_files = capsys.readouterr().err.splitlines()
    assert "step_committed" in commit
    assert "step=0" in commit
    assert "nan_count" not in commit  # there are none
    assert "rules='nan 500, large 1'" in findings
    assert "worst='Relu.x.output.0: what it is'" in findings
    assert "step='run files'" in run_files
