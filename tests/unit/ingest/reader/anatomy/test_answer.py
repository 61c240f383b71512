"""What is in a tensor, as JSON has it."""

import json

from ingest.reader.anatomy.answer import Anatomy, AxisCounts, NonFinite


def test_an_anatomy_is_plain_values() -> None:
    anatomy = Anatomy(
        elements=6,
        nan=1,
        pos_inf=0,
        neg_inf=1,
        first=(NonFinite((0, 2), "NaN"), NonFinite((), "-Inf")),
        axes=(AxisCounts(1, 3, 2, ((2, 1), (0, 1))),),
        percentiles={0.5: -1.0, 50.0: 2.0},
        edges=(-1.0, 0.5, 2.0),
        counts=(1, 3),
    )
    assert json.loads(json.dumps(anatomy.to_dict())) == {
        "elements": 6,
        "nan": 1,
        "pos_inf": 0,
        "neg_inf": 1,
        "first_non_finite": [{"index": [0, 2], "value": "NaN"}, {"index": [], "value": "-Inf"}],
        "axes": [
            {
                "axis": 1,
                "length": 3,
                "affected": 2,
                "worst": [{"position": 2, "count": 1}, {"position": 0, "count": 1}],
            }
        ],
        "percentiles": {"0.5": -1.0, "50": 2.0},
        "histogram": {"edges": [-1.0, 0.5, 2.0], "counts": [1, 3]},
    }
