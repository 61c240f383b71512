"""`dump-ingest heatmap --values-only` as it is typed."""

from pathlib import Path

import pytest

from tests.cli import Answer

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def test_values_are_those_of_the_heatmap(nan_store: Path, answer: Answer) -> None:
    asked = ("heatmap", nan_store, LOG, "--stat", "max", "--rank", "1", "--json")
    names = ("rank", "step", "value", "statistic")
    whole = [{name: row[name] for name in names} for row in answer(*asked).json]
    assert answer(*asked, "--values-only").json == whole
    lines = answer(*asked[:-1], "--values-only", "--step", "1").stdout.splitlines()
    assert lines[0].split() == ["rank", "step", "max"]
    assert [line.split()[:2] for line in lines[1:]] == [["1", "1"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--aggregate", "mean"), "--aggregate"), (("--role", "loss"), "conditions")],
    ids=["aggregate", "conditions"],
)
def test_what_needs_more_is_refused(
    nan_store: Path, answer: Answer, words: tuple[str, ...], said: str
) -> None:
    refused = answer("heatmap", nan_store, "*", "--values-only", *words, code=2)
    assert f"--values-only does not go with {said}" in refused.stderr
