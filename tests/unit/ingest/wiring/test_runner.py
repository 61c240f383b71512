"""Where tasks run, as the settings say."""

import pytest

from ingest.dispatch.runners import open_runner
from ingest.settings import load


@pytest.mark.parametrize("workers", [None, pytest.param(1, marks=pytest.mark.dask)])
def test_tasks_run_in_this_process_or_on_a_cluster_of_their_own(workers: int | None) -> None:
    with open_runner(load(store="run.zarr", workers=workers).settings) as run:
        assert list(run(str, [3, 1, 2])) == ["3", "1", "2"]
