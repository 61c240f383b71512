"""`dump-ingest heatmap --cells` as it is typed."""

import json
from pathlib import Path

import pytest

import ingest
from tests.cli import Answer
from workers.store import strict_json


@pytest.mark.parametrize("words", [("--stat", "findings"), ("*Log*", "--stat", "max", "--rank", "1")])
def test_cells_are_those_of_the_library(nan_store: Path, answer: Answer, words: tuple[str, ...]) -> None:
    pattern, rank = ("*Log*", 1) if "*Log*" in words else (None, None)
    stat = "max" if pattern else "findings"
    expected = ingest.matrix(ingest.open_store(nan_store), stat, pattern, rank=rank, cells=(1, 2)).to_dict()
    asked = ("heatmap", nan_store, *words, "--cells", "1x2")
    assert answer(*asked, "--json").json == json.loads(strict_json.dumps(expected))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cells", "1x2", "--values-only"), "--values-only does not go with --cells"),
        (("--cells", "0x2"), "is not a size"),
        (("--cells", "1x2", "--stat", "nonsense"), "is not a statistic"),
    ],
)
def test_what_is_wrong_is_named(nan_store: Path, answer: Answer, words: tuple[str, ...], said: str) -> None:
    assert said in answer("heatmap", nan_store, *words, code=2).stderr
