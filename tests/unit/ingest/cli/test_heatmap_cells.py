"""`dump-ingest heatmap --cells` as it is typed."""

from pathlib import Path

import pytest

from tests.cli import Answer


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
