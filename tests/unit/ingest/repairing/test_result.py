"""What became of a damaged store, for people and as plain values."""

import json

import pytest

from ingest.repairing.work import Lost, Mended, RepairReport, StepRepair
from workers.model import StepKey

MENDED = StepRepair(StepKey(0, 1), ("truncated",), [Mended("a/c/0", "the dump /d")])
LOST = StepRepair(StepKey(0, 2), ("missing",), lost=[Lost("a.npy", "no copy")], generation="f" * 32)
REMAINS = StepRepair(None, ("missing",), remains=("still missing",))


@pytest.mark.parametrize(
    ("repairs", "applied", "is_clean"),
    [
        ([], False, True),
        ([MENDED], False, False),  # a dry run mends nothing
        ([MENDED], True, True),
        ([MENDED, LOST], True, False),
        ([REMAINS], True, False),
    ],
)
def test_a_store_is_clean_if_nothing_is_damaged_any_more(
    repairs: list[StepRepair], *, applied: bool, is_clean: bool
) -> None:
    assert RepairReport("/store", applied, repairs=repairs).is_clean is is_clean


def test_the_report_is_json() -> None:
    report = RepairReport("/store", applied=True, checked=3, repairs=[MENDED, LOST, REMAINS])
    assert json.loads(json.dumps(report.to_dict())) == {
        "store": "/store",
        "applied": True,
        "checked": 3,
        "repairs": [
            {
                "rank": 0,
                "step": 1,
                "damages": ["truncated"],
                "mended": [{"path": "a/c/0", "from": "the dump /d"}],
                "lost": [],
                "generation": None,
                "remains": [],
            },
            {
                "rank": 0,
                "step": 2,
                "damages": ["missing"],
                "mended": [],
                "lost": [{"what": "a.npy", "reason": "no copy"}],
                "generation": "f" * 32,
                "remains": [],
            },
            {
                "rank": None,
                "step": None,
                "damages": ["missing"],
                "mended": [],
                "lost": [],
                "generation": None,
                "remains": ["still missing"],
            },
        ],
    }
