"""A parameter that one program dumped before its update is not a difference, whichever side it is on."""

from pathlib import Path

import numpy as np
import pytest

from ingest.questions.compare.result import Verdict
from ingest.questions.compare.run import compare
from tests.made_runs import MadeRun, Values
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly

RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(4, 5)).astype(np.float32)
DATA = RNG.normal(size=(3, 4)).astype(np.float32)
NAMES = {
    "old": ("fc.weight", "MatMul.MatMul-op1", "Mul.Mul-op3"),
    "new": ("fc_weight", "MatMul.Default_net-Net_fc-Dense_MatMul-op0", ""),
}


def program(root: Path, version: str, dumped: Values, read: Values) -> Path:
    """Dump a program of one of two versions: a parameter, and the operator that reads it."""
    run = MadeRun(MadeDump(root))
    parameter, product, other = NAMES[version]
    run.parameter(parameter, dumped)
    run.op(product, [DATA, read], [DATA @ read])
    if other:  # without an operator of one side, these are not two programs
        run.op(other, [DATA], [DATA * 2])
    return root


@pytest.mark.parametrize("in_store", [True, False], ids=["stores", "dumps"])
@pytest.mark.parametrize("updated", ["old", "new"])
def test_a_parameter_that_is_read_alike_may_have_been_updated(
    tmp_path: Path, updated: str, *, in_store: bool
) -> None:
    sides = []
    for version in NAMES:
        dump = program(tmp_path / version, version, WEIGHT + 0.1 * (version == updated), WEIGHT)
        if in_store:
            ingest_directly(dump, tmp_path / f"{version}.zarr")
        sides.append(tmp_path / f"{version}.zarr" if in_store else dump)
    for a, b in (sides, sides[::-1]):
        (row,) = (row for row in compare(a, b).tensors if row.op_type == "Parameter")
        assert (row.verdict, row.reason[:24]) == (Verdict.IGNORED, "dumped before its update")


@pytest.mark.parametrize("read", [WEIGHT, WEIGHT + 1], ids=["as neither was dumped", "otherwise"])
def test_a_parameter_that_nothing_shows_to_be_updated_differs(tmp_path: Path, read: Values) -> None:
    old = program(tmp_path / "old", "old", WEIGHT + 2, read)
    new = program(tmp_path / "new", "new", WEIGHT + 3, WEIGHT)
    (row,) = (row for row in compare(old, new).tensors if row.op_type == "Parameter")
    assert row.verdict is Verdict.DIFFERENT
