"""The matrix of a URL is that of the library."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.page.arguments import Arguments
from ingest.page.cells import matrix_asked
from ingest.page.moment import Moment


@pytest.mark.parametrize("given", [{}, {"stat": "max", "name": "Log.*"}, {"stat": "problems"}])
def test_it_is_what_the_library_says(moment: Moment, given: dict[str, str]) -> None:
    asked = matrix_asked(moment, Arguments({**given, "ranks": "1", "steps": "2-9"}))
    whole = ingest.matrix(
        moment.store, given.get("stat", "non_finite"), given.get("name"), rank=1, step=[2, 3]
    )
    np.testing.assert_equal(asked.to_dict(), whole.to_dict())


def test_a_step_that_is_damaged_on_all_ranks_has_a_column(nan_log: Path, tmp_path: Path) -> None:
    shutil.copytree(nan_log, tmp_path / "run.zarr")
    for rank in range(2):
        (tmp_path / f"run.zarr/rank_{rank}/step_2/zarr.json").write_bytes(b"{")
    store = ingest.open_store(tmp_path / "run.zarr")
    asked = matrix_asked(Moment.of(store), Arguments({}))
    np.testing.assert_equal(asked.to_dict(), ingest.matrix(store).to_dict())
    assert asked.state.tolist() == [[1, 3, 1]] * 2
