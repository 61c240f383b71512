"""What our own recorders for PyTorch and JAX write; see `ingest.recording`.

    recorded/rank_{rank}[.{axis}_rank_{place}_of_{size}]/step_{step}/
        recorded-statistics.jsonl          a line for each tensor, in order of execution
        recorded-tensors-{n}.safetensors   elements, if they are recorded
        recorded-tensor-{n}.raw            elements of a type that safetensors lacks
        stack.json                         who called each module, in msProbe's form
        recorded-step.json                 the last file: how the step ended, and what was left out

A line is written before the elements of its tensor, so that a process that dies leaves statistics of whatever
it had recorded. Without `recorded-step.json`, the step is still being recorded, or its process died.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from ingest.layouts.base import (
    Description,
    Layout,
    NameMember,
    Place,
    Problem,
    ReadSmall,
    System,
    TensorFile,
    parse,
)
from workers.arrays.dtypes import from_name
from workers.arrays.histogram import NO_BINS
from workers.arrays.statistics import FIELDS, Statistics
from workers.dump.formats.header import MAX_NDIM, Container
from workers.dump.model import ReportedStatistics, TensorName
from workers.model import SourceFile

DIRECTORY = "recorded"
STATISTICS_FILE = "recorded-statistics.jsonl"
STEP_FILE = "recorded-step.json"
STACK_FILE = "stack.json"
#: Numbers are written in full.
_DIGITS = 17
_MAX_NUMBER = 1 << 62
#: A number in a line that has to fit into 64 bits.
_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=-_MAX_NUMBER, le=_MAX_NUMBER)]


class RecordedPlacement(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How a DTensor lies on its mesh, in the terms of `ingest.reader.unsharded`."""

    placements: tuple[str, ...]
    """By dimension of the mesh: `Shard(0)`, `Replicate()`, `Partial(sum)`, `_StridedShard(0)`."""
    global_shape: tuple[int, ...]
    mesh_shape: tuple[int, ...]
    mesh_dim_names: tuple[str, ...] = ()
    """Empty for a mesh without names."""
    mesh_coordinate: tuple[int, ...] = ()
    """Where this rank is on the mesh; empty if it is not on it."""


