"""Tensors as files: npy, whole tensors of shards, and where they go."""

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import ingest
from ingest.api import DumpStore, open_store
from ingest.reader import unsharded
from ingest.reader.export import TargetDirectory, export
from ingest.reader.output_file import output_file
from ingest.reader.save import save_npy
from tests.sharded_net import LAYOUT, held_in_four_ways, write
from tests.stores import MadeDump, ingest_directly
from workers.errors import DumpIngestError, StoreDenied, UsageError

# Exporting gives the files of the dump, byte for byte, or says why it cannot.


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*.npy")}


def test_only_the_files_of_chosen_rows_are_written(filled: DumpStore, tmp_path: Path) -> None:
    step = filled.step(0, 8)
    (file,) = export(step, tmp_path / "out", [step.rows()[3]])
    assert list(contents(tmp_path / "out")) == [file.source]


def test_existing_files_are_replaced_on_request_only(filled: DumpStore, tmp_path: Path) -> None:
    step = filled.step(0, 8)
    out = tmp_path / "out"
    last = step.export(out)[-1].path
    whole = last.read_bytes()
    last.write_bytes(b"changed")
    for other in out.rglob("*.npy"):
        if other != last:
            other.unlink()
    with pytest.raises(UsageError, match="exists") as raised:
        step.export(out)
    assert "--overwrite" in raised.value.hint
    assert len(contents(out)) == 1  # refused before anything was written
    step.export(out, overwrite=True)
    assert last.read_bytes() == whole


def test_a_target_in_a_store_is_refused(filled: DumpStore, store: Path) -> None:
    """`gc` would delete the files."""
    for target in (store, store / "out"):
        with pytest.raises(UsageError, match=f"would lie in the store {store}"):
            list(export(filled.step(0, 8), target))
    assert not (store / "out").exists()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("where", ["", "rank_0", "rank_0/Net", "file", "dangling"])
def test_links_of_the_target_are_not_followed(
    filled: DumpStore, tmp_path: Path, where: str, *, overwrite: bool
) -> None:
    """Whoever may write to the target could else have files written anywhere."""
    step, out, elsewhere = filled.step(0, 8), tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    secret = elsewhere / "secret"
    secret.write_bytes(b"precious")
    source = step.export(tmp_path / "model")[0].source
    link = out / (source if where in {"file", "dangling"} else where)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to({"file": secret, "dangling": elsewhere / "new"}.get(where, elsewhere))
    with pytest.raises(UsageError, match=rf"{link} is a symbolic link") as raised:
        step.export(out, overwrite=overwrite)
    assert "Export into a new directory" in raised.value.hint
    assert secret.read_bytes() == b"precious"
    assert list(elsewhere.iterdir()) == [secret]


# Whole tensors as files of safetensors.


WHOLE = np.random.default_rng(8).normal(size=(6, 4)).astype(np.float32)
PLACEMENTS = {"cut": "shard 0", "summed": "partial sum", "low": "shard 1"}


def short(name: str) -> str:
    return name.removeprefix("Module..").removesuffix(".output.0")


def placement_of(name: str) -> str:
    return PLACEMENTS.get(short(name), "")


def load(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read a file as its format says, without the code under test."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    assert header.pop("__metadata__") == {"format": "pt"}
    types = {"F32": np.float32, "F64": np.float64, "BF16": ml_dtypes.bfloat16}
    assert end + max(row["data_offsets"][1] for row in header.values()) == len(data)
    return {
        short(name): np.frombuffer(data[end:][slice(*row["data_offsets"])], types[row["dtype"]]).reshape(
            row["shape"]
        )
        for name, row in header.items()
    }


@pytest.fixture(scope="module")
def cut_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    ranks = held_in_four_ways(WHOLE)
    write(root / "dump", [ranks, ranks])
    ingest_directly(root / "dump", root / "run.zarr", layout=LAYOUT)
    return root / "run.zarr"


def test_tensors_of_each_step_are_put_together_in_a_file(
    cut_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsharded, "_PIECE_NBYTES", 5 * 8)  # parts that end within rows
    exported = ingest.export_unsharded(ingest.open_store(cut_store), tmp_path / "out", placement=placement_of)
    assert not [whole.problem for whole in exported if whole.problem]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"step0.safetensors", "step1.safetensors"}
    tensors = load(tmp_path / "out" / "step1.safetensors")
    assert tensors.keys() == {"cut", "same", "summed", "alone"}
    assert all(np.allclose(values, WHOLE) for values in tensors.values())
    assert tensors["summed"].dtype == np.float64
    facts = {short(whole.name): whole.to_dict() for whole in exported if whole.step == 1}
    assert facts["cut"] == {
        "step": 1,
        "name": "Module..cut.output.0",
        "path": str(tmp_path / "out" / "step1.safetensors"),
        "ranks": [0, 1],
        "placement": "shard 0",
        "why": "given",
        "dtype": "float32",
        "shape": [6, 4],
        "nbytes": 96,
        "problem": "",
    }
    assert facts["same"]["why"] == "equal bytes"


