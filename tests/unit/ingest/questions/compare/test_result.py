"""The answer as a table."""

from ingest.questions.compare.run import compare


def test_it_is_a_table_of_pandas(nan_log: str) -> None:
    table = compare(f"{nan_log}@0,2", f"{nan_log}@1,2", keep_equal=True).to_pandas()
    assert len(table) == 243
    assert table.groupby("verdict").size().to_dict() == {"different": 113, "equal": 130}
    assert table["max_abs"].dtype == float
