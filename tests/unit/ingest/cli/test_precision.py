"""`dump-ingest precision` as it is typed."""

from pathlib import Path

from tests.cli import Answer


def test_tensors_without_a_histogram_are_not_called_lossless(nan_store: Path, answer: Answer) -> None:
    told = answer("precision", nan_store, "-f", "e4m3").stderr
    assert "no tensor that has a histogram would lose anything" in told
    assert "`dump-ingest sketch STORE` adds them" in told
