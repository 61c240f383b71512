"""One committed step of one rank, as users have it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ingest.reader.export import Exported, export
from ingest.reader.opened_step import OpenedStep
from ingest.reader.tensor import Tensor


@dataclass(eq=False)
class Step(OpenedStep):
    """One committed step of one rank."""

    def export(self, directory: str | Path, *, overwrite: bool = False) -> list[Exported]:
        """Write the source files of this step below `directory`, byte for byte; see `reader.export`."""
        return list(export(self, Path(directory), overwrite=overwrite))

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in order of time."""
        return [Tensor(self, row) for row in self.rows()]
