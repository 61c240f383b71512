"""Statistics, histogram and marginals of one row, computed again from its stored payload."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from workers.arrays import device_format
from workers.arrays.dtypes import unpack
from workers.arrays.sketches.marginals import NO_MARGINALS, MarginalTable, running_marginals
from workers.arrays.statistics import RunningStatistics
from workers.store.step import StoredStep


class RecomputedStatistics:
    """The statistics of one row, computed from its payload; only if the stored ones were computed, too."""

    def __init__(
        self, step: StoredStep, row: int, *, with_histogram: bool = False, with_marginals: bool = False
    ) -> None:
        """Prepare for a row of a step."""
        self._step, self._row = step, row
        self._running: RunningStatistics | None = None
        if step.tables.label("statistics_from")[row] == "computed":
            self._element = step.element(row)
            self._left = math.prod(step.shape(row))
            self._device = step.device(row) if step.is_in_device_layout(row) else None
            self._payload: list[bytes] = []
            self._is_fortran = self._device is None and bool(step.tables.number("fortran_order")[row])
            summed = None
            if with_marginals:
                summed = running_marginals(self._element, step.shape(row), fortran_order=self._is_fortran)
            self._running = RunningStatistics(with_histogram=with_histogram, marginals=summed)

    def update(self, piece: bytes) -> None:
        """Add a piece of the payload."""
        if self._running is None:
            return
        if self._device is not None:
            self._payload.append(bytes(piece))
            return
        values = unpack(piece, self._element, self._left)
        self._left -= values.size
        self._running.update(values)

    def result(self) -> npt.NDArray[np.float64] | None:
        """Return the statistics, (len(FIELDS),); None if the stored ones were not computed."""
        self._take_device()
        return None if self._running is None else np.array(self._running.row())

    def histogram_rows(self) -> npt.NDArray[np.int64]:
        """Return the histogram, (bin, 3); empty without one. See `histogram.FIELDS`."""
        self._take_device()
        return np.zeros((0, 3), np.int64) if self._running is None else self._running.histogram_rows()

    def marginals(self) -> MarginalTable:
        """Return the marginals; none without any. Call it once."""
        self._take_device()
        return NO_MARGINALS if self._running is None else self._running.marginals()

    def _take_device(self) -> None:
        """Add a tensor in device layout, which is complete now."""
        if self._running is not None and self._device is not None and self._payload:
            payload = np.frombuffer(b"".join(self._payload), np.uint8)
            host = device_format.to_host(payload, self._device, self._step.shape(self._row), self._element)
            self._running.update(host.reshape(-1))
            self._payload.clear()
