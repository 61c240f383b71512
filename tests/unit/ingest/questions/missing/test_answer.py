"""What is missing, as values and as a table."""

from ingest.questions.missing import MissingItem, MissingItems

ITEMS = MissingItems([MissingItem("step", "4-7", None, ""), MissingItem("operator", "Log", 1, "fused")])


def test_a_part_is_still_a_table_and_so_is_none() -> None:
    assert isinstance(ITEMS[1:], MissingItems)
    assert MissingItems().to_pandas().columns.tolist() == list(MissingItems.columns)
