"""What names, headers and reports of a dump say, in the form of an index."""

import numpy as np

from ingest.questions.compare.dump_rows import keys_of, statistics_of, types_and_shapes
from workers.arrays import dtypes
from workers.arrays.statistics import FIELDS, Statistics
from workers.dump.formats.header import TensorHeader
from workers.dump.model import ReportedStatistics, TensorName
from workers.model import SourceFile
from workers.store.model import RowKind
from workers.tasks.model import Entry

NAME = TensorName("Net", "0", "Mul", "m", "input", 0)
FILE = SourceFile("a.npy", 100, 1)
HEADER = TensorHeader(dtypes.from_name("float16"), (2, 3), 80, 12)
REPORT = ReportedStatistics("statistic.csv", NAME, "Float32", (4,), Statistics(max=2.5))


def entry(name: TensorName = NAME, header: TensorHeader | None = None) -> Entry:
    return Entry(FILE, RowKind.TENSOR, name, header)


def test_the_file_counts_before_the_report() -> None:
    entries = [entry(header=HEADER), entry(header=HEADER), entry(), entry()]
    answer = types_and_shapes(entries, [None, REPORT, REPORT, None])
    assert answer == (["float16", "float16", "float32", ""], [(2, 3), (2, 3), (4,), ()])


def test_statistics_are_those_of_the_report_or_not_known() -> None:
    rows = statistics_of([None, REPORT])
    assert rows.shape == (2, len(FIELDS))
    assert np.isnan(rows[0]).all()
    assert rows[1, FIELDS.index("max")] == 2.5
    assert np.isnan(rows[1]).sum() == len(FIELDS) - 1
    assert statistics_of([]).shape == (0, len(FIELDS))


def test_names_that_occur_twice_are_copies() -> None:
    keys = keys_of([entry(), entry(NAME._replace(slot=1)), entry(), entry(NAME._replace(occurrence=1))])
    assert [(key.slot, key.occurrence, key.copy) for key in keys] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 0, 1),
        (0, 1, 0),
    ]
    assert len(set(keys)) == 4
