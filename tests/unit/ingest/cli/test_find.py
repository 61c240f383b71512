"""`dump-ingest find` as it is typed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.cli import printing
from ingest.questions import find
from tests.cli import Answer
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly

LOG = "Log.Default_net-LogLoss_Log-op0.output.0"


def test_tensors_are_sorted_and_columns_chosen(nan_store: Path, answer: Answer) -> None:
    chosen = ("--columns", "step,name,nan_count")
    words = ("find", nan_store, "--name", "*.output.*", "--sort", "-nan_count,step", *chosen)
    done = answer(*words, "--limit", 3)
    assert [line.split() for line in done.stdout.splitlines()[:3]] == [
        ["step", "name", "nan_count"],
        ["2", LOG, "2"],
        ["3", LOG, "2"],
    ]
    rows = answer(*words, "--json").json
    assert list(rows[0]) == ["step", "name", "nan_count"]
    counts = [row["nan_count"] for row in rows]
    assert counts == sorted(counts, reverse=True)


def test_only_a_terminal_gets_a_part_unasked(
    nan_store: Path, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "QUESTION", replace(find.QUESTION, limit=5))
    assert len(answer("find", nan_store, "--name", "Log.*").stdout.splitlines()) == 1 + 12
    monkeypatch.setattr(printing, "is_terminal", lambda: True)
    cut = answer("find", nan_store, "--name", "Log.*")
    assert len(cut.stdout.splitlines()) == 1 + 5
    assert cut.stderr == "12 tensors, the first 5 shown (--limit 0: all)\n"
    assert len(answer("find", nan_store, "--name", "Log.*", "--json").json) == 12


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--op-type", "log"], "No tensor has the op_type log; case matters: Log"),
        (["--op-type", "ReduceMeen"], "No tensor has the op_type ReduceMeen; near: ReduceMean"),
        (["--name", "log.*"], "Names are case-sensitive. In another case: Log.Default_net"),
        (["--where", "op_type == 'log'"], "No tensor has the op_type log; case matters: Log"),
        (["--name", "Lgo*"], "No tensor is named like Lgo*; near: Log.Default_net-LogLoss_Log-op0.input.0, "),
        (["--where", "rank == 7"], "The store has ranks 0-1 and steps 1-3."),
    ],
)
def test_nothing_found_has_a_hint(nan_store: Path, answer: Answer, options: list[str], hint: str) -> None:
    done = answer("find", nan_store, *options)
    assert f"hint: {hint}" in done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert answer("find", nan_store, *options, "--json").json == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sort", "nan_cout"], "Did you mean nan_count"),
        (["--columns", "xyz"], "--columns: 'xyz' is not a column"),
        (["--columns", ","], "names no column"),
        (["--sort", ""], "names no column"),
        (["--name", "a", "--regex", "b"], "--name and --regex exclude each other"),
        (["--regex", "("], "--regex '(':"),
        (["--consolidated"], "--consolidated takes a condition"),
        (["--consolidated", "--where", "max > 1", "--rank", "1"], "--consolidated does not go with --rank"),
        (["--where", "max >"], "max >"),
    ],
)
def test_mistakes_are_explained(nan_store: Path, answer: Answer, options: list[str], message: str) -> None:
    assert message in answer("find", nan_store, *options, code=2).stderr


@pytest.fixture
def tensors(made: MadeDump, store: Path) -> ingest.Tensors:
    """Five tensors of one element each; that of the second is NaN."""
    for number, value in enumerate((2.0, np.nan, 3.0, 1.0, 2.0)):
        made.add(np.array([value]), tensor_name(f"Add.net_Add-op{number}"))
    ingest_directly(made.root, store)
    return ingest.open_store(store).tensors()


@pytest.mark.parametrize(
    ("order", "expected"), [("max", "30421"), ("-max", "20431"), ("-max,-name", "24031"), ("slot", "01234")]
)
def test_unknown_values_come_last_either_way_and_equal_ones_stay(
    tensors: ingest.Tensors, store: Path, answer: Answer, order: str, expected: str
) -> None:
    rows = answer("find", store, f"--sort={order}", "--json").json
    assert "".join(row["op_name"][-1] for row in rows) == expected
    columns = answer("find", store, f"--sort={order}", "--columns", ",".join(rows[0]), "--json")
    assert columns.json == rows
    assert tensors[0].to_dict().keys() == rows[0].keys()
