"""The headers of all rows of a step. Most of them differ in their envelopes, if at all.

So the rest is packed once, what derives from it is computed once, and rows are put together when they are
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from workers.dump.formats.header import TensorHeader

_LEAD, _TAIL, _RECORD = (TensorHeader._fields.index(name) for name in ("lead", "tail", "record"))


class Headers(Sequence[TensorHeader | None]):
    """The header of each row, None for a row without one. Headers have no record here: that is of the row."""

    __slots__ = ("_alike", "_envelopes", "_place", "_which")

    def __init__(
        self,
        alike: Sequence[TensorHeader | None],
        which: npt.NDArray[np.int32],
        envelopes: Sequence[tuple[bytes, bytes]],
        place: npt.NDArray[np.int32],
    ) -> None:
        """Hold headers; see `of`.

        Args:
            alike: without lead, tail and record.
            which: for each distinct header, shape (distinct,), which one of `alike` it is.
            envelopes: lead and tail of each distinct header.
            place: for each row, shape (rows,), which of the distinct headers it has.
        """
        self._alike, self._which, self._envelopes, self._place = alike, which, envelopes, place

    @classmethod
    def of(cls, rows: Sequence[TensorHeader | None]) -> Self:
        """Return the headers of rows; the same object if they are already held so."""
        if isinstance(rows, cls):
            return rows
        places: dict[int, int] = {}
        distinct: list[TensorHeader | None] = []
        for header in rows:
            # By identity: files without an envelope of their own share one header.
            if places.setdefault(id(header), len(distinct)) == len(distinct):
                distinct.append(header)
        place = np.fromiter((places[id(header)] for header in rows), np.int32, len(rows))
        return cls(*_compared(distinct), place)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._alike, self._which, self._envelopes, self._place)

    def __len__(self) -> int:
        return len(self._place)

    def __iter__(self) -> Iterator[TensorHeader | None]:
        distinct = [
            alike and TensorHeader._make((*alike[:_LEAD], lead, tail, *alike[_TAIL + 1 :]))
            for alike, (lead, tail) in zip(self._of(self._alike, self._which), self._envelopes, strict=True)
        ]
        return iter(self._of(distinct, self._place))

    @overload
    def __getitem__(self, row: int) -> TensorHeader | None: ...
    @overload
    def __getitem__(self, row: slice) -> Headers: ...
    def __getitem__(self, row: int | slice) -> TensorHeader | Headers | None:
        if isinstance(row, slice):
            return Headers(self._alike, self._which, self._envelopes, self._place[row])
        place = self._place[row]
        alike: TensorHeader | None = self._alike[self._which[place]]
        lead, tail = self._envelopes[place]
        return alike and alike._replace(lead=lead, tail=tail)

    @property
    def alike(self) -> list[TensorHeader | None]:
        """The header of each row without lead, tail and record."""
        return self._of(self._of(self._alike, self._which), self._place)

    def column(self, derived: Callable[[TensorHeader | None], object]) -> npt.NDArray[Any]:
        """Return what derives from the header of each row without its lead, tail and record."""
        values = np.empty(len(self._alike), object)
        values[:] = [derived(header) for header in self._alike]
        return values[self._which][self._place]

    @property
    def leads(self) -> npt.NDArray[Any]:
        """The lead of each row, as latin-1 text."""
        return self._texts(0)

    @property
    def tails(self) -> npt.NDArray[Any]:
        """The tail of each row, as latin-1 text."""
        return self._texts(1)

    def _texts(self, side: int) -> npt.NDArray[Any]:
        values = np.empty(len(self._envelopes), object)
        values[:] = [envelope[side].decode("latin-1") for envelope in self._envelopes]
        return values[self._place]

    @staticmethod
    def _of(
        headers: Sequence[TensorHeader | None], numbers: npt.NDArray[np.int32]
    ) -> list[TensorHeader | None]:
        return [headers[number] for number in numbers.tolist()]


def _compared(
    distinct: Sequence[TensorHeader | None],
) -> tuple[list[TensorHeader | None], npt.NDArray[np.int32], list[tuple[bytes, bytes]]]:
    """Return the headers without lead, tail and record; which of them each is; and lead and tail of each."""
    alike: dict[tuple[Any, ...] | None, int] = {}
    envelopes, which = [], []
    last: tuple[Any, ...] | None = ()
    number = 0
    for header in distinct:
        if header is None:
            rest = None
            envelopes.append((b"", b""))
        else:
            rest = (*header[:_LEAD], *header[_TAIL + 1 : _RECORD], "", *header[_RECORD + 1 :])
            envelopes.append((header.lead, header.tail))
        # Comparing two that are made of the same objects is quick, and hashing them is not.
        if rest != last:
            number, last = alike.setdefault(rest, len(alike)), rest
        which.append(number)
    made = [
        None if rest is None else TensorHeader._make((*rest[:_LEAD], b"", b"", *rest[_LEAD:]))
        for rest in alike
    ]
    return made, np.array(which, np.int32), envelopes
