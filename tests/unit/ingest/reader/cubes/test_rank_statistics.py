"""A statistic of several tensors together: what a heatmap says, from a few objects."""

from pathlib import Path

import numpy as np
import pytest

from ingest.api import DumpStore, heatmap
from ingest.reader.snapshot import take_snapshot
from ingest.reader.step_statistics import of_all_tensors, of_named_tensors
from tests.counted_requests import CountedRequests
from workers.arrays.aggregate import STATISTICS


@pytest.mark.parametrize("statistic", STATISTICS)
def test_it_is_what_a_heatmap_says(statistic: str, consolidated: DumpStore) -> None:
    known = of_all_tensors(take_snapshot(consolidated), statistic)
    whole = heatmap(consolidated, stat=statistic)
    assert sorted(known) == whole["step"].values.tolist()
    for column, step in enumerate(sorted(known)):
        assert known[step].ranks.tolist() == whole["rank"].values.tolist()
        np.testing.assert_array_equal(known[step].values, whole.values[:, column])


@pytest.mark.parametrize("pattern", ["Log.*", "*.output.0"])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_of_some_tensors_it_is_what_a_heatmap_says(
    statistic: str, pattern: str, consolidated: DumpStore
) -> None:
    known = of_named_tensors(take_snapshot(consolidated), statistic, pattern)
    whole = heatmap(consolidated, pattern, statistic)
    for column, step in enumerate(whole["step"].values.tolist() if known else ()):
        np.testing.assert_array_equal(known[step].values, whole.values[:, column])
    assert known or np.isnan(whole.values).all()


def test_some_tensors_are_read_of_the_cube_of_the_statistic_alone(
    consolidated: DumpStore, requests: CountedRequests
) -> None:
    snapshot = take_snapshot(consolidated)
    requests.keys.clear()
    assert of_named_tensors(snapshot, "max", "Log.*")
    assert of_named_tensors(snapshot, "max", "Nothing.*") == {}
    arrays = {key.split("/")[1] for key in requests.keys}
    axis = {"zarr.json", "step", "rank", "fingerprint"}
    assert "max" in arrays
    assert not arrays & {"row", "count", "aggregate"}
    assert axis <= arrays


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
