"""`dump-ingest find` as it is typed."""

from pathlib import Path

import pytest

from tests.cli import Answer

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def test_tensors_are_listed_with_their_statistics(nan_store: Path, answer: Answer) -> None:
    done = answer("find", nan_store, "--op-type", "Log", "--where", "nan_count > 0")
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [row[:7] for row in rows] == [
        ["1", "2", "0", LOG, "float32", "6x4", "2"],
        ["1", "3", "0", LOG, "float32", "6x4", "2"],
    ]
    assert done.stderr == "2 tensors\n"


def test_a_limit_is_told_from_the_end(nan_store: Path, answer: Answer) -> None:
    done = answer("find", nan_store, "--regex", r"^Log\.", "--limit", 1)
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == "12 tensors, the first 1 shown\n"
    assert len(answer("find", nan_store, "--name", "Log.*", "--json").json) == 12


def test_the_consolidated_view_is_asked_for_statistics_of_the_condition(
    found_store: Path, answer: Answer
) -> None:
    words = ("find", found_store, "--consolidated", "--where", "nan_count > 0 and io == 'output'")
    done = answer(*words)
    heading, first, *rest = done.stdout.splitlines()
    assert heading.split() == ["rank", "step", "graph", "name", "nan_count"]
    assert first.split() == ["1", "2", "0", LOG, "2"]
    assert len(rest) == 5
    assert done.stderr.startswith("6 tensors; as of 20")
    assert [row["nan_count"] for row in answer(*words, "--json").json] == [2, 1, 1, 2, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--name", "a", "--regex", "b"], "--name and --regex exclude each other"),
        (["--regex", "("], "--regex '(':"),
        (["--consolidated"], "--where and --step alone"),
        (["--consolidated", "--where", "max > 1", "--rank", "1"], "--where and --step alone"),
        (["--where", "max >"], "max >"),
    ],
)
def test_mistakes_are_explained(nan_store: Path, answer: Answer, options: list[str], message: str) -> None:
    assert message in answer("find", nan_store, *options, code=2).stderr
