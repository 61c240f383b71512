"""What is remembered by step, and for how long."""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from typing import Any

from workers.model import StepKey


def keep_only(present: Collection[StepKey], *caches: MutableMapping[StepKey, Any]) -> None:
    """Drop what is remembered of steps that are not `present` any more."""
    for cache in caches:
        for key in [key for key in cache if key not in present]:
            del cache[key]
