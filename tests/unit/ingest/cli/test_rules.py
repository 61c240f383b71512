"""`dump-ingest rules` as it is typed."""

from pathlib import Path

import pytest
import yaml

from tests.cli import Answer


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Rules with a limit of its own, and one built-in rule that is switched off."""
    path = tmp_path / "rules.yml"
    path.write_text("rules:\n- {name: large, kind: range, max_le: 2}\n- {name: nan, enabled: false}\n")
    return path


def test_rules_in_effect_are_listed_with_their_origin(file: Path, answer: Answer) -> None:
    rows = {row["name"]: row for row in answer("rules", "list", "--rules", file, "--json").json}
    assert rows["large"]["origin"].startswith(str(file))
    assert (rows["nan"]["enabled"], rows["inf"]["enabled"]) == (False, True)
    done = answer("rules", "list", "--rules", file)
    heading = ["name", "kind", "severity", "enabled", "origin", "description"]
    assert done.stdout.splitlines()[0].split() == heading
    assert done.stderr.startswith("rule set ")


def test_rules_are_shown_as_a_file_would_hold_them(file: Path, answer: Answer, tmp_path: Path) -> None:
    shown = answer("rules", "show", "large", "--rules", file).stdout
    (rule,) = yaml.safe_load(shown)["rules"]
    assert (rule["name"], rule["kind"], rule["max_le"]) == ("large", "range", 2)
    (tmp_path / "again.yml").write_text(shown)
    answer("rules", "validate", tmp_path / "again.yml")
    assert answer("rules", "show", "large", "--rules", file, "--json").json == [rule]


def test_rules_are_tried_on_what_is_stored_and_nothing_is_written(
    nan_store: Path, file: Path, answer: Answer
) -> None:
    before = sorted(nan_store.rglob("*"))
    done = answer("rules", "test", nan_store, "--rules", file, "--rule", "l*")
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()[1:]}
    assert int(rows["large"][2]) > 0
    assert "nan" not in rows
    assert "6 steps of single ranks evaluated" in done.stderr
    assert answer("rules", "test", nan_store, "--rules", file, "--json").json["steps"] == 6
    assert sorted(nan_store.rglob("*")) == before
