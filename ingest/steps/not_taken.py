"""The error for files that are in the dump and in no store, and about which a person has to decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from workers.errors import UsageError
from workers.model import StepKey

#: How many files are named.
_NAMED = 20
_HINT = (
    "If it is another dump of the step, `dump-ingest ingest --replace` takes it and hides the commit before. "
    "If these files came late to the first dump, copy them away: only the dump has them."
)


class FilesNotTaken(UsageError):
    """Files of a step are fresh, and others, which its commit has, are gone: to take it could lose those."""

    hint = _HINT

    def __init__(self, message: str, *, hint: str | None = None, files: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.files = tuple(files)
        """Those that no commit has, relative to the dump."""

    @classmethod
    def of(cls, key: StepKey, files: Sequence[str], gone: int) -> Self:
        """Return the error for a step.

        Args:
            key: the step.
            files: those that its commit does not have.
            gone: how many files of its commit the dump does not have any more.
        """
        named = ", ".join(files[:_NAMED])
        more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
        return cls(
            f"{key}: {len(files)} {'file is' if len(files) == 1 else 'files are'} in the dump and not in the "
            f"store, and its commit stays, because {gone} of its files are gone from the dump. Not stored: "
            f"{named}{more}",
            files=files,
        )
