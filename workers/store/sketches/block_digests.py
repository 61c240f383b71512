"""The digests of the blocks of large payloads: one table of a generation, `block_digests`.

    block_digests   (entry, field) int64: row, digest

The entries of a row are in the order of its blocks; a digest is the XXH3-64 of 64 KiB of its payload as it is
stored, as a signed integer. Payloads of a single block have no entries. Of equal payloads, one row has.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from workers.store.sketches.entry_table import EntryTable, is_of_rows, rows_of
from workers.store.tables import Tables

TABLE = EntryTable("block_digests", ("digest",))


def distinct(rows: Iterable[int], index: Tables) -> list[int]:
    """Return the rows, except rows whose payload is equal to the payload of an earlier row."""
    return list({index.digest[row].tobytes(): row for row in sorted(rows, reverse=True)}.values())


def without_copies(entries: npt.NDArray[np.int64], index: Tables) -> npt.NDArray[np.int64]:
    """Return the entries, except of payloads that are equal to the payload of an earlier row."""
    return entries[is_of_rows(entries, distinct(rows_of(entries), index))]


def by_digest(entries: npt.NDArray[np.int64], index: Tables) -> dict[bytes, npt.NDArray[np.int64]]:
    """Return the digests of the blocks of each payload, (block,), by the digest of the whole."""
    return {
        index.digest[row].tobytes(): of_row[:, 0]
        for row, of_row in TABLE.own(entries).items()
        if 0 <= row < len(index.digest)
    }
