"""One committed step: what users ask of it, and conditions on its index."""

from ingest.api import DumpStore
from ingest.reader.step import COLUMNS
from ingest.reader.tensor_filter import TensorFilter
from workers.arrays.filter import Filter


def test_rows_fulfil_conditions_on_every_kind_of_column(filled: DumpStore) -> None:
    step = filled.step(1, 9)
    for text, count in (
        ("op_type == 'Log'", 5),
        ("slot >= 8", 2),
        ("nan_count > 0", 1),
        ("rank == 1 and step == 9", 10),
        ("rank == 0", 0),
        ("name in ['Log.b.output.4', 'MatMul.a.output.1', 'MatMul.a.output.2']", 2),
    ):
        assert len(step.rows(Filter(text, COLUMNS))) == count
    assert len(step.rows(TensorFilter({"op_type": "Log", "io": "output"}, COLUMNS))) == 5
    assert step.rows(TensorFilter({"op_type": "Log", "io": "input"}, COLUMNS)) == []
