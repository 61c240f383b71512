"""One committed step of one rank, as users have it, and lists of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.reader import notebook
from ingest.reader.indexed_step import IndexedStep
from ingest.reader.listing import TableList, Tensors
from ingest.reader.rows import STEP_FIELDS, step_row
from ingest.reader.tensor import Tensor

if TYPE_CHECKING:
    from ingest.reader.files.export import Exported


class Step(IndexedStep):
    """One committed step of one rank. Its index is read when it is first needed, and kept.

    What `dir` lists is for users; the rest serves the modules that read a store.
    """

    @property
    def rank(self) -> int:
        """The rank that dumped it."""
        return self.key.rank

    @property
    def step(self) -> int | None:
        """The number of the step; None for the files of a rank that belong to no step."""
        return self.key.step

    @property
    def status(self) -> str:
        """`complete`, or `partial` if files are quarantined or missing."""
        return self.commit.summary.status

    def export(self, directory: str | Path, *, overwrite: bool = False) -> list[Exported]:
        """Write the source files of this step below `directory`, byte for byte.

        See `ingest.reader.files.export.export`, which also takes rows and returns an iterator.
        """
        from ingest.reader.files.export import export  # deferred: 0.005 s, and questions do not export

        return list(export(self, Path(directory), overwrite=overwrite))

    def tensors(self) -> Tensors:
        """Return all tensors, in order of execution."""
        return Tensors(Tensor(self, row) for row in self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Return its totals, its source and when it was committed, as `ls --json` prints them."""
        return step_row(self)

    def __dir__(self) -> list[str]:
        return [*_FOR_USERS, *(name for name in super().__dir__() if name.startswith("__"))]

    def _repr_html_(self) -> str:
        return notebook.facts(str(self.key), {name: step_row(self)[name] for name in _SHOWN})


#: The attributes of a step that completion offers.
_FOR_USERS = (
    "commit",
    "export",
    "fingerprint",
    "has_tensors",
    "key",
    "rank",
    "status",
    "step",
    "tensors",
    "to_dict",
)
#: The fields of a step that a notebook shows.
_SHOWN = (
    "rank",
    "step",
    "status",
    "tensors",
    "files",
    "quarantined",
    "nan_count",
    "findings",
    "committed_at",
)


class Steps(TableList[Step]):
    """The steps that a choice selects: a list, which is also a table with the columns of `ls --json`."""

    columns = STEP_FIELDS
    shown = _SHOWN
    noun = "step"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield `Step.to_dict` of each step."""
        return (step.to_dict() for step in self)
