"""A bias that every rank adds before a reduction."""

import numpy as np
import pytest

from ingest.questions.placement.repeated_bias import _times
from tests.laid_out import Lay
from tests.sharded_net import Dump


def test_a_bias_that_every_rank_adds_is_found(lay: Lay) -> None:
    def add_twice(ranks: list[Dump]) -> None:
        for dump in ranks:
            name = "layers.1.fc2"
            dump[name] = dump[name] + dump[f"param.{name}.bias"]

    (found,) = lay(2, 1, changed=add_twice).findings
    assert found.kind == "bias on every rank"
    assert "2 times Module..param.layers.1.fc2.bias.output.0" in found.text


@pytest.mark.parametrize(
    ("rest", "times"), [([2, 4, -6], 2), ([1, 2, -3], 1), ([-1, -2, 3], -1), ([0, 0, 0], 0), ([2, 4, 6], 0)]
)
def test_the_rest_is_a_whole_multiple_of_the_bias_or_none(rest: list[float], times: int) -> None:
    bias = np.array([1.0, 2.0, -3.0])
    assert _times(np.array(rest, float), bias) == times
    assert _times(np.array(rest, float), bias * 0) == 0
    assert _times(np.array(rest, float) + bias / 2, bias) == 0
