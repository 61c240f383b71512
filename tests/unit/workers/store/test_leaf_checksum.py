"""Every byte of a commit counts, and a commit of an earlier version has no checksum."""

import json
from pathlib import Path

import google_crc32c
import pytest

from tests.dumps import unpack
from tests.made_steps import made_commit
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store import commit
from workers.store.metadata import encode, group, leaf
from workers.store.record import has_wrong_checksum, with_checksum, without_checksum

KEY = StepKey(0, 8)
DOCUMENT = encode(leaf(made_commit(KEY, "ab12" * 8).record.to_dict(), {"ab12" * 8: group()}))


def test_the_checksum_is_that_of_the_document_without_it() -> None:
    data = with_checksum(DOCUMENT)
    attributes = json.loads(data)["attributes"]
    assert attributes.pop("dump_ingest_crc32c") == f"{google_crc32c.value(DOCUMENT):08x}"
    assert attributes == json.loads(DOCUMENT)["attributes"]
    assert without_checksum(data) == without_checksum(DOCUMENT) == DOCUMENT
    assert not has_wrong_checksum(data)
    assert commit.parse(data, KEY).record == commit.parse(DOCUMENT, KEY).record


def test_each_byte_that_is_wrong_is_noticed_or_does_not_matter() -> None:
    data = with_checksum(DOCUMENT)
    expected = commit.parse(data, KEY)
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        try:
            parsed = commit.parse(damaged, KEY)
        except DamagedStore:
            continue
        assert (parsed.record, dict(parsed.nodes)) == (expected.record, dict(expected.nodes))


def test_a_commit_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    for path in (unpack("store-format-2", tmp_path) / "store.zarr").glob("rank_0/step_*/zarr.json"):
        assert not has_wrong_checksum(path.read_bytes())


def test_only_a_step_gets_a_checksum() -> None:
    with pytest.raises(ValueError, match="not the metadata of a step"):
        with_checksum(b"{}")
