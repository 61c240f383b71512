"""Bytes around payloads, packed: what is the same in many files is packed once.

The files of a dump are written by the same program, so what stands around their payloads differs in names,
checksums and little else. Bytes of the same length are compared column by column, and of the columns in which
they differ each has its own: a tenth of all of them. Pickling and compressing the rest took longer than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Around: TypeAlias = tuple[bytes, bytes]
"""What stands before a payload, and behind it."""

#: How many are compared at once: about as many as fit into the cache of a core.
_ROWS = 256
#: Fewer than these are not compared.
_FEW = 8


class _Alike(NamedTuple):
    """Some of the same length."""

    places: npt.NDArray[np.int32]
    """Their places in the sequence, shape (n,)."""
    lead_nbytes: int
    first: bytes
    """Lead and tail of the first one, joined."""
    columns: npt.NDArray[np.int32]
    """Where others differ from it, shape (k,)."""
    differing: npt.NDArray[np.uint8]
    """What stands there, shape (n, k)."""

    @classmethod
    def of(cls, places: Sequence[int], around: Sequence[Around]) -> _Alike:
        first = b"".join(around[0])
        joined = np.frombuffer(b"".join(chain.from_iterable(around)), np.uint8).reshape(len(around), -1)
        columns = np.flatnonzero(np.bitwise_or.reduce(joined ^ joined[0], axis=0)).astype(np.int32)
        return cls(np.array(places, np.int32), len(around[0][0]), first, columns, joined[:, columns])

    def rows(self) -> list[Around]:
        """Return lead and tail of each."""
        joined = np.empty((len(self.places), len(self.first)), np.uint8)
        joined[:] = np.frombuffer(self.first, np.uint8)
        joined[:, self.columns] = self.differing
        content, lead, nbytes = joined.tobytes(), self.lead_nbytes, len(self.first)
        return [
            (content[at : at + lead], content[at + lead : at + nbytes])
            for at in range(0, len(content), nbytes)
        ]


class PackedAround(NamedTuple):
    """What stands around the payloads of a step, or of a part of it."""

    count: int
    alike: list[_Alike]
    others: dict[int, Around]
    """By place: what is not compared."""

    @classmethod
    def of(cls, around: Sequence[Around]) -> PackedAround:
        """Pack the bytes around payloads."""
        by_length: dict[tuple[int, int], list[int]] = {}
        for place, (lead, tail) in enumerate(around):
            by_length.setdefault((len(lead), len(tail)), []).append(place)
        alike, others = [], {}
        for lengths, places in by_length.items():
            for begin in range(0, len(places), _ROWS):
                some = places[begin : begin + _ROWS]
                if len(some) < _FEW or lengths == (0, 0):
                    others.update((place, around[place]) for place in some)
                else:
                    alike.append(_Alike.of(some, [around[place] for place in some]))
        return cls(len(around), alike, others)

    def unpack(self) -> list[Around]:
        """Return what was packed."""
        around: list[Around] = [(b"", b"")] * self.count
        for place, alone in self.others.items():
            around[place] = alone
        for group in self.alike:
            for place, row in zip(group.places.tolist(), group.rows(), strict=True):
                around[place] = row
        return around
