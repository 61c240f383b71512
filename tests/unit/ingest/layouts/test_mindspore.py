"""Names and places of MindSpore dumps."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ingest.layouts.detect import find_dump
from ingest.layouts.mindspore import MindSpore
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump
from workers.dump.model import TensorName
from workers.model import StepKey


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank_0", 0),
        ("rank_17", 17),
        ("rank_", None),
        ("rank_x", None),
        ("rank_1.bak", None),
        ("Rank_1", None),
        # Two spellings of one rank would overwrite one another.
        ("rank_01", None),
        ("rank_\u0663", None),
        ("rank_" + "9" * 50, None),
    ],
)
def test_rank_of_a_directory(name: str, rank: int | None) -> None:
    (pattern, *_) = MindSpore.patterns
    fields = pattern.match(0, name)
    assert (None if fields is None else int(fields["rank"])) == rank


def names_of(dump: Path, step: int | None = 0) -> Mapping[str, TensorName | None]:
    found = find_dump(dump)
    listing = next(listing for listing in found.scan({}).listings if listing.key == StepKey(0, step))
    named = found.describe(listing).named
    return {path.rsplit("/", 1)[-1]: tensor_file.name for path, tensor_file in named.items()}


@pytest.mark.parametrize(
    "content",
    [
        b"x" * 200_000,
        b'"' + b"a\n" * 100_000,
        b"\0,\0\n",
        b"\xff,\xfe\n",
        b"123.npy\n",
        b",,,,\n",
        b"123.npy,nonsense\n",
    ],
)
def test_damaged_mapping_does_no_harm(content: bytes, made: MadeDump) -> None:
    made.add(b"", "123.npy")
    made.add(content, "mapping.csv")
    assert "123.npy" in names_of(made.root)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
@pytest.mark.parametrize("place", ["Net/0/0/mapping.csv", ".dump_metadata/data_dump.json"])
def test_special_file_in_the_place_of_a_small_one_does_not_hang(
    make: Callable[[Path], None], place: str, made: MadeDump
) -> None:
    made.add(b"", "123.npy")
    path = made.root / "rank_0" / place
    path.parent.mkdir(exist_ok=True)
    make(path)
    assert "123.npy" in names_of(made.root)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"common_dump_settings": {"iteration": "0|2-3"}}, {0, 2, 3}),
        ({"common_dump_settings": {"iteration": "all"}}, None),
        ({"common_dump_settings": {}}, None),
        ({}, None),
        ([], None),
    ],
)
def test_configuration_tells_which_steps_to_expect(
    settings: object, expected: set[int] | None, made: MadeDump
) -> None:
    made.add(b"")
    path = made.root / "rank_0" / ".dump_metadata" / "data_dump.json"
    path.parent.mkdir()
    path.write_text(json.dumps(settings))
    assert find_dump(made.root).scan({}).expected_steps == expected


@pytest.mark.parametrize(
    ("name", "place", "steps"),
    [
        ("lenet-1rank", "dump", 3),
        ("mindspore-2.7.1-cpu-sync", "control-flow", 1),
        ("mindspore-2.0.0-cpu-sync", "lenet", 1),
    ],
)
def test_every_name_of_a_real_dump_is_understood(
    name: str, place: str, steps: int, dumps: DumpLibrary
) -> None:
    dump = find_dump(dumps[name] / place)
    found = [listing for listing in dump.scan({}).listings if listing.key.step is not None]
    assert len(found) >= steps
    for listing in found:
        assert [
            path
            for path, tensor_file in dump.describe(listing).named.items()
            if tensor_file.name is None or not tensor_file.settled
        ] == []
