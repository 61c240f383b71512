"""How a compared tensor was held, as plain values."""

import math

from ingest.questions.compare.held_by import HeldBy


def test_plain_values_have_no_infinities() -> None:
    held = HeldBy((0, 1), (0,), "shard 0", "certain", "why", limit=0.0, times=math.inf)
    assert held.to_dict() == {
        "ranks_a": [0, 1],
        "ranks_b": [0],
        "placement": "shard 0",
        "certainty": "certain",
        "explanation": "why",
        "limit": 0.0,
        "times": None,
        "explained": True,
    }
