"""Files whose name was too long: it was replaced by a number, and `mapping.csv` next to them has it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ingest.layouts.base import ReadSmall

MAPPING = "mapping.csv"


class LongNames:
    """The real names of numbered files. Reads the `mapping.csv` of each directory once, on first use."""

    def __init__(self, read: ReadSmall) -> None:
        self._read = read
        self._mappings: dict[str, tuple[Mapping[str, str], str]] = {}

    def real_name(self, path: str) -> tuple[str, bool]:
        """Return the real name of a file, and whether it is final.

        ("", False) if it has no row: its writer adds the row after the file.
        """
        directory, _, file_name = path.rpartition("/")
        if directory not in self._mappings:
            self._mappings[directory] = self._mapping(f"{directory}/{MAPPING}" if directory else MAPPING)
        mapping, last = self._mappings[directory]
        return mapping.get(file_name, ""), file_name in mapping and file_name != last

    def _mapping(self, path: str) -> tuple[Mapping[str, str], str]:
        """Return the rows, and the file name of a row that may continue, because no line feed ends it."""
        mapping = {}
        last = ""
        # Without quotes: it is written by plain concatenation. Names contain commas, but the number does not.
        for line in os.fsdecode(self._read(path) or b"").split("\n"):
            number, comma, real = line.removesuffix("\r").partition(",")
            last = number if comma else ""
            if comma:
                mapping[number] = real
        return mapping, last
