"""The table of histograms: what is stored of them, and for which rows."""

from pathlib import Path
from typing import Any

import numpy as np
import zarr

from ingest.api import open_store
from ingest.reader.step_tables import histograms_of, read_entries
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.store.sketches import HISTOGRAM_TABLE, SKETCH_PATHS


def test_copies_share_the_histogram_of_one_row(made: MadeDump, store: Path) -> None:
    values = np.arange(1, 25, dtype="<f4")
    made.add(values, tensor_name(time=1), step=0)
    made.add(values, tensor_name(slot=1, time=2), step=0)
    made.add(values.view("<i4"), tensor_name(slot=2, time=3), step=0)
    made.add(np.zeros(3, "<f4"), tensor_name(slot=3, time=4), step=0)
    ingest_directly(made.root, store, sketches=True)
    step = open_store(store).step(0, 0)
    known = histograms_of(step)
    assert sorted(known) == step.rows()
    first, copy, bits, zeros = (known[row] for row in step.rows())
    assert first is copy
    assert first.at_most(8).low == 8
    assert bits.at_most(8).low == 0
    assert (zeros.finite, zeros.nonzero) == (3, 0)
    assert len(HISTOGRAM_TABLE.own(read_entries(step))) == 2


def test_a_step_without_sketches_is_byte_for_byte_as_before(dumps: DumpLibrary, tmp_path: Path) -> None:
    contents = []
    for sketches in (False, True):
        root = tmp_path / str(sketches)
        ingest_directly(dumps["nan-log-2rank"] / "dump", root, sketches=sketches)
        contents.append(
            {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        )
    without, with_them = contents
    added = with_them.keys() - without.keys()
    assert {path.name for path in added} == {"zarr.json", "0"}
    assert all(SKETCH_PATHS & set(path.parts) for path in added)
    changed = {path for path, data in without.items() if with_them[path] != data}
    assert all(path.name == "zarr.json" and len(path.parts) == 3 for path in changed)  # the commits


def test_another_zarr_reader_finds_the_bins_of_a_tensor(sketched_store: Path) -> None:
    tensor = open_store(sketched_store).tensors(rank=1, step=2, name="Log.*.output.0")[0]
    leaf: Any = zarr.open_group(sketched_store / "rank_1" / "step_2", mode="r")
    table: Any = leaf[leaf.attrs["dump_ingest"]["fingerprint"]]["histograms"]
    assert table.attrs["fields"] == ["row", "exponent", "positive", "negative"]
    bins = table[:][table[:][:, 0] == tensor.row]
    values = np.abs(tensor.read())
    assert {exponent: negative for _, exponent, _, negative in bins.tolist()} == {
        -1: int(((values > 0.5) & (values <= 1)).sum())
    }
