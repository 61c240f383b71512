"""The packed dumps are as their README describes them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.dumps import DATA, NAMES, DumpLibrary, large_profile


def test_every_packed_dump_is_named_and_described() -> None:
    readme = (DATA / "README.md").read_text()
    packed = [path.name.removesuffix(".tar.xz") for path in DATA.glob("*.tar.xz")]
    assert sorted(name for name in packed if not name.startswith("store-")) == sorted(NAMES)
    assert [name for name in NAMES if f"`{name}`" not in readme] == []


@pytest.mark.parametrize(
    ("name", "npy_files"),
    [
        ("lenet-1rank", 3 * 195),
        ("lenet-4rank", 4 * 3 * 235),
        ("nan-log-2rank", 2 * 3 * 243),
        ("longnames-1rank", 2 * 14),
    ],
)
def test_dump_is_complete(name: str, npy_files: int, dumps: DumpLibrary) -> None:
    assert len(list(dumps[name].rglob("*.npy"))) == npy_files


def test_copy_may_be_changed(dump_copy: Callable[[str], Path]) -> None:
    truth = dump_copy("nan-log-2rank") / "truth.json"
    assert json.loads(truth.read_text())
    truth.unlink()


def test_large_profile_has_a_row_per_file() -> None:
    assert len(large_profile()) == 5372
