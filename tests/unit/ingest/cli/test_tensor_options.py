"""Every command that is about some tensors takes the same options."""

import json
from pathlib import Path

import pytest

from ingest.cli.app import load_command
from tests.cli import Answer

LOSS = "Neg.Default_net-LogLoss_Neg-op0.output.0"


@pytest.mark.parametrize("name", ["find", "export", "trend", "heatmap", "divergence", "compare"])
def test_a_command_has_all_of_them(name: str) -> None:
    options = {flag for parameter in load_command(name).params for flag in parameter.opts}
    assert {"--name", "--regex", "--op-type", "--role", "--graph", "--io", "--where", "-w"} <= options


def test_the_trend_of_the_loss_needs_no_name(nan_store: Path, answer: Answer) -> None:
    rows = json.loads(answer("trend", nan_store, "--role", "loss", "--stat", "mean", "--json").stdout)
    assert {row["name"] for row in rows} == {LOSS}
    (table,) = {
        answer("trend", nan_store, *words, "--role", "loss").stdout.partition("\n")[2]
        for words in (["*"], ["--name", "Neg*"], ["--regex", "^Neg"], [])
    }
    assert LOSS in table
    refused = answer("trend", nan_store, "*", "--name", "x", code=2)
    assert "exclude each other" in refused.stderr
    assert "'gradeint' is not a role" in answer("trend", nan_store, "--role", "gradeint", code=2).stderr


def test_roles_are_columns(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    condition = ("--where", "role == 'loss' and nan_count > 0")
    words = ("find", nan_store, *condition, "--columns", "rank,step,role", "--json")
    assert json.loads(answer(*words).stdout) == [
        {"rank": 1, "step": 2, "role": "loss"},
        {"rank": 1, "step": 3, "role": "loss"},
    ]
    exported = json.loads(
        answer(
            "export", nan_store, tmp_path / "out", "--role", "loss", "--rank", 1, "--step", 2, "--json"
        ).stdout
    )
    assert [Path(file["path"]).name.startswith("Neg.") for file in exported] == [True]
    heat = json.loads(answer("heatmap", nan_store, "--role", "loss", "--stat", "nan", "--json").stdout)
    assert {row["tensors"] for row in heat} == {1}


def test_a_comparison_may_be_limited(nan_store: Path, answer: Answer) -> None:
    words = ("compare", f"{nan_store}@0,1", f"{nan_store}@1,1", "--role", "loss", "--all", "--json")
    compared = json.loads(answer(*words, code=5).stdout)
    assert [tensor["name_a"] for tensor in compared["tensors"]] == [LOSS]
