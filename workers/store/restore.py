"""Rebuilding source files: the part of its file that each row of the index has, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from workers.arrays import device_format
from workers.arrays.digest import new_digest
from workers.arrays.strided import StridedView
from workers.errors import DamagedStore
from workers.store.attributes import record_of
from workers.store.step import StoredStep


def begin_of(step: StoredStep, row: int) -> int:
    """Return where the part of a row begins in its source file, in bytes."""
    table = step.tables
    return int(table.number("source_offset")[row]) - len(_bytes(table.label("lead")[row]))


def nbytes_of(step: StoredStep, row: int) -> int:
    """Return how many bytes the part of a row has in its source file."""
    table = step.tables
    envelope_nbytes = len(_bytes(table.label("lead")[row])) + len(_bytes(table.label("tail")[row]))
    return int(table.number("source_nbytes")[row]) + envelope_nbytes


def is_view(step: StoredStep, row: int) -> bool:
    """Return whether a row has no part of its file: its elements are picked from the parts of other rows."""
    table = step.tables
    return not table.number("source_nbytes")[row] and bool(table.number("nbytes")[row])


def view_of(step: StoredStep, row: int) -> StridedView | None:
    """Return how the elements of a view are picked from its file; None if the index does not say."""
    try:
        record = record_of(step.tables, row)["view"]
        strides = record["strides"]
        return StridedView(
            None if strides is None else tuple(int(stride) for stride in strides),
            conjugate=bool(record["conjugate"]),
            negative=bool(record["negative"]),
            inline=bytes.fromhex(record["inline"]),
            deflated=int(record["deflated"]),
            skipped=int(record["skipped"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def part(step: StoredStep, row: int, payload: Iterable[bytes]) -> Iterator[bytes | memoryview]:
    """Yield the part of a source file that a row has: bytes before the payload, the payload, bytes after it.

    The digest of the payload is compared when its last piece has been read.

    Args:
        step: the step.
        row: a row of its index.
        payload: what is stored for it, in pieces, as `StoredStep.payloads` gives it.

    Raises:
        DamagedStore: the payload is missing or damaged, or does not match its digest.
    """
    table = step.tables
    yield _bytes(table.label("lead")[row])
    yield from _as_in_source(step, row, _checked(payload, table.digest[row].tobytes()))
    yield _bytes(table.label("tail")[row])


def _bytes(text: object) -> bytes:
    return str(text).encode("latin-1")


def _checked(pieces: Iterable[bytes], digest: bytes) -> Iterator[bytes]:
    """Pass the pieces on; at their end, compare their digest."""
    running = new_digest()
    for piece in pieces:
        running.update(piece)
        yield piece
    if running.digest() != digest:
        raise DamagedStore("the digest does not match")


def _as_in_source(step: StoredStep, row: int, pieces: Iterator[bytes]) -> Iterator[bytes | memoryview]:
    """Yield the payload as the file had it: in device layout, if it was brought into host layout."""
    if is_view(step, row):
        for _ in pieces:
            pass  # to compare the digest
        return
    device = step.device(row)
    if device is None or step.is_in_device_layout(row):
        yield from pieces
        return
    stored = b"".join(pieces)
    host = np.frombuffer(stored, step.element(row).to_numpy()).reshape(step.shape(row))
    yield np.ascontiguousarray(device_format.to_device(host, device)).reshape(-1).view(np.uint8).data
