"""A checkpoint of torch.distributed.checkpoint as a dump: names, places of parts, and its bytes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ingest.layouts.detect import find_dump
from ingest.reader.dump_store import open_store
from tests.dumps import unpack
from tests.pipeline import ingest_directly
from workers.dump.formats.distcp import read_metadata
from workers.model import StepKey


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("checkpoint")
    unpack("pt/pytorch-logs", into)
    return into / "pytorch-logs" / "dcp-checkpoint" / "dump"


def test_parts_of_all_ranks_make_the_tensors(dump: Path, tmp_path: Path) -> None:
    ingest_directly(dump, tmp_path / "store")
    store = open_store(tmp_path / "store")
    told = json.loads((dump.parent / "oracle.json").read_text())["state_dict_metadata"]
    tensors = {name: entry for name, entry in told.items() if entry["type"] == "TensorStorageMetadata"}
    for name, entry in tensors.items():
        whole = np.full(entry["size"], np.nan, "f4")
        for tensor in store.tensors(step=2, name=f"Parameter.{name}.output.0"):
            at = tensor.attributes["tensor"]["offsets"]
            place = tuple(slice(begin, begin + n) for begin, n in zip(at, tensor.shape, strict=True))
            assert np.isnan(whole[place]).all()
            whole[place] = tensor.read()
        assert not np.isnan(whole).any(), name
    for step in store.select():
        step.export(tmp_path / "out")
    for file in (path for path in dump.rglob("*") if path.is_file()):
        assert (tmp_path / "out" / file.relative_to(dump)).read_bytes() == file.read_bytes()


def test_checkpoint_without_metadata_is_unfinished(dump: Path, tmp_path: Path) -> None:
    shutil.copytree(dump, tmp_path / "dump")
    (tmp_path / "dump" / "step_2").rename(tmp_path / "dump" / "iter_0000007")
    (tmp_path / "dump" / "iter_0000007" / ".metadata").unlink()
    tree = find_dump(tmp_path / "dump")
    listings = {listing.key: listing for listing in tree.scan({}).listings}
    assert set(listings) == {StepKey(0, 7), StepKey(1, 7)}
    description = tree.describe(listings[StepKey(1, 7)])
    assert description.unfinished == "iter_0000007/.metadata"
    assert "names of the tensors are not known" in description.problems[0].reason


def test_parts_that_a_file_lacks_are_named_although_it_ends_with_a_whole_archive(
    dump: Path, tmp_path: Path
) -> None:
    shutil.copytree(dump, tmp_path / "dump")
    directory = tmp_path / "dump" / "step_2"
    chunks = read_metadata((directory / ".metadata").read_bytes())["__0_0.distcp"]
    *_, size, _ = sorted(chunks)
    with (directory / "__0_0.distcp").open("r+b") as file:
        file.truncate(size)
    tree = find_dump(tmp_path / "dump")
    listings = {listing.key: listing for listing in tree.scan({}).listings}
    assert tree.describe(listings[StepKey(0, 2)]).unfinished == "step_2/__0_0.distcp"
    assert not tree.describe(listings[StepKey(1, 2)]).problems
    ingest_directly(tmp_path / "dump", tmp_path / "store")
    commit = open_store(tmp_path / "store").step(0, 2).commit
    assert commit.record.summary.status == "partial"
    record = str(commit.record)
    assert f"ends at byte {size}, before 2 parts that .metadata names" in record
    assert chunks[size].name in record


def test_file_of_a_rank_that_is_missing_beside_others_of_the_rank_is_named(
    dump: Path, tmp_path: Path
) -> None:
    """All files of another rank may be missing: that rank may be on another host."""
    shutil.copytree(dump, tmp_path / "dump")
    directory = tmp_path / "dump" / "step_2"
    chunks = read_metadata((directory / ".metadata").read_bytes())["__0_0.distcp"]
    (directory / "__1_0.distcp").unlink()
    (directory / "__0_0.distcp").rename(directory / "__0_1.distcp")
    ingest_directly(tmp_path / "dump", tmp_path / "store")
    store = open_store(tmp_path / "store")
    assert store.step(0, 2).commit.record.summary.status == "partial"
    record = str(store.step(0, 2).commit.record)
    assert f"step_2/__0_0.distcp: is missing: .metadata names {len(chunks)} parts in it" in record
    assert "__1_0.distcp" not in record
