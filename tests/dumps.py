"""Unpack the real dumps in `tests/data`, whose README describes each of them."""

import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"

NAMES = (
    "cann-bin-synthetic",
    "dtypes-1rank",
    "inf-explode-1rank",
    "lenet-1rank",
    "lenet-4rank",
    "longnames-1rank",
    "mindspore-2.0.0-cpu-sync",
    "mindspore-2-versions",
    "mindspore-2.7.1-cpu-sync",
    "msprobe-26.2.0-mindspore-cpu",
    "msprobe-26.2.0-pytorch-cpu",
    "nan-log-2rank",
    "nan-log-2rank-next",
    "nan-mask-1rank",
    "nan-sqrt-2rank",
    "synthetic-text",
    "tinybert-2rank",
)


def unpack(name: str, into: Path) -> Path:
    """Unpack a dump below `into` and return its directory, `into / name`."""
    with tarfile.open(DATA / f"{name}.tar.xz") as archive:
        # Python 3.11.2 (Debian 12) does not have filters; these archives are our own and safe.
        filters: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(into, **filters)  # noqa: S202
    return into / name


class DumpLibrary(Mapping[str, Path]):
    """The dumps by name, each unpacked below `root` on first access and made read-only."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __getitem__(self, name: str) -> Path:
        if name not in NAMES:
            raise KeyError(name)
        path = self._root / name
        if not path.exists():
            unpack(name, self._root)
            for below in path.rglob("*"):
                below.chmod(0o555 if below.is_dir() else 0o444)
            path.chmod(0o555)
        return path

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)
