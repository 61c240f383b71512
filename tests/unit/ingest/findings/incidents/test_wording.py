"""Incidents in words."""

from dataclasses import replace
from typing import Any

import pytest

from ingest.findings.incidents.find import summary_of_origin, summary_of_rule
from ingest.questions.origin.answer import OriginAnswer, OriginSpread
from workers.store.model import Finding

BORN = OriginAnswer("nan", "born", "NaN", rank=1, step=2, op_type="Log", op_name="net/Log-op0")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "NaN born in Log (net/Log-op0) on rank 1, step 2"),
        ({"op_name": None}, "NaN born in an operator that was not dumped on rank 1, step 2"),
        ({"how": "recorded"}, "overflow recorded in Log (net/Log-op0) on rank 1, step 2"),
        ({"how": "came in", "came_in": "Parameter.w"}, "NaN came in with Parameter.w on rank 1, step 2"),
        ({"how": "came through"}, "NaN came through Log (net/Log-op0) on rank 1, step 2"),
        ({"spread": OriginSpread(ranks=(0, 1, 2))}, "on rank 1, step 2; it reached ranks 0-2"),
        ({"spread": OriginSpread(ranks=(1,))}, "NaN born in Log (net/Log-op0) on rank 1, step 2"),
    ],
)
def test_the_way_it_began_and_its_spread_are_said(change: dict[str, Any], words: str) -> None:
    assert summary_of_origin(replace(BORN, **change)).endswith(words)


def test_a_rule_is_said_with_what_it_found_first() -> None:
    reason = "all gradients are zero."
    finding = Finding("vanished", "warning", 3, 7, 0, "0", "Adam.w", 0.0, 1.0, reason)
    said = summary_of_rule("vanished", 7, finding)
    assert said == "vanished on rank 3, step 7: Adam.w: all gradients are zero"
    about_all = replace(finding, rank=None, name="")
    assert summary_of_rule("vanished", 7, about_all) == "vanished, step 7: all gradients are zero"
    assert summary_of_rule("vanished", 7, None) == "vanished in step 7"
