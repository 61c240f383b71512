"""Answers become plain values."""

import json
import math

import pytest

from ingest.questions.origin.answer import OriginAnswer, OriginTensor
from tests.cli import strict_json
from workers.arrays.statistics import FIELDS, Statistics


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
