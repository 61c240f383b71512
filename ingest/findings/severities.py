"""The severities of rules and incidents, as users choose among them, and answers that count them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, TypeAlias

from ingest.questions.question import Note, Option, RowList
from ingest.reader.text import counted
from workers.errors import UsageError
from workers.store.model import SEVERITIES

#: How many steps and rules are named about which nothing is known.
_REASONS = 10
Severity: TypeAlias = Annotated[
    str | None, Option("The mildest severity to list: info, warning or critical.", "SEVERITY")
]


def at_least(severity: str | None) -> tuple[str, ...]:
    """Return this severity and the worse ones; all for None.

    Raises:
        UsageError: it is not one.
    """
    if severity is None:
        return SEVERITIES
    if severity not in SEVERITIES:
        raise UsageError(f"{severity!r} is not a severity", hint=f"It is one of {', '.join(SEVERITIES)}.")
    return SEVERITIES[SEVERITIES.index(severity) :]


class BySeverity(RowList):
    """An answer whose headline says how much there is of each severity, and which tells what is not known."""

    __slots__ = ()

    not_evaluated: tuple[str, ...]
    """Steps and rules about which nothing is known, and why."""

    def totals_by_severity(self) -> Mapping[str, int]:
        """Return how much there is of each severity."""
        return Counter(row.severity for row in self.table().rows)

    @property
    def by_severity(self) -> dict[str, int]:
        """How much there is by severity, the worst first."""
        totals = self.totals_by_severity()
        return {severity: totals[severity] for severity in reversed(SEVERITIES) if totals.get(severity)}

    @property
    def headline(self) -> str:
        """How much there is, in all and by severity."""
        counts = ", ".join(f"{count} {severity}" for severity, count in self.by_severity.items())
        return f"{counted(sum(self.by_severity.values()), self.noun)}{': ' if counts else ''}{counts}"

    def unknown(self) -> Iterator[Note]:
        """Yield about which steps and rules nothing is known."""
        reasons = [reason for reason in self.not_evaluated if reason not in self.damaged]
        more = [f"and {len(reasons) - _REASONS} more"] if len(reasons) > _REASONS else []
        for reason in (*reasons[:_REASONS], *more):
            yield Note(reason, "not evaluated")
