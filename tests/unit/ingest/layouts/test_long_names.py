"""Names that were too long for the file system, by `mapping.csv`."""

import os

import pytest

from ingest.layouts.cann import LongNames


def names(mapping: bytes | None, path: str = "d/mapping.csv") -> LongNames:
    return LongNames(lambda asked: mapping if asked == path else None)


@pytest.mark.parametrize(
    ("mapping", "answer"),
    [
        (b"7,ReLU.a,b.npy\n", ("ReLU.a,b.npy", True)),
        (b"6,x\r\n7,y\r\n", ("y", True)),
        (b"7,old\n7,new\n", ("new", True)),
        # No line feed yet: the rest of the name may follow.
        (b"6,x\n7,ReLU.a", ("ReLU.a", False)),
        (b"6,x\n", ("", False)),
        (b"", ("", False)),
        (None, ("", False)),
        (b"7,\xff\n", (os.fsdecode(b"\xff"), True)),
    ],
)
def test_row_gives_the_name_once_it_is_complete(mapping: bytes | None, answer: tuple[str, bool]) -> None:
    assert names(mapping).real_name("d/7") == answer


def test_each_directory_has_a_mapping_of_its_own_which_is_read_once() -> None:
    asked: list[str] = []

    def read(path: str) -> bytes:
        asked.append(path)
        return b"7," + path.encode() + b"\n"

    long_names = LongNames(read)
    for path in ("a/7", "b/7", "a/7", "7", "7"):
        assert long_names.real_name(path)[0] == f"{path.removesuffix('7')}mapping.csv"
    assert asked == ["a/mapping.csv", "b/mapping.csv", "mapping.csv"]
