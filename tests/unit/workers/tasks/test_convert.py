"""From files to a store and back: every bit, or a reason why not."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingest.api import open_store
from tests.dump_data_writer import Tensor, dump_data
from tests.npy_files import MadeDump, npy_header, tensor_name
from tests.pipeline import SMALL_GRID, ingest_directly, plan_all, run
from workers.arrays.digest import digest
from workers.arrays.dtypes import from_name, from_npy_descr
from workers.dump.formats.header import TensorHeader
from workers.dump.model import TensorName
from workers.dump.source import OpenFile, envelope_digest
from workers.errors import SourceChanged
from workers.model import SourceFile
from workers.store.model import Grid, RowKind
from workers.tasks import convert as convert_module
from workers.tasks.convert import PART_NBYTES, PayloadBuffer
from workers.tasks.model import Entry

DESCRS: list[Any] = [
    *(
        f"{order}{kind}"
        for order, kind in itertools.product("<>", ["i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16"])
    ),
    *("|b1", "|i1", "|u1", "<E2", "<U3", ">U2", "|S5", "|V7", "<M8[ns]", ">m8[s]", "<f16", "<c32"),
    [("a", "<f4"), ("b", ">i2", (2,))],
]


@st.composite
def tensors(draw: st.DrawFn) -> tuple[Any, tuple[int, ...], bool, bytes]:
    """Draw a tensor as it stands in a file: descr, shape, Fortran order, and any payload."""
    descr = draw(st.sampled_from(DESCRS))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    element = from_npy_descr(descr if isinstance(descr, str) else repr(descr))
    nbytes = element.itemsize * int(np.prod(shape, dtype=int))
    if draw(st.booleans()):
        payload = bytes(nbytes)
    else:
        payload = np.random.default_rng(draw(st.integers(0, 5))).bytes(nbytes)
    if descr == "|b1":
        payload = bytes(byte & 1 for byte in payload)
    return descr, shape, draw(st.booleans()), payload


@settings(max_examples=25)
@example([("<f16", (), False, bytes(range(16)))])
@given(st.lists(tensors(), min_size=1, max_size=12))
def test_every_tensor_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[Any, tuple[int, ...], bool, bytes]]
) -> None:
    """NaN payloads, -0.0, 0-d, zero-size, both byte orders, both memory orders, and types that Zarr lacks."""
    root = tmp_path_factory.mktemp("example")
    dump = MadeDump(root / "dump")
    for slot, (descr, shape, fortran, payload) in enumerate(drawn):
        dump.add(npy_header(descr, shape, fortran=fortran) + payload, tensor_name(slot=slot))
    (summary,) = ingest_directly(dump.root, root / "run.zarr", SMALL_GRID)
    assert (summary.status, summary.tensors) == ("complete", len(drawn))
    tensors_by_slot = {tensor.slot: tensor for tensor in open_store(str(root / "run.zarr")).tensors()}
    for slot, (descr, shape, fortran, payload) in enumerate(drawn):
        tensor = tensors_by_slot[slot]
        wanted = np.dtype(ml_dtypes.bfloat16) if descr == "<E2" else np.dtype(descr)
        values = tensor.read()
        assert (values.dtype, values.shape, tensor.shape) == (wanted, shape, shape)
        assert values.tobytes("F" if fortran else "C") == payload
        assert tensor.digest == xxhash.xxh3_128(payload).hexdigest()
        lazy = tensor.dask().compute()
        assert lazy.shape == shape
        # Dask brings everything into the byte order of the machine.
        assert lazy.astype(wanted).tobytes("F" if fortran else "C") == payload
        first, last = tensor.edges(2)
        itemsize = wanted.itemsize
        assert first.tobytes() == payload[: 2 * itemsize]
        assert last.tobytes() == payload[max(len(payload) - 2 * itemsize, 0) :]


def test_equal_payloads_are_stored_once(made: MadeDump, store: Path) -> None:
    """Most bytes of a real dump are copies: an op's output is the next op's input."""
    values = np.arange(1000, dtype="<f4")
    for slot in range(5):
        made.add(values if slot != 3 else values + 1, tensor_name(slot=slot))
    (summary,) = ingest_directly(made.root, store)
    assert summary.duplicates == 3
    tensors = open_store(str(store)).tensors()
    assert [np.array_equal(tensor.read(), values + (tensor.slot == 3)) for tensor in tensors] == [True] * 5
    offsets = {tensor._step.tables.number("offset")[tensor.row] for tensor in tensors}
    assert len(offsets) == 2


def test_equal_bytes_of_other_types_keep_their_own_statistics(made: MadeDump, store: Path) -> None:
    """Types without a Zarr type share one array of bytes; statistics depend on the type."""
    made.add(npy_header(">c8", (4,)) + bytes(32), tensor_name(slot=0))
    made.add(npy_header(">c16", (2,)) + bytes(32), tensor_name(slot=1))
    made.add(npy_header("|V32", (1,)) + bytes(32), tensor_name(slot=2))
    # Beyond float64, in which all statistics are accumulated: rather none than wrong ones.
    made.add(npy_header("<f16", (2,)) + bytes(32), tensor_name(slot=3))
    ingest_directly(made.root, store)
    counts = {tensor.slot: tensor.statistics.count for tensor in open_store(str(store)).tensors()}
    assert counts[0] == 4
    assert counts[1] == 2
    assert np.isnan(counts[2])
    assert np.isnan(counts[3])


def test_reported_statistics_of_a_tensor_that_was_not_dumped_are_kept(tmp_path: Path) -> None:
    """There is nothing to compute them from, and a tensor of no elements is something else."""
    place = tmp_path / "dump/20260101000000/0/Net/1/3"
    place.mkdir(parents=True)
    absent = Tensor(b"", shape=(4,), address=0, size=16, dumped=False)
    name = "Add.a.1.1.1722484800151657"
    (place / name).write_bytes(
        dump_data(outputs=[absent, Tensor(bytes(16), shape=(4,)), Tensor(b"", shape=(0,))])
    )
    (place / f"{name}.csv").write_text(
        "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,"
        "Count,Nan Count,Negative Inf Count,Positive Inf Count\n"
        "Output,0,16,DT_FLOAT,ND,4,2,1,1.5,4,1,0,0\n"
    )
    (summary,) = ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    assert (summary.disagreements, summary.nan_count) == (0, 1)
    tables = open_store(str(tmp_path / "run.zarr")).step(0, 3).tables
    is_tensor = tables.label("kind") == "tensor"
    assert tables.statistic("count")[is_tensor].tolist() == [4, 4, 0]


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("piece", [16, 48, 1024])
def test_large_tensor_goes_through_a_small_buffer(
    copies: int, piece: int, made: MadeDump, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory does not grow with the tensor, and pieces change neither digest nor statistics."""
    monkeypatch.setattr(convert_module, "PIECE_BYTES", piece)
    values = np.random.default_rng(0).normal(size=500).astype("<f4")
    values[7] = np.nan
    for slot in range(copies):
        made.add(values, tensor_name(slot=slot))
    (summary,) = ingest_directly(made.root, store, Grid(chunk_nbytes=64, shard_nbytes=256, job_nbytes=10**6))
    assert summary.duplicates == copies - 1
    for tensor in open_store(str(store)).tensors():
        np.testing.assert_array_equal(tensor.read(), values)
        assert tensor.statistics.nan_count == 1
        assert tensor.statistics.max == np.nanmax(values)


