"""The answer in words and as plain values."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ingest.dump_configs.model import WrittenConfig
from ingest.questions.next_dump.find import DumpEstimate, NextDump
from ingest.questions.next_dump.suspicion import OperatorId, Suspect

CONFIG = WrittenConfig("mindspore", "data_dump.json", '{"a": "<b>"}', "Set it.", (0, 1), (8,), ("On CPU.",))
SUSPECTS = tuple(
    Suspect(OperatorId("Net", "0", "Log", f"op{n}"), 1 - n / 20, "it began here") for n in range(14)
)
ESTIMATE = DumpEstimate(20, 5_000, None, 1_000, 1_000_000, 0)
ANSWER = NextDump(CONFIG, "NaN on rank 1", SUSPECTS[:1], (), ESTIMATE, (), ())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "  1 operator, step 8, ranks 0-1"),
        ({}, "20 files, 4.9 KiB, 0.50% of a full dump; time not known"),
        ({"suspects": SUSPECTS}, "    2 more"),
        ({"left_out": SUSPECTS[:1]}, "1 operator beyond the budget, the first: Log (op0)"),
        ({"answers": ("which elements",)}, "It will answer\n  which elements"),
        ({"notes": ("not certain",)}, "Notes\n  not certain\n  On CPU."),
        ({"estimate": replace(ESTIMATE, seconds=0.2)}, "less than 1 s"),
        ({"estimate": replace(ESTIMATE, seconds=599.0)}, "about 599 s"),
        ({"estimate": replace(ESTIMATE, seconds=600.0)}, "about 10 min"),
        ({"estimate": replace(ESTIMATE, run_nbytes=2048)}, "and 2.0 KiB of graphs and other files"),
    ],
)
def test_the_answer_says_what_it_costs_and_why(change: dict[str, Any], text: str) -> None:
    assert text in str(replace(ANSWER, **change))


def test_an_empty_dump_has_no_share() -> None:
    empty = replace(ESTIMATE, full_nbytes=0)
    assert empty.share != empty.share
    assert "full dump" not in str(replace(ANSWER, estimate=empty))


def test_plain_values_have_the_configuration_and_the_suspects() -> None:
    row = json.loads(json.dumps(ANSWER.to_dict()))
    assert (row["config"], row["ranks"], row["steps"]) == ('{"a": "<b>"}', [0, 1], [8])
    assert row["suspects"] == [
        {"net": "Net", "graph": "0", "op_type": "Log", "op_name": "op0", "worth": 1, "why": "it began here"}
    ]
    assert row["estimate"]["full_files"] == 1_000


def test_a_notebook_shows_the_configuration_as_text() -> None:
    assert "&lt;b&gt;" in ANSWER._repr_html_()