def test_what_is_open_is_told_and_the_rest_is_written(cut_store: Path, tmp_path: Path) -> None:
    exported = ingest.export_unsharded(
        ingest.open_store(cut_store),
        tmp_path,
        0,
        name="*s*",
        placement=lambda name: "shard 7" * ("sum" in name),
    )
    problems = {short(whole.name): whole.problem for whole in exported}
    assert problems["summed"].startswith("its pieces cannot be held as 'shard 7'; by their shapes:")
    assert load(tmp_path / "step0.safetensors").keys() == {"same"}
    (is_open,) = ingest.export_unsharded(ingest.open_store(cut_store), tmp_path / "none", 0, name="*cut*")
    assert "how the ranks hold it is not known" in is_open.problem
    assert not list(tmp_path.glob("none/*"))


def test_a_damaged_piece_costs_its_tensor_alone(cut_store: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(cut_store, tmp_path / "run.zarr"))
    chunks = sorted((damaged / "rank_1" / "step_0").glob("*/tensors/float32/c/*"))
    for chunk in chunks:
        chunk.write_bytes(chunk.read_bytes()[:-4] + b"damn")
    exported = ingest.export_unsharded(
        ingest.open_store(damaged), tmp_path / "out", 0, placement=placement_of
    )
    assert {short(whole.name) for whole in exported if whole.is_damaged} == {"cut", "summed"}
    assert load(tmp_path / "out" / "step0.safetensors").keys() == {"same", "alone"}
    assert not list((tmp_path / "out").glob(".*"))


def test_no_two_tensors_have_one_name_in_the_file(tmp_path: Path) -> None:
    """The number of a slot that a graph dumps in a loop is not that of the same name in another graph."""
    for value, (graph, time) in enumerate([("0", 1), ("0", 2), ("0", 3), ("1", 9), ("2", 9)]):
        directory = tmp_path / "dump" / "rank_0" / "Net" / graph / "0"
        directory.mkdir(parents=True, exist_ok=True)
        np.save(directory / f"Add.op.0.0.{time}.output.0.DefaultFormat.npy", np.full(2, value, np.float32))
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    exported = ingest.export_unsharded(ingest.open_store(tmp_path / "run.zarr"), tmp_path)
    written = load(tmp_path / "step0.safetensors")
    assert {name: values[0] for name, values in written.items()} == {
        "Add.op": 0,
        "Add.op.output.0#1": 1,
        "Add.op.output.0#2": 2,
        "Add.op.output.0#3": 3,
        "Add.op.output.0#4": 4,
    }
    assert [short(whole.name) for whole in exported] == list(written)


# Files that the user has named are complete, or not there.


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"old")
    with output_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [StoreDenied("no"), KeyboardInterrupt()])
def test_after_an_error_the_older_file_is_there_and_nothing_else(
    error: BaseException, tmp_path: Path
) -> None:
    """Errors of the store keep their class, although some are errors of the operating system, too."""
    path = tmp_path / "page.html"
    path.write_bytes(b"old")

    def write_and_fail() -> None:
        with output_file(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(type(error)):
        write_and_fail()
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"page.html": b"old"}


# Files that numpy alone can read.


@pytest.mark.parametrize("fortran", [False, True])
def test_a_tensor_keeps_its_elements(made: MadeDump, store: Path, tmp_path: Path, *, fortran: bool) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    made.add(np.asfortranarray(values) if fortran else values)
    ingest_directly(made.root, store)
    (tensor,) = open_store(store).tensors()
    assert save_npy(tensor, tmp_path / "x.npy") == ""
    assert np.array_equal(np.load(tmp_path / "x.npy"), values)


def test_what_numpy_does_not_have_is_widened(made: MadeDump, store: Path, tmp_path: Path) -> None:
    values = np.array([1.5, np.nan, -2], ml_dtypes.bfloat16)
    made.add(values)
    ingest_directly(made.root, store)
    (tensor,) = open_store(store).tensors()
    assert save_npy(tensor, tmp_path / "x.npy") == "float32"
    assert np.array_equal(np.load(tmp_path / "x.npy"), values.astype(np.float32), equal_nan=True)


def test_a_full_disk_is_reported(made: MadeDump, store: Path) -> None:
    """Writing through a memory map, as numpy does by default, would end in SIGBUS."""
    made.add(np.zeros((1024, 1024), np.float32))
    ingest_directly(made.root, store)
    (tensor,) = open_store(store).tensors()
    with pytest.raises(DumpIngestError, match="No space left"):
        save_npy(tensor, "/dev/full")


def test_a_pipe_gets_the_whole_file() -> None:
    reading, writing = os.pipe()
    save_npy(np.arange(4), f"/dev/fd/{writing}")
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert np.load(io.BytesIO(pipe.read())).tolist() == [0, 1, 2, 3]


# Files are written below a directory, whatever others do to it meanwhile.


def test_a_link_that_appears_between_check_and_write_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with TargetDirectory(tmp_path / "out") as target:
        assert not target.check(("a", "b"), "file")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "a").symlink_to(elsewhere)
        with pytest.raises(UsageError, match="out/a is a symbolic link"):
            target.open(("a", "b"), "file")
    assert list(elsewhere.iterdir()) == []


def test_a_name_that_became_a_link_is_not_written_through(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"precious")
    with TargetDirectory(tmp_path / "out") as target:
        target.open((), "file").close()
        (tmp_path / "out" / "file").unlink()
        (tmp_path / "out" / "file").symlink_to(secret)
        with pytest.raises(UsageError, match="out/file is a symbolic link"):
            target.open((), "file")
    assert secret.read_bytes() == b"precious"
