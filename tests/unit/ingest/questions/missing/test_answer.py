"""What is missing, as values and as a table."""

import json

from ingest.questions.missing import MissingItem, MissingItems

ITEMS = MissingItems([MissingItem("step", "4-7", None, ""), MissingItem("operator", "Log", 1, "fused")])


def test_missing_items_are_rows_of_a_table() -> None:
    assert json.loads(json.dumps(list(ITEMS.rows()))) == [
        {"what": "step", "name": "4-7", "rank": None, "reason": ""},
        {"what": "operator", "name": "Log", "rank": 1, "reason": "fused"},
    ]
    table = ITEMS.to_pandas()
    assert list(table.columns) == list(MissingItems.columns)
    assert (table["rank"].dtype.name, table["rank"].isna().tolist()) == ("Int64", [True, False])


def test_a_part_is_still_a_table_and_so_is_none() -> None:
    assert isinstance(ITEMS[1:], MissingItems)
    assert MissingItems().to_pandas().columns.tolist() == list(MissingItems.columns)
