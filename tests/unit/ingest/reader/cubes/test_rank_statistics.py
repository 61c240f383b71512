"""A statistic of several tensors together: what a heatmap says, from a few objects."""

from pathlib import Path

import numpy as np
import pytest

from ingest.api import DumpStore, heatmap
from ingest.reader.snapshot import take_snapshot
from ingest.reader.step_statistics import of_all_tensors
from workers.arrays.statistics import STATISTICS


@pytest.mark.parametrize("statistic", STATISTICS)
def test_it_is_what_a_heatmap_says(statistic: str, consolidated: DumpStore) -> None:
    known = of_all_tensors(take_snapshot(consolidated), statistic)
    whole = heatmap(consolidated, stat=statistic)
    assert sorted(known) == whole["step"].values.tolist()
    for column, step in enumerate(sorted(known)):
        assert known[step].ranks.tolist() == whole["rank"].values.tolist()
        np.testing.assert_array_equal(known[step].values, whole.values[:, column])


def test_what_is_not_in_the_cubes_as_it_is_committed_is_left_out(
    consolidated: DumpStore, filled: DumpStore
) -> None:
    snapshot = take_snapshot(consolidated)
    root = Path(consolidated.url) / "consolidated"
    aggregate = root / "aggregate/c/0/0/0"
    content = aggregate.read_bytes()
    for damage in (lambda: aggregate.write_bytes(content[:-1]), aggregate.unlink):
        damage()
        assert of_all_tensors(snapshot, "max") == {}
        np.testing.assert_array_equal(heatmap(consolidated, stat="max"), heatmap(filled, stat="max"))
