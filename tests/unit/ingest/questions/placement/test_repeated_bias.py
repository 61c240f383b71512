"""A bias that every rank adds before a reduction."""

from pathlib import Path

import numpy as np
import pytest

from tests.laid_out import Lay, layout_of
from tests.made_runs import Values
from tests.sharded_net import Dump


def test_a_bias_that_every_rank_adds_is_found(lay: Lay) -> None:
    def add_twice(ranks: list[Dump]) -> None:
        for dump in ranks:
            name = "layers.1.fc2"
            dump[name] = dump[name] + dump[f"param.{name}.bias"]

    (found,) = lay(2, 1, changed=add_twice).findings
    assert found.kind == "bias on every rank"
    assert "2 times Module..param.layers.1.fc2.bias.output.0" in found.text


_NUMBERS = [("real", "<f4"), ("whole", "<i4")]


@pytest.mark.parametrize(
    ("pieces", "output"),
    [
        ((np.zeros((0, 4), "f4"), np.zeros((0, 5), "f4")), np.zeros((0, 4), "f4")),
        ((np.full((2, 4), 2, "f4"), np.full((1, 4), 3, "f4")), np.ones((2, 4), "f4")),
        ((np.array(["a", "b"]), np.array(["c", "d"])), np.array(["e", "f"])),
        ((np.array([1j, 2]), np.array([1j, 4])), np.array([1j, 9])),
        ((np.zeros(2, _NUMBERS), np.ones(2, _NUMBERS)), np.ones(2, _NUMBERS)),
    ],
    ids=["empty", "uneven", "text", "complex", "structure"],
)
def test_what_cannot_be_summed_has_no_repeated_bias(
    tmp_path: Path, pieces: tuple[Values, Values], output: Values
) -> None:
    bias = np.arange(1, 1 + output.shape[-1]).astype("c16" if output.dtype.kind == "c" else "f4")
    ranks: list[Dump] = [{"x.partial": piece, "y": output, "y.bias": bias} for piece in pieces]
    layout = layout_of(tmp_path, [ranks])
    assert layout.findings == ()
    assert [kind.placement for kind in layout.kinds][1:] == ["replicated", "replicated"]
