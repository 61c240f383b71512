"""What a URL asks for, and the URLs and lines that lead there."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest

import ingest
from ingest.page.asking import Arguments, Links, UrlParameter, matrix_asked
from ingest.page.library import Moment
from workers.errors import UsageError

PARAMETERS = (
    UrlParameter("rank", "integer", "The rank.", is_required=True),
    UrlParameter("name", "string", "The name of the tensor."),
    UrlParameter("partial", "boolean", "Also partial steps."),
)


@pytest.mark.parametrize(
    ("query", "message", "hint"),
    [
        ({}, "rank is missing", "The rank."),
        ({"rank": ""}, "rank is missing", "The rank."),
        ({"rank": "1", "x" * 999: ""}, "no parameter 'xxx", "Parameters: rank, name, partial."),
        ({"rank": "-1"}, "rank: '-1' is not a whole number", ""),
        ({"rank": "1.0"}, "is not a whole number", ""),
        ({"rank": "\u0663"}, "is not a whole number", ""),  # a digit, but not of ASCII
        ({"rank": "9" * 19}, "is not a whole number", ""),
        ({"rank": "1", "name": "x" * 8193}, "name: longer than 8192", ""),
    ],
)
def test_what_a_url_has_wrong_is_named(query: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        Arguments.of(query, PARAMETERS)
    assert error.value.hint == hint
    assert len(error.value.message) < 150


HOSTILE = 'a/b?c&d=#"<é>%2F'


def test_a_name_with_any_characters_stays_one_part_of_the_path() -> None:
    url = urlsplit(Links("/dumps", HOSTILE).view("tensor", name=HOSTILE, step=0, graph="", rank=None))
    assert unquote(url.path) == f"/dumps/runs/{HOSTILE}/tensor"
    assert url.path.count("/") == 4
    assert parse_qs(url.query) == {"name": [HOSTILE], "step": ["0"]}


def asked(**given: str) -> Arguments:
    return Arguments({"rank": "1", "step": "2", **given})


def test_a_step_that_is_damaged_on_all_ranks_has_a_column(nan_log: Path, tmp_path: Path) -> None:
    shutil.copytree(nan_log, tmp_path / "run.zarr")
    for rank in range(2):
        (tmp_path / f"run.zarr/rank_{rank}/step_2/zarr.json").write_bytes(b"{")
    store = ingest.open_store(tmp_path / "run.zarr")
    asked = matrix_asked(Moment.of(store), Arguments({}))
    np.testing.assert_equal(asked.to_dict(), ingest.matrix(store).to_dict())
    assert asked.state.tolist() == [[1, 3, 1]] * 2
