"""Files whose name was too long: they are named by a number, and `mapping.csv` beside them says the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ingest.layouts.base import ReadSmall

MAPPING = "mapping.csv"


class LongNames:
    """The real names of numbered files. Reads the `mapping.csv` of each directory once, when it is needed."""

    def __init__(self, read: ReadSmall) -> None:
        self._read = read
        self._mappings: dict[str, tuple[Mapping[str, str], str]] = {}

    def real_name(self, path: str) -> tuple[str, bool]:
        """Return the real name of a file, and whether that is its last word.

        ("", False) where there is no row for it: its writer adds the row later than the file.
        """
        directory, _, file_name = path.rpartition("/")
        if directory not in self._mappings:
            self._mappings[directory] = self._mapping(f"{directory}/{MAPPING}" if directory else MAPPING)
        mapping, last = self._mappings[directory]
        return mapping.get(file_name, ""), file_name in mapping and file_name != last

    def _mapping(self, path: str) -> tuple[Mapping[str, str], str]:
        """Return the rows, and the file name of a row that may go on, for no line feed ends it."""
        mapping = {}
        last = ""
        # No quotes: it is written by plain concatenation, and names hold commas, but the number does not.
        for line in os.fsdecode(self._read(path) or b"").split("\n"):
            number, comma, real = line.removesuffix("\r").partition(",")
            last = number if comma else ""
            if comma:
                mapping[number] = real
        return mapping, last
