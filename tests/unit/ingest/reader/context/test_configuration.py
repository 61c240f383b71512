"""The configuration that a dump keeps of itself."""

from pathlib import Path

import pytest

from ingest.reader.context.configuration import configuration_of, sample_of, sample_of_dump
from tests.asked_dumps import asked_dump, store_of
from tests.dumps import DumpLibrary
from tests.replicas import Replicas


@pytest.fixture
def dump(dumps: DumpLibrary, tmp_path: Path) -> Path:
    return asked_dump(dumps, tmp_path / "dump")


def test_every_rank_has_what_was_asked_for(dump: Path, tmp_path: Path) -> None:
    """MindSpore writes it for rank 0 alone."""
    opened = store_of(dump, tmp_path / "s", device="Ascend", iteration="2|5", e2e={"sample_mode": 1})
    told = [configuration_of(opened, rank) for rank in (0, 1)]
    assert told[0] == told[1]
    assert told[0].source.endswith(".dump_metadata/data_dump.json")
    assert (told[0].asked.steps, told[0].device) == (frozenset([2, 5]), "Ascend")
    assert sample_of(opened, 1) == sample_of_dump(dump) == 100


def test_a_dump_without_one_asked_for_everything(tmp_path: Path) -> None:
    made = Replicas()
    made.put(0, 1, {"Adam.w.input.0": 1})
    told = configuration_of(made.store, 0)
    assert (told.source, told.asked.steps, told.version) == ("", None, "")
    assert sample_of_dump(tmp_path) == 0


@pytest.mark.parametrize("content", ["{", "[1]", "[" * 100_000, '{"common_dump_settings": 3}'])
def test_a_damaged_one_is_as_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rank_0/.dump_metadata/data_dump.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert sample_of_dump(tmp_path) == 0
