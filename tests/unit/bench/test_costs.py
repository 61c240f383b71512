"""What a command costs."""

import sys

import pytest

from bench.costs import command_cost


def test_a_command_keeps_what_python_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    cost = command_cost([sys.executable, "-c", "import sys; sys.exit(sys.dont_write_bytecode)"])
    assert cost.processor > 0
    assert cost.wall > 0
