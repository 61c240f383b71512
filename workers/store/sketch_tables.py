"""The tables of a generation that hold sketches: what is kept of the values of tensors besides statistics."""

from __future__ import annotations

from collections.abc import Container

from workers.store import block_digests, histograms

TABLES = (histograms.TABLE, block_digests.TABLE)
PATHS = frozenset(table.path for table in TABLES)


def has_sketches(nodes: Container[str]) -> bool:
    """Return whether a generation with these nodes has sketches."""
    return any(path in nodes for path in PATHS)
