"""The histograms that a question gets, and the errors for a choice without any."""

import shutil
from pathlib import Path

import ingest
from ingest.reader.catalog import Damage
from tests.rule_sets import only


def test_damaged_histograms_are_left_out_and_named(sketched_store: Path, store: Path) -> None:
    shutil.copytree(sketched_store, store)
    (path,) = (store / "rank_0/step_2").glob("*/histograms/c/0/0")
    path.write_bytes(b"damaged")
    opened = ingest.open_store(store)
    quantiles = ingest.quantiles(opened, "Log.*output*")
    precision = ingest.precision(opened, "Log.*output*", "float16")
    tested = ingest.test_rules(opened, only(kind="percentile", percent=50, gt=1e30))
    for (left_out,) in (quantiles.left_out, precision.left_out, tested.left_out):
        assert left_out.is_damaged
        assert str(left_out).startswith("rank 0 step 2: damaged: ")
    assert (len(quantiles.tensors), len(precision.rows), tested.steps) == (5, 5, 5)
    damages: list[Damage] = []
    found = opened.tensors("Log.*output*", where="p50 < 1e30", damages=damages)
    assert {(tensor.rank, tensor.step) for tensor in found} == {(0, 1), (0, 3), (1, 1), (1, 2), (1, 3)}
    assert [str(damage.key) for damage in damages] == ["rank 0 step 2"]
