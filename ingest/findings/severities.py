"""The severities of rules and incidents, as users choose among them."""

from __future__ import annotations

from workers.errors import UsageError
from workers.store.model import SEVERITIES


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