class RecordedTensor(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line of `recorded-statistics.jsonl`."""

    op_type: str
    op_name: str
    io: str
    slot: int
    sequence: int
    """Its place in the order of execution of its rank and step."""
    dtype: str
    """The element type, by its name in `workers.arrays.dtypes`."""
    shape: tuple[int, ...]
    graph: str = ""
    """`recompute` for what runs again for the backward pass; else ""."""
    statistics: dict[str, float | None] = msgspec.field(default_factory=dict)
    """By the names of `workers.arrays.statistics.FIELDS`; None or absent if unknown."""
    histogram: list[tuple[_Number, _Number, _Number]] = []
    """The bins that hold elements, as in `workers.arrays.histogram.FIELDS`; empty if it was not counted."""
    file: str = ""
    """The name of the file with its elements; "" for statistics only."""
    key: str = ""
    """Its name in a file of safetensors."""
    dtensor: RecordedPlacement | None = None
    """None if it is not the local part of a DTensor."""

    @property
    def attributes(self) -> str:
        """What the line says of the tensor besides, as JSON; "" for nothing."""
        return "" if self.dtensor is None else msgspec.json.encode(self.dtensor).decode()

    @property
    def bins(self) -> npt.NDArray[np.int64]:
        """The histogram, (bin, 3)."""
        return np.array(self.histogram, np.int64) if self.histogram else NO_BINS

    @property
    def name(self) -> TensorName:
        """What the line says about the tensor's place."""
        return TensorName(
            graph=self.graph,
            op_type=self.op_type,
            op_name=self.op_name,
            io=self.io,
            slot=self.slot,
            sequence=self.sequence,
        )


class RecordedStep(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The content of `recorded-step.json`."""

    tensors: int
    """How many lines were written."""
    ended: str = ""
    """The exception that ended the step before its end; "" if it is whole."""
    left_out: int = 0
    """How many tensors have no elements, or no line, because the ring or the queue was full."""
    problems: tuple[str, ...] = ()
    not_looked_at: int = 0
    """How many modules were left out to keep within `overhead`: each has a line without statistics."""
    overhead: float | None = None
    """What the recorder has cost so far, as a share of the steps; None if nothing limits it."""
    incident: str = ""
    """For which trigger a black box saved the elements of this step, or was to save them; "" for none."""
    not_saved: str = ""
    """Why it did not save them; "" if it did, or if nothing triggered."""


def _describe_recorder(place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
    """Describe the files of one place; see `Layout.describe`. Reads the lines.

    What the last file says is not a problem of the step: a step that an exception ended, and one that
    lacks elements but has their statistics, answers questions as any other.
    """
    paths = {file.path for file in files}
    statistics_path, mark_path = f"{place.path}/{STATISTICS_FILE}", f"{place.path}/{STEP_FILE}"
    lines, problems = _lines(statistics_path, read) if statistics_path in paths else ((), [])
    by_file: dict[str, dict[str, RecordedTensor]] = {}
    reported = []
    for line in lines:
        path = f"{place.path}/{line.file}"
        if line.file and path in paths:
            by_file.setdefault(path, {})[line.key] = line
        else:
            reported.append(_reported(statistics_path, line))
    named = {path: file for path in paths if (file := _tensor_file(path, by_file.get(path, {})))}
    unfinished = "" if mark_path in paths else min(paths, default="")
    records = _incident(place, mark_path, read)
    return Description(named, reported, problems, unfinished, records=records)


#: The tree of our own recorder.
RECORDER = Layout(
    name="recorder",
    patterns=(
        parse(rf"{DIRECTORY}!/rank_{{rank}}{{place:(?:\.[a-z_]+_rank_[0-9]+_of_[0-9]+)*}}/step_{{step}}"),
    ),
    systems=(
        System(
            "`ingest.record` and `ingest.record_jax`, the recorders of this project for PyTorch and JAX",
            f"{DIRECTORY}/rank_1/step_8",
            f"safetensors, raw elements, `{STATISTICS_FILE}`, `{STACK_FILE}`, `{STEP_FILE}`",
        ),
    ),
    of_place=_describe_recorder,
)


def _incident(place: Place, mark_path: str, read: ReadSmall) -> dict[str, str]:
    """Return the record of the last file if an incident of a black box began in this step of this rank."""
    try:
        incident = msgspec.json.decode(read(mark_path) or b"", type=RecordedStep).incident
    except msgspec.DecodeError:
        return {}
    is_here = incident.endswith(f" (rank {place.fields['rank']}, step {place.fields['step']})")
    return {mark_path: json.dumps({"incident": incident})} if is_here else {}


def _lines(path: str, read: ReadSmall) -> tuple[tuple[RecordedTensor, ...], list[Problem]]:
    data = read(path)
    if data is None:
        return (), [Problem(path, "has statistics, but cannot be read")]
    whole, _, rest = data.rpartition(b"\n")
    decoder = msgspec.json.Decoder(RecordedTensor)
    decoded = [_line(decoder, text) for text in whole.splitlines()]
    lines = tuple(line for line in decoded if line is not None)
    problems = []
    if bad := len(decoded) - len(lines):
        problems.append(Problem(path, f"{bad} of its lines are not those of the recorder, and are left out"))
    if rest:
        hint = "The process was still at work, or died."
        problems.append(Problem(path, "ends within a line, which is left out", hint))
    return lines, problems


def _line(decoder: msgspec.json.Decoder[RecordedTensor], text: bytes) -> RecordedTensor | None:
    try:
        line = decoder.decode(text)
        from_name(line.dtype)
    except (msgspec.DecodeError, ValueError):
        return None
    is_possible = (
        len(line.shape) <= MAX_NDIM
        and all(0 <= n < _MAX_NUMBER for n in line.shape)
        and -1 <= line.slot < 1 << 31
        and 0 <= line.sequence < _MAX_NUMBER
        and "/" not in line.file
    )
    return line if is_possible else None


def _reported(path: str, line: RecordedTensor) -> ReportedStatistics:
    told = line.statistics
    values = (math.nan if (value := told.get(name)) is None else value for name in FIELDS)
    return ReportedStatistics(
        path,
        line.name,
        line.dtype,
        line.shape,
        Statistics.from_row(tuple(values)),
        digits=_DIGITS,
        attributes=line.attributes,
        histogram=line.bins.tobytes(),
    )


def _tensor_file(path: str, lines: Mapping[str, RecordedTensor]) -> TensorFile | None:
    """Describe a file; return None if it holds no elements. A file without lines is named by its keys."""
    file_name = path.rpartition("/")[2]
    attributes = {key: line.attributes for key, line in lines.items() if line.dtensor is not None}
    if file_name.endswith(".safetensors"):
        name = TensorName(op_type="recorded", op_name=file_name.partition(".")[0], io="output", slot=0)
        return TensorFile(name, Container.SAFETENSORS, name_member=_by_key(lines), attributes=attributes)
    line = lines.get("")
    if line is None or not file_name.endswith(".raw"):
        return None
    return TensorFile(line.name, Container.RAW, dtype=line.dtype, shape=line.shape, attributes=attributes)


def _by_key(lines: Mapping[str, RecordedTensor]) -> NameMember:
    def name_member(name: TensorName, path: tuple[str, ...], number: int) -> TensorName:  # noqa: ARG001
        key = ".".join(path)
        return lines[key].name if key in lines else name._replace(op_name=key)

    return name_member
