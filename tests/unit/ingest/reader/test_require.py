"""What is not a store is called by its name, with the command that was meant."""

import os
from pathlib import Path

import pytest

from ingest.api import open_store
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from workers.errors import StoreDenied, UsageError


def refusal(place: Path | str) -> UsageError:
    with pytest.raises(UsageError) as error:
        open_store(place)
    return error.value


def test_a_file_is_called_a_file(tmp_path: Path) -> None:
    rules, other = tmp_path / "rules.yml", tmp_path / "notes.txt"
    for path in (rules, other):
        path.write_text("")
    assert refusal(rules).message == f"{rules} is a file, not a store"
    assert "--rules" in refusal(rules).hint
    assert "Name the directory or URL of a store" in refusal(other).hint


def test_a_dump_is_called_a_dump_and_how_to_ingest_it_is_told(dumps: DumpLibrary) -> None:
    dump = dumps["nan-log-2rank"] / "dump"
    assert refusal(dump).message == f"{dump} holds a dump, not a store"
    assert refusal(dump).hint == f"Ingest it first: dump-ingest ingest {dump} --store run.zarr"


def test_a_part_of_a_store_names_the_store(dumps: DumpLibrary, store: Path) -> None:
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    for part in ("rank_0", "rank_0/step_1"):
        assert refusal(store / part).hint == f"Name the store: {store}"
    assert refusal(store / "zarr.json").hint == f"It is a part of a store. Name the store: {store}"


def test_a_store_that_may_not_be_read_is_denied(store: Path, other_user: int) -> None:
    store.mkdir(mode=0o700)
    os.seteuid(other_user)
    try:
        with pytest.raises(StoreDenied):
            open_store(store)
    finally:
        os.seteuid(0)
