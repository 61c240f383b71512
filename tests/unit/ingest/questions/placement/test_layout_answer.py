"""The layout of a run as plain values and in a notebook."""

import json

from ingest.identities.difference import Level
from ingest.questions.placement.layout_answer import LayoutFinding, PlacedKind, RunLayout
from ingest.reader.text import MAX_ROWS

KIND = PlacedKind("<Mul>.m", (0, 1, 2), "shard 0", "told", 7)
FINDING = LayoutFinding(3, (0, 1), "Mul.m", "wrong shard", "ranks 0-1 hold the same bytes", Level.LIKELY, 2)
LAYOUT = RunLayout("/run.zarr", (0, 1, 2), (3,), (KIND,), (FINDING,), ((0, 2), (1,)))


def test_an_answer_is_json() -> None:
    assert json.loads(json.dumps(LAYOUT.to_dict())) == {
        "store": "/run.zarr",
        "ranks": [0, 1, 2],
        "steps": [3],
        "replicas": [[0, 2], [1]],
        "kinds": [
            {"name": "<Mul>.m", "ranks": [0, 1, 2], "placement": "shard 0", "why": "told", "tensors": 7}
        ],
        "findings": [
            {
                "step": 3,
                "ranks": [0, 1],
                "name": "Mul.m",
                "kind": "wrong shard",
                "text": "ranks 0-1 hold the same bytes",
                "level": "likely",
                "follows": 2,
                "cause": "wrong shard",
            }
        ],
        "removed": 0,
        "left_out": [],
    }


def test_a_notebook_shows_the_first_kinds_and_counts_all() -> None:
    many = RunLayout("/run.zarr", (0,), (3,), (KIND,) * (MAX_ROWS + 5), (FINDING,), ())
    shown = many._repr_html_()
    assert shown.count("&lt;Mul&gt;.m") == MAX_ROWS
    assert "5 more" in shown
    assert "1 finding: " in shown
