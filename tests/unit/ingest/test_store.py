"""Reading a store: what was dumped, or the name of what is damaged."""

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ingest.api import DumpStore, open_store
from tests.dumps import NAMES, DumpLibrary
from tests.npy_files import MadeDump, npy_header, tensor_name
from tests.pipeline import SMALL_GRID, ingest_directly
from workers.dump.paths import from_text
from workers.errors import DamagedStore, DumpIngestError, UsageError
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


def test_counts_of_nan_and_inf_are_the_truth(dumps: DumpLibrary, tmp_path: Path) -> None:
    """The first question of the engineer: which rank, step and operator was the first to produce a NaN?"""
    directory = dumps["nan-log-2rank"]
    truth: dict[str, Any] = json.loads((directory / "truth.json").read_text())
    ingest_directly(directory / "dump", tmp_path / "run.zarr")
    store = open_store(str(tmp_path / "run.zarr"))
    fields = ("nan", "pos_inf", "neg_inf")
    found = {
        tensor.source: tuple(int(getattr(tensor.statistics, f"{field}_count")) for field in fields)
        for tensor in store.tensors(where="nan_count + pos_inf_count + neg_inf_count > 0")
    }
    assert found == {path: tuple(file[field] for field in fields) for path, file in truth["files"].items()}
    first = store.tensors(where="nan_count > 0")[0]
    assert (first.rank, first.step) == (1, 2)
    assert sum(step.commit.summary.nan_count for step in store.select()) == sum(
        counts[0] for counts in found.values()
    )


@pytest.fixture
def filled(made: MadeDump, store: Path) -> DumpStore:
    """A store of two ranks and two steps, with several shards each."""
    rng = np.random.default_rng(0)
    for rank in range(2):
        for step in (8, 9):
            for slot in range(10):
                values = rng.normal(size=50).astype("<f4")
                values[0] = np.nan if (rank, step, slot) == (1, 9, 4) else 0
                made.add(
                    values, tensor_name("MatMul.a" if slot % 2 else "Log.b", slot=slot), step=step, rank=rank
                )
    ingest_directly(made.root, store, SMALL_GRID)
    return open_store(str(store))


def test_tensors_are_found_by_what_is_known_of_them(filled: DumpStore) -> None:
    assert (filled.ranks, filled.steps) == ([0, 1], [8, 9])
    assert len(filled.tensors()) == 40
    assert len(filled.tensors(rank=1)) == 20
    assert len(filled.tensors(rank=[0, 1], step=8)) == 20
    assert len(filled.tensors(op_type="Log", step=[8, 9])) == 20
    assert len(filled.tensors(name="*.a.output.[13]")) == 8
    assert len(filled.tensors(name=re.compile(r"Log.*\.4$"))) == 4
    (tensor,) = filled.tensors(where="nan_count > 0")
    assert (tensor.rank, tensor.step, tensor.name) == (1, 9, "Log.b.output.4")


@pytest.mark.parametrize("choice", [{"rank": 7}, {"step": 3}, {"rank": [0, 7]}, {"where": "nonsense > 1"}])
def test_what_is_not_there_is_said(choice: dict[str, Any], filled: DumpStore) -> None:
    """An empty result would look like a healthy run."""
    with pytest.raises(UsageError) as found:
        filled.tensors(**choice)
    assert found.value.hint
    with pytest.raises(UsageError, match="rank 5 step 1"):
        filled.step(5, 1)


def test_dictionary_of_a_tensor_is_plain_json(filled: DumpStore) -> None:
    tensor = filled.tensors(where="nan_count > 0")[0]
    found = json.loads(json.dumps(tensor.to_dict()))
    assert (found["shape"], found["nan_count"], found["rank"]) == ([50], 1, 1)


def test_payloads_come_in_pieces_and_in_the_order_of_the_store(filled: DumpStore) -> None:
    step = filled.step(0, 8)
    rows = step.rows()
    found = {row: b"".join(pieces) for row, pieces in step.payloads(rows, 28)}
    assert found == {row: bytes(step.read(row)) for row in rows}


def objects_of(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("c/**/*") if path.is_file())


def read_everything(store: Path) -> list[bytes]:
    return [tensor.read().tobytes() for tensor in open_store(str(store)).tensors()]


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove"])
@pytest.mark.usefixtures("filled")
def test_damage_is_named_and_never_read_as_zeros(damage: str, store: Path) -> None:
    """Whichever object of the step it is."""
    intact = read_everything(store)
    paths = [path for path in objects_of(store) if "step_9" in str(path) and "files" not in str(path)]
    assert len(paths) > 15
    for path in paths:
        content = path.read_bytes()
        match damage:
            case "flip":
                path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
            case "truncate":
                path.write_bytes(content[:-3])
            case "empty":
                path.write_bytes(b"")
            case _:
                path.unlink()
        with pytest.raises(DamagedStore) as found:
            read_everything(store)
        relative = str(path.relative_to(store))
        table = relative.removesuffix("/c/0/0").split("/", 3)[-1]
        assert table in str(found.value)
        path.write_bytes(content)
    assert read_everything(store) == intact


@pytest.mark.usefixtures("filled")
def test_damaged_commit_hides_no_other_step(store: Path) -> None:
    (store / "rank_0/step_9/zarr.json").write_text("{}")
    opened = open_store(store)
    assert opened.tensors(rank=1, step=9)
    with pytest.raises(DamagedStore):
        opened.tensors(rank=0, step=9)


@pytest.mark.usefixtures("filled")
def test_verify_reads_what_other_libraries_open(store: Path) -> None:
    """They know nothing of the commit: to them the document beside an array is all there is."""
    (path,) = store.glob("rank_0/step_9/*/tensors/float32/zarr.json")
    path.write_text(path.read_text().replace("little", "big"))
    (damage,) = open_store(store).verify()
    assert str(path.relative_to(store)) in damage.reason


def test_quarantined_bytes_are_kept(made: MadeDump, store: Path) -> None:
    """What cannot be read today may be understood tomorrow."""
    contents = [
        b"no npy file",
        b"",
        npy_header("<f4", (9,)) + b"short",
        npy_header("|O", (1,)) + b"pickle me",
    ]
    for slot, content in enumerate(contents):
        made.add(content, tensor_name(slot=slot))
    made.add(np.arange(5.0), tensor_name(slot=9))
    (summary,) = ingest_directly(made.root, store)
    assert (summary.status, summary.quarantined, summary.tensors) == ("partial", 4, 1)
    step = open_store(str(store)).step(0, 0)
    rows = np.flatnonzero(step.tables.label("kind") == RowKind.QUARANTINED)
    assert {int(step.tables.number("slot")[row]): bytes(step.read(int(row))) for row in rows} == dict(
        enumerate(contents)
    )
    assert all(step.tables.label("problem")[rows])
    assert len(step.tensors()) == 1


def test_old_generation_is_not_mixed_with_the_new(made: MadeDump, store: Path) -> None:
    """Whoever opened a step keeps reading what was committed then."""
    path = made.add(np.arange(5.0))
    ingest_directly(made.root, store)
    (old,) = open_store(str(store)).tensors()
    path.write_bytes(path.read_bytes()[:-8] + np.float64(7).tobytes())
    ingest_directly(made.root, store)
    (new,) = open_store(str(store)).tensors()
    assert old.read()[-1] == 4
    assert new.read()[-1] == 7


def test_no_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(DumpIngestError, match="no dump-ingest store"):
        open_store(str(tmp_path / "nothing"))
