"""The files of one step, in the layout of `ingest.layouts.recorder`. Used by the writing thread only."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from ingest.layouts.recorder import (
    STACK_FILE,
    STATISTICS_FILE,
    STEP_FILE,
    RecordedPlacement,
    RecordedStep,
    RecordedTensor,
)
from ingest.recording.snapshots import TensorSnapshot, by_name
from workers.arrays.statistics import FIELDS
from workers.dump.formats.safetensors_header import CODES, TensorInFile, encode_header
from workers.dump.model import TensorName
from workers.model import MIB

#: Elements that become one file, unless the queue is smaller.
MAX_FILE_NBYTES = 64 * MIB
#: Lines that are written together.
_MAX_LINES = 512


class StepFiles:
    """Writes one step. Holds lines and elements back until a file of them is worth it.

    Args:
        directory: of the step; it must not exist.
        max_file_nbytes: the bytes of elements at which a file is full.

    Raises:
        OSError: the directory exists, or cannot be made.
    """

    def __init__(self, directory: Path, max_file_nbytes: int) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._max_file_nbytes = max_file_nbytes
        self._lines: list[RecordedTensor] = []
        self._elements: list[tuple[str, TensorSnapshot]] = []
        self._nbytes = 0
        self._files = 0
        self.tensors = 0

    def add(
        self, name: TensorName, snapshot: TensorSnapshot, dtensor: RecordedPlacement | None = None
    ) -> bool:
        """Add a tensor; return whether everything that was added so far is on disk now."""
        file = key = ""
        if snapshot.has_elements and snapshot.dtype in CODES:
            # The file of safetensors that `flush` writes next.
            file = f"recorded-tensors-{self._files:05d}.safetensors"
            key = f"{name.sequence}.{name.op_type}.{name.op_name}.{name.io}.{name.slot}"
            self._elements.append((key, snapshot))
            self._nbytes += snapshot.nbytes
        elif snapshot.has_elements:
            file = f"recorded-tensor-{name.sequence}.raw"
        self._lines.append(_line(name, snapshot, file, key, dtensor))
        self.tensors += 1
        if file and not key:
            self._write_lines()
            (self._directory / file).write_bytes(snapshot.elements().view(np.uint8).data)
        if self._nbytes >= self._max_file_nbytes or len(self._lines) >= _MAX_LINES:
            self.flush()
        return not self._elements and not self._lines

    def flush(self) -> None:
        """Write everything that was added: lines first."""
        self._write_lines()
        if self._elements:
            path = self._directory / f"recorded-tensors-{self._files:05d}.safetensors"
            _write_safetensors(path, self._elements)
            self._files += 1
            self._elements, self._nbytes = [], 0

    def _write_lines(self) -> None:
        if self._lines:
            with (self._directory / STATISTICS_FILE).open("ab") as file:
                file.write(msgspec.json.Encoder().encode_lines(self._lines))
            self._lines = []

    def finish(self, stacks: bytes, mark: RecordedStep) -> None:
        """Write what is left, and at last the file that says that the step is finished."""
        self.flush()
        (self._directory / STACK_FILE).write_bytes(stacks)
        written = self._directory / f".{STEP_FILE}"
        written.write_bytes(msgspec.json.encode(mark))
        written.replace(self._directory / STEP_FILE)


def _line(
    name: TensorName, snapshot: TensorSnapshot, file: str, key: str, dtensor: RecordedPlacement | None
) -> RecordedTensor:
    return RecordedTensor(
        op_type=name.op_type,
        op_name=name.op_name,
        io=name.io,
        slot=name.slot,
        graph=name.graph,
        sequence=name.sequence,
        dtype=snapshot.dtype,
        shape=snapshot.shape,
        statistics=by_name(snapshot.statistics(), FIELDS),
        file=file,
        key=key,
        dtensor=dtensor,
    )


def _write_safetensors(path: Path, tensors: list[tuple[str, TensorSnapshot]]) -> None:
    # The largest elements first, so that all are aligned.
    arrays = [(key, snapshot, snapshot.elements()) for key, snapshot in tensors]
    arrays.sort(key=lambda item: -item[2].itemsize)
    header = encode_header(
        TensorInFile(key, snapshot.dtype, snapshot.shape, array.nbytes) for key, snapshot, array in arrays
    )
    with path.open("xb") as file:
        file.write(header)
        for _, _, array in arrays:
            file.write(array.view(np.uint8).data)


def existing_steps(directory: Path) -> set[int]:
    """Return the steps that the directory of a rank has; empty if it does not exist."""
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return set()
    numbers = (name.removeprefix("step_") for name in names if name.startswith("step_"))
    return {int(number) for number in numbers if number.isascii() and number.isdecimal()}
