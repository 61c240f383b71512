"""The checksums of the tables of a step, in its commit.

A table ends with the crc32c of its own content, and so does that of another step or rank. The commit lists
what each of its tables ends with: whoever reads one compares four bytes, and computes nothing. Commits of
earlier versions list none.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from workers.errors import DamagedStore

#: What a commit of an earlier version lists.
NO_CHECKSUMS: Mapping[str, int] = MappingProxyType({})
_CRC_BYTES = 4


def checksums_of(chunks: Mapping[str, bytes]) -> dict[str, int]:
    """Return what a commit lists of chunks: the crc32c at the end of each, by path in the generation."""
    return {path: _checksum_of(chunk) for path, chunk in chunks.items()}


def refuse_foreign(chunks: Mapping[str, bytes], listed: Mapping[str, int], where: str) -> None:
    """Check that chunks which were read are those of the commit.

    Args:
        chunks: the chunks, by path in the generation.
        listed: the checksums in the commit.
        where: names the step.

    Raises:
        DamagedStore: one of them is another one, such as that of another step.
    """
    for path, chunk in chunks.items():
        if path in listed and listed[path] != _checksum_of(chunk):
            table = path.partition("/c/")[0]
            raise DamagedStore(f"{where}: {table} is not the one that was committed: its crc32c is another")


def _checksum_of(chunk: bytes) -> int:
    return int.from_bytes(chunk[-_CRC_BYTES:], "little")