@pytest.mark.parametrize("change", ["grow", "touch", "remove", "replace by a link"])
def test_change_between_plan_and_conversion_is_noticed(change: str, made: MadeDump, store: Path) -> None:
    """The header was read when the step was planned: other bytes by now must not get its shape."""
    path = made.add(np.arange(4.0))
    (plan,) = plan_all(made.root, store)
    match change:
        case "grow":
            path.write_bytes(path.read_bytes() + b"x")
        case "touch":
            os.utime(path, ns=(0, 0))
        case "remove":
            path.unlink()
        case _:
            path.rename(path.with_name("elsewhere"))
            path.symlink_to("elsewhere")
    with pytest.raises(SourceChanged):
        run(plan)
    assert not (store / "zarr.json").exists()


LEAD = b"a header"


def written(root: Path, nbytes: int, lead: bytes = LEAD) -> tuple[Entry, bytes]:
    """Write a file of a header and a payload; return its entry, and the payload."""
    payload = np.random.default_rng(nbytes).bytes(nbytes)
    path = root / "file"
    path.write_bytes(LEAD + payload)
    source = SourceFile("file", path.stat().st_size, path.stat().st_mtime_ns)
    header = TensorHeader(from_name("uint8"), (nbytes,), len(LEAD), nbytes, lead)
    return Entry(source, RowKind.TENSOR, TensorName(op_type="Add", io="output", slot=0), header), payload


def test_a_payload_may_be_larger_than_the_memory(tmp_path: Path) -> None:
    entry, payload = written(tmp_path, 1000)
    buffer = PayloadBuffer(300)
    with OpenFile(tmp_path, entry.source, "step 0") as file:
        assert b"".join(bytes(piece) for piece in buffer.pieces(entry, file)) == payload
        assert buffer.ranges(entry, file, [(900, 100), (0, 1), (500, 199)]) == (
            payload[900:] + payload[:1] + payload[500:699]
        )
    assert len(buffer) == 300


def written_with_tail(root: Path, nbytes: int) -> tuple[Entry, bytes]:
    """Write a file with a tail; return its entry, which has the digest of all but the payload."""
    entry, payload = written(root, nbytes, lead=b"")
    path = root / "file"
    path.write_bytes(path.read_bytes() + b"tail")
    source = SourceFile("file", path.stat().st_size, path.stat().st_mtime_ns)
    return entry._replace(source=source, envelope_digest=envelope_digest(LEAD + b"tail")), payload


@pytest.mark.parametrize("nbytes", [0, 10, 2 * PART_NBYTES])
def test_an_envelope_is_read_with_its_payload(tmp_path: Path, nbytes: int) -> None:
    entry, payload = written_with_tail(tmp_path, nbytes)
    buffer = PayloadBuffer(max(nbytes, 1))
    with OpenFile(tmp_path, entry.source, "step 0") as file:
        known, parts = buffer.hold(entry, nbytes, file)
        assert (known, b"".join(parts)) == (digest(payload), payload)
        expected = envelope_digest(LEAD + b"tail")
        assert file.envelope(len(LEAD), nbytes, expected) == LEAD + b"tail"


@pytest.mark.parametrize("nbytes", [0, 10, 2 * PART_NBYTES])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"A" + content[1:], "different header"),
        (lambda content: content[:-1] + b"L", "different header"),
        (lambda content: content[:-1], "ended at byte"),
    ],
)
def test_a_change_in_an_envelope_is_noticed_whatever_its_size_and_time(
    tmp_path: Path, nbytes: int, change: Callable[[bytes], bytes], message: str
) -> None:
    entry, _ = written_with_tail(tmp_path, nbytes)
    path = tmp_path / "file"
    buffer = PayloadBuffer(max(nbytes, 1))

    def read(file: OpenFile) -> None:
        buffer.hold(entry, nbytes, file)
        assert entry.envelope_digest is not None
        file.envelope(entry.offset, nbytes, entry.envelope_digest)

    with OpenFile(tmp_path, entry.source, "step 0") as file:
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(SourceChanged, match=message):
            read(file)
