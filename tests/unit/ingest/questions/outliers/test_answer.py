"""The answer about outliers as plain values."""

import json
import math

from ingest.questions.outliers import DEAD, OUTLIER, OddPositions, OutliersAnswer
from workers.store import strict_json


def odd(kind: str, value: float, median: float) -> OddPositions:
    return OddPositions(
        kind=kind,
        name="MatMul.fc.output.0",
        net="Net",
        graph="0",
        dtype="float32",
        shape=(300, 260),
        axis=1,
        positions=(100,),
        value=value,
        median=median,
        rank=1,
        step=2,
        first_step=1,
        last_step=2,
        steps=2,
        of_steps=3,
        ranks=(1,),
        exactness="exact",
    )


def test_an_outlier_has_a_ratio_and_others_have_none() -> None:
    assert odd(OUTLIER, 50.0, 2.0).ratio == 25.0
    assert math.isnan(odd(DEAD, 0.0, math.nan).ratio)


def test_an_answer_is_json() -> None:
    positions = odd(OUTLIER, 50.0, 2.0), odd(DEAD, 0.0, math.nan)
    answer = OutliersAnswer("run.zarr", "abs_max", 10.0, positions, looked_at=6, too_small=5, without=4)
    told = json.loads(strict_json.dumps(answer.to_dict()))
    assert (told["by"], told["factor"], told["looked_at"], told["too_small"]) == ("abs_max", 10.0, 6, 5)
    assert (told["without"], told["left_out"]) == (4, [])
    outlier, dead = told["positions"]
    assert (outlier["name"], outlier["shape"], outlier["axis"]) == ("MatMul.fc.output.0", [300, 260], 1)
    assert (outlier["positions"], outlier["ranks"], outlier["ratio"]) == ([100], [1], 25.0)
    assert (dead["kind"], dead["median"], dead["ratio"]) == ("dead", None, None)
