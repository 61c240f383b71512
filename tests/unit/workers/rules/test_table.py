"""The page of rules holds the tables that the code makes."""

from workers.rules import table


def test_the_page_holds_the_tables_that_the_code_makes() -> None:
    """`python -m workers.rules.table --write` writes them."""
    page = table.PAGE.read_text("utf-8")
    assert table.filled(page) == page
