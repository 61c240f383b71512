"""What every layout answers, and the values it answers with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from workers.model import SourceFile, StepKey, TensorName


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the dump that cannot be taken in, and what to do about it."""

    path: str
    reason: str
    hint: str = ""
    denied: bool = False
    """Whether it is a matter of permissions: then nothing of the step is taken until they are granted."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Listing:
    """All that one rank has dumped in one step, as seen at one moment."""

    key: StepKey
    files: tuple[SourceFile, ...]
    """In order of path."""
    newest_change: float
    """Unix time of the newest change of content or name; 0 for no files."""
    later_begun: bool
    """Whether a later step of the same rank had begun before this listing was made."""
    directories: tuple[tuple[str, int], ...] = ()
    """Path and modification time of each directory listed."""
    listed_at: float = 0.0
    """Unix time at which the listing began."""
    problems: tuple[Problem, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Scan:
    """One look at a dump."""

    listings: tuple[Listing, ...]
    problems: tuple[Problem, ...]
    """What concerns no single step."""
    expected_steps: frozenset[int] | None = None
    """The steps that the dump's configuration asks for; None when it does not say, or asks for all."""


class Dump(Protocol):
    """One dump directory of a known layout."""

    layout: str
    """Name of the layout, as it stands in commit records."""
    root: Path

    def scan(self, known: Mapping[StepKey, Listing]) -> Scan:
        """List every step now. Reads directories only.

        Args:
            known: listings that may be returned again for directories that have not changed since.
        """

    def names(self, listing: Listing) -> Mapping[str, TensorName | None]:
        """Return what the name of each file tells, by path; None where a tensor file has no known name.

        Files that are no tensor files are left out. An empty `op_type` says that the real name is written
        elsewhere and was not found there (yet).
        """
