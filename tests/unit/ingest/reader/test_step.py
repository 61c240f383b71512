"""One committed step: what users ask of it, and conditions on its index."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ingest.api import DumpStore, open_store
from ingest.reader.step import COLUMNS
from ingest.reader.tensor_filter import TensorFilter
from tests.dumps import NAMES, DumpLibrary
from tests.pipeline import ingest_directly
from workers.arrays.filter import Filter
from workers.dump.paths import from_text
from workers.store.model import RowKind


def dumps_in(directory: Path) -> list[Path]:
    """Return the dumps of an archive: usually one, called `dump`."""
    return sorted({path.parent for path in directory.glob("*/rank_0")})


def npy_payload(path: Path) -> tuple[str, tuple[int, ...], bytes]:
    """Read an npy file without anything of the code under test."""
    raw = path.read_bytes()
    start = 10 + int.from_bytes(raw[8:10], "little")
    descr, shape = re.search(rb"'descr': '([^']*)'.*'shape': \(([^)]*)\)", raw[:start]).groups()  # type: ignore[union-attr]
    return descr.decode(), tuple(int(n) for n in shape.replace(b" ", b"").split(b",") if n), raw[start:]


@pytest.mark.parametrize("name", NAMES)
def test_every_byte_of_a_real_dump_comes_back(name: str, dumps: DumpLibrary, tmp_path: Path) -> None:
    """Tensors with their dtype and shape, and every other file too: nothing is left behind."""
    for dump in dumps_in(dumps[name]):
        store = tmp_path / f"{dump.name}.zarr"
        ingest_directly(dump, store)
        left = {str(path.relative_to(dump)) for path in dump.rglob("*") if path.is_file()}
        for step in open_store(str(store)).select():
            assert step.commit.summary.status == "complete"
            kinds, sources = step.tables.label("kind"), step.tables.label("source")
            for row in np.flatnonzero(kinds == RowKind.FILE):
                assert bytes(step.read(int(row))) == (dump / from_text(sources[row])).read_bytes()
                left.remove(from_text(sources[row]))
            for tensor in step.tensors():
                descr, shape, payload = npy_payload(dump / from_text(tensor.source))
                values = tensor.read()
                assert values.tobytes() == payload
                assert values.shape == shape
                assert values.dtype == np.dtype(ml_dtypes.bfloat16 if descr == "<E2" else descr)
                assert tensor.op_type
                left.remove(from_text(tensor.source))
        assert left == set()


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
