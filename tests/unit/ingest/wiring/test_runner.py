"""Where tasks run, as the settings say."""

import pytest

from ingest.settings import load
from ingest.wiring.runner import open_runner


@pytest.mark.parametrize("workers", [None, pytest.param(1, marks=pytest.mark.dask)])
def test_tasks_run_in_this_process_or_on_a_cluster_of_their_own(workers: int | None) -> None:
    with open_runner(load(store="run.zarr", workers=workers).settings) as run:
        assert list(run(str, [3, 1, 2])) == ["3", "1", "2"]
