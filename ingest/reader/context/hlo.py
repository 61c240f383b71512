"""Graphs of XLA, from the text that it writes before it optimises them (`XLA_FLAGS=--xla_dump_to=DIRECTORY`).

    HloModule jit_f, entry_computation_layout={...}

    FileNames
    1 "/srv/train.py"

    FunctionNames
    1 "f"

    FileLocations
    1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=12 end_column=52}

    StackFrames
    1 {file_location_id=1 parent_frame_id=1}

    ENTRY %main.9 (w.1: f32[4,4]) -> f32[4,4] {
      %w.1 = f32[4,4]{1,0} parameter(0), metadata={op_name="w"}
      %dot.2 = f32[4,4]{1,0} dot(%w.1, %w.1), lhs_contracting_dims={1}, metadata={op_name="jit(f)/dot" stack_frame_id=1}
      ROOT %log.1 = f32[4,4]{1,0} log(%dot.2), metadata={op_name="jit(f)/log" source_file="/srv/a.py" source_line=8}
    }

The number of a parent is one more than that of its frame: 1 is none. Older versions write file and line at the
instruction. Names of instructions are unique in a module; an operator is called `jit_f/log.1` here, and a dump may
call it `log.1`. What calls of computations and loops pass to parameters of computations is not followed.
"""  # noqa: E501  # lines of XLA

from __future__ import annotations

import re
from collections.abc import Iterable

from ingest.reader.context.files import Frame
from ingest.reader.context.ir import ArgumentReader, IrGraph, IrOp, IrSource, lines_of, passed_on

#: Text of a module, with its name, before optimisation: afterwards, instructions have other names.
HLO_FILE = r".*module_\d+\.(.+)\.before_optimizations\.txt"
_MODULE = re.compile(r"HloModule ([^\s,]+)")
_INSTRUCTION = re.compile(r"(?:ROOT )?%?([\w.-]+) = .*? ([\w-]+)\((.*)")
_INDEX = re.compile(r"\), index=(\d{1,6})")
_NAMED = re.compile(r'(\d{1,9}) "(.*)"')
_NUMBERED = re.compile(r"(\d{1,9}) \{(.*)\}")
_FIELD = re.compile(r"(\w+)=(\d{1,9})")
_METADATA = re.compile(r'metadata=\{.*?op_name="([^"]*)"(.*)\}')
_SOURCE = re.compile(r'source_file="([^"]*)"\s*source_line=(\d{1,9})')
_MAX_FRAMES = 200


def parse_hlo(pieces: Iterable[bytes | bytearray]) -> IrGraph:
    """Parse a module. The time is proportional to its size; any content is accepted.

    Args:
        pieces: the content, cut at any bytes.
    """
    parser = _HloParser()
    for line in lines_of(pieces):
        parser.take(line.decode("utf-8", "replace").strip())
    if not parser.module:
        parser.graph.problems.append("is not the text of an HLO module")
    return parser.graph


class _HloParser:
    """Takes lines; knows the tables above the computations, and the computation that is being read."""

    def __init__(self) -> None:
        self.graph = IrGraph()
        self.module = ""
        self._table = ""
        self._names: dict[tuple[str, int], str] = {}
        self._numbers: dict[tuple[str, int], dict[str, int]] = {}
        self._is_entry = False
        self._sources: dict[str, IrSource | None] = {}
        """What reading an instruction of the computation means; None if that is not known."""

    def take(self, line: str) -> None:
        """Take a line, without the blanks around it."""
        if match := _MODULE.match(line):
            self.module = match[1]
        elif line in {"FileNames", "FunctionNames", "FileLocations", "StackFrames"}:
            self._table = line
        elif line.endswith("{"):
            self._is_entry, self._sources = line.startswith("ENTRY "), {}
        elif match := _INSTRUCTION.match(line):
            self._sources[match[1]] = self._add(match[1], match[2], match[3])
        elif match := _NAMED.fullmatch(line):
            self._names[self._table, int(match[1])] = match[2]
        elif match := _NUMBERED.fullmatch(line):
            fields = {name: int(number) for name, number in _FIELD.findall(match[2])}
            self._numbers[self._table, int(match[1])] = fields

    def _add(self, name: str, op_type: str, rest: str) -> IrSource | None:
        """Add an instruction, unless it passes something on; return what reading it means."""
        metadata = _METADATA.search(rest)
        if op_type == "parameter":
            return IrSource(metadata[1] if metadata else name, -1) if self._is_entry else None
        reader = ArgumentReader()
        reader.take(rest)
        inputs = tuple(self._sources.get(each.rpartition(" ")[2].lstrip("%")) for each in reader.arguments)
        if op_type == "get-tuple-element":
            index = _INDEX.search(rest)
            return passed_on("TupleGetItem", inputs, int(index[1]) if index else None)
        full_name = f"{self.module}/{name}"
        stack = self._stack(metadata[2]) if metadata else ()
        self.graph.ops.setdefault(full_name, IrOp(full_name, stack, "op", None, inputs))
        return IrSource(full_name, 0)

    def _stack(self, metadata: str) -> tuple[Frame, ...]:
        """Return the lines of an instruction, from outermost to innermost."""
        if match := _SOURCE.search(metadata):
            return (Frame(match[1], int(match[2]), ""),)
        frames: list[Frame] = []
        number = dict(_FIELD.findall(metadata)).get("stack_frame_id", "0")
        frame = self._numbers.get(("StackFrames", int(number)))
        while frame and len(frames) < _MAX_FRAMES:
            place = self._numbers.get(("FileLocations", frame.get("file_location_id", 0)), {})
            file = self._names.get(("FileNames", place.get("file_name_id", 0)), "")
            function = self._names.get(("FunctionNames", place.get("function_name_id", 0)), "")
            frames.append(Frame(file, place.get("line", 0), "", function))
            frame = self._numbers.get(("StackFrames", frame.get("parent_frame_id", 0) - 1))
        return tuple(reversed(frames))
