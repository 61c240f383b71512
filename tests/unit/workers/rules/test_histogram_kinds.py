"""Rules over histograms: they fire for what is certain, and say so if there are none."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.findings.backtest import backtest
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.rule_sets import only

#: Half of the elements vanish in e4m3; the 50th percentile lies in (1, 2], and the largest is 512.
VALUES = np.array([2.0**-20] * 5 + [1.5] * 4 + [512], "<f4")


@pytest.fixture
def filled(made: MadeDump, store: Path) -> ingest.DumpStore:
    """A step with histograms, and one without."""
    made.add(VALUES, tensor_name(time=1), step=0)
    ingest_directly(made.root, store, sketches=True)
    return ingest.open_store(store)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"kind": "cast", "format": "e4m3", "underflow_gt": 0.4}, 0.5),
        ({"kind": "cast", "format": "e4m3", "underflow_gt": 0.5}, None),
        ({"kind": "cast", "format": "e4m3", "overflow_gt": 0.05}, 0.1),
        ({"kind": "cast", "format": "e4m3", "scaling": "current", "overflow_gt": 0.0}, None),
        ({"kind": "cast", "format": "float16", "overflow_gt": 0.0}, None),
        ({"kind": "percentile", "percent": 60, "gt": 0.9}, 1.0),
        ({"kind": "percentile", "percent": 60, "gt": 1.2}, None),  # it is 1.5, and may be 1.1
        ({"kind": "percentile", "percent": 100, "gt": 511}, 512.0),
        ({"kind": "percentile", "percent": 20, "lt": 1e-5}, 2.0**-20),
    ],
)
def test_what_is_certain_is_found(
    filled: ingest.DumpStore, fields: dict[str, object], value: float | None
) -> None:
    (result,) = backtest(filled, only(**fields)).rules
    assert not result.failed
    assert [finding.value for finding in result.first] == ([] if value is None else [value])


def test_findings_are_made_at_the_commit_and_said_in_words(made: MadeDump, store: Path) -> None:
    made.add(VALUES, tensor_name(time=1), step=0)
    chosen = only(kind="cast", format="e4m3", underflow_gt=0.01)
    (summary,) = ingest_directly(made.root, store, rules=chosen, sketches=True)
    (finding,) = summary.first_findings
    assert finding.reason == "50.000% of its elements would underflow in float8_e4m3fn"


def test_a_step_without_histograms_fails_the_rule_and_no_other(made: MadeDump, store: Path) -> None:
    made.add(VALUES, tensor_name(time=1), step=0)
    chosen = only(kind="percentile", percent=50, gt=1)
    (summary,) = ingest_directly(made.root, store, rules=chosen)
    assert "1 tensor has no histogram" in summary.failed_rules["mine"]
    (result,) = backtest(ingest.open_store(store), chosen).rules
    assert "no histogram" in result.failed[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "cast", "format": "float9", "overflow_gt": 0},
        {"kind": "cast", "format": "nvfp4", "underflow_gt": 0},
        {"kind": "cast", "format": "e4m3"},
        {"kind": "percentile", "percent": 50},
        {"kind": "percentile", "percent": 101, "gt": 1},
    ],
)
def test_impossible_rules_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"format|blocks|needs at least one|100"):
        only(**fields)
