"""The answer of one check of `dump-ingest doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to one question."""

    check: str
    """The name of the check."""
    ok: bool
    detail: str
    hint: str = ""
    """What to do, if it failed or soon may."""
