"""Answers become plain values."""

import json
import math

import pytest

from ingest.questions.origin.answer import OriginAnswer, OriginTensor
from ingest.reader.context import SourceLine
from ingest.reader.snapshot import LeftOut
from tests.cli import strict_json
from workers.arrays.statistics import FIELDS, Statistics
from workers.model import StepKey


def test_answer_without_an_operator_has_every_field() -> None:
    fields = OriginAnswer(None, left_out=(LeftOut(StepKey(1, 2), "partial"),)).to_dict()
    assert fields["left_out"] == [{"rank": 1, "step": 2, "reason": "partial"}]
    assert (fields["rank"], fields["spread"], fields["source"], fields["notes"]) == (None, None, None, [])


def test_source_line_is_flat() -> None:
    line = SourceLine("a.py", 7, "x = y", (), "exact", "op", "net/Log-op0", "graph.ir")
    source = OriginAnswer("nan", rank=0, source=line).to_dict()["source"]
    assert source == {
        "file": "a.py",
        "line": 7,
        "code": "x = y",
        "of": "op",
        "matched": "exact",
        "op": "net/Log-op0",
        "source": "graph.ir",
    }


def test_statistics_are_strict_json() -> None:
    """Counts are whole numbers; what is unknown or infinite is null."""
    values = dict.fromkeys(FIELDS, 2.0) | {"mean": math.nan, "max": math.inf}
    tensor = OriginTensor("Log.a.input.0", "input", 0, "float32", (2, 3), Statistics(**values), is_bad=True)
    fields = strict_json(json.dumps(tensor.to_dict()))
    assert (fields["mean"], fields["max"], fields["min"]) == (None, None, 2.0)
    assert isinstance(fields["nan_count"], int)
    assert fields["shape"] == [2, 3]


@pytest.mark.parametrize(
    ("looked_for", "text"),
    [
        ("auto", "No NaN, Inf or overflow record that matters in the examined steps."),
        ("nan", "No NaN that matters in the examined steps."),
        ("max > 6e4", "No tensor fulfils max > 6e4."),
    ],
)
def test_answer_without_an_operator_says_what_was_looked_for(looked_for: str, text: str) -> None:
    assert str(OriginAnswer(None, looked_for=looked_for)) == text


def test_names_in_the_text_do_not_reach_the_terminal() -> None:
    answer = OriginAnswer("nan", rank=0, step=1, op_type="Log\x1b[2J", op_name="a", how="born", what="NaN")
    assert str(answer).startswith("NaN was born in Log\\x1b[2J (a)")
