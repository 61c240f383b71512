"""The built-in rules as values."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from workers.errors import UsageError
from workers.rules.load import load_rules
from workers.rules.ready import rules_of, written

ROOT = Path(__file__).parents[4]


def test_they_are_those_of_the_yaml_file() -> None:
    ready, loaded = rules_of(None), load_rules().enabled
    assert ready == loaded
    assert ready.definitions == loaded.definitions
    kinds = [[type(value) for _, value in rule.parameters] for rule in ready.rules]
    assert kinds == [[type(value) for _, value in rule.parameters] for rule in loaded.rules]
    assert msgspec.json.decode(written(ready))["digest"] == loaded.digest


def test_a_file_of_rules_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "rules.yml"
    path.write_text("rules:\n- {name: all_zero, enabled: false}\n")
    names = [rule.name for rule in rules_of(path).rules]
    assert names == [rule.name for rule in rules_of(None).rules if rule.name != "all_zero"]
    path.write_text("rules:\n- {name: all_zero, share: 2}\n")
    with pytest.raises(UsageError, match="share is not a field"):
        rules_of(path)


def test_without_a_file_neither_pydantic_nor_yaml_is_loaded() -> None:
    code = (
        "import sys\n"
        "from workers.rules.ready import rules_of\n"
        "assert rules_of(None).rules\n"
        "print([name for name in ('pydantic', 'yaml') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "[]"
