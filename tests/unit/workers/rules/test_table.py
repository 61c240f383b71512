"""The page of rules holds the tables that the code makes."""

from pathlib import Path

import pytest

from workers.rules import table


def test_the_page_holds_the_tables_that_the_code_makes() -> None:
    """`python -m workers.rules.table --write` writes them."""
    page = table.PAGE.read_text("utf-8")
    assert table.filled(page) == page


def test_a_table_that_is_out_of_date_is_replaced_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = table.PAGE.read_text("utf-8")
    outdated = tmp_path / "rules.md"
    outdated.write_text(page.replace("| `zeros` | one step |", "| `zeros` | |"))
    assert outdated.read_text() != page
    monkeypatch.setattr(table, "PAGE", outdated)
    table.main(["--write"])
    assert outdated.read_text() == page
