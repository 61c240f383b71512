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


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must have the lines '<!-- built-in rules"):
        table.filled("# Rules")


def test_without_an_option_the_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    table.main([])
    printed = capsys.readouterr().out
    assert all(text in printed for text in table.tables().values())
