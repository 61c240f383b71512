"""What names, headers and reports of a dump say, in the form of an index."""

from ingest.questions.compare.sources import keys_of
from workers.dump.formats.header import TensorHeader
from workers.dump.model import TensorName
from workers.model import SourceFile
from workers.store.model import RowKind
from workers.tasks.model import Entry

NAME = TensorName("Net", "0", "Mul", "m", "input", 0)
FILE = SourceFile("a.npy", 100, 1)


def entry(name: TensorName = NAME, header: TensorHeader | None = None) -> Entry:
    return Entry(FILE, RowKind.TENSOR, name, header)


def test_names_that_occur_twice_are_copies() -> None:
    keys = keys_of([entry(), entry(NAME._replace(slot=1)), entry(), entry(NAME._replace(occurrence=1))])
    assert [(key.slot, key.occurrence, key.copy) for key in keys] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 0, 1),
        (0, 1, 0),
    ]
    assert len(set(keys)) == 4
