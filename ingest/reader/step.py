"""One committed step of one rank, as users have it."""

from __future__ import annotations

from pathlib import Path

from ingest.reader.export import Exported, export
from ingest.reader.indexed_step import IndexedStep
from ingest.reader.tensor import Tensor


class Step(IndexedStep):
    """One committed step of one rank. Its index is read when it is first needed, and kept."""

    def export(self, directory: str | Path, *, overwrite: bool = False) -> list[Exported]:
        """Write the source files of this step below `directory`, byte for byte.

        See `ingest.reader.export.export`, which also takes rows and returns an iterator.
        """
        return list(export(self, Path(directory), overwrite=overwrite))

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in order of execution."""
        return [Tensor(self, row) for row in self.rows()]
