"""The graphs that MindSpore writes next to its tensors, as text (`.ir`) and as protobuf (`.pb`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ingest.reader.context.ir import IrGraph, parse_ir
from ingest.reader.context.non_tensor_files import MAX_WHOLE_NBYTES, NonTensorFile, NonTensorFiles, nearest
from ingest.reader.context.pb import parse_pb

_TEXT, _PROTO = ".ir", ".pb"
_FILE = re.compile(r".*\.ir|.*trace_code_graph_\d+\.pb")
_NUMBER = re.compile(r".*graph_(\d+)\.(?:ir|pb)")


@dataclass(eq=False)
class GraphFiles:
    """The graphs of one rank. Each file is parsed when it is first needed, and kept.

    MindSpore writes each graph twice. The text counts; where it is missing, damaged, or cut before its first
    operator, the `.pb` file of the same name stands for it.
    """

    files: NonTensorFiles
    _parsed: dict[str, IrGraph] = field(default_factory=dict)

    def of(self, graph: str, source: str) -> list[NonTensorFile]:
        """Return the file of a graph that is nearest to the path `source`; with graph "", those of all."""
        files = self._one_of_each()
        if not graph:
            return files
        file = nearest((file for file in files if _number(file) == graph), source)
        return [file] if file else []

    def parsed(self, file: NonTensorFile) -> IrGraph:
        """Return the content of one of these files; an empty graph if it cannot be read."""
        if file.source not in self._parsed:
            self._parsed[file.source] = self._parse(file)
        return self._parsed[file.source]

    def _parse(self, file: NonTensorFile) -> IrGraph:
        is_text = file.name.endswith(_TEXT)
        graph = self._content(file)
        if is_text and not graph.ops:
            twin = file.source.removesuffix(_TEXT) + _PROTO
            other = next((other for other in self.files.of_run(_FILE) if other.source == twin), None)
            return graph if other is None else self._content(other)
        return graph

    def _content(self, file: NonTensorFile) -> IrGraph:
        if file.nbytes > MAX_WHOLE_NBYTES and file.name.endswith(_PROTO):
            return IrGraph(problems=[])
        parsed = self.files.parse(file, parse_ir if file.name.endswith(_TEXT) else parse_pb) or IrGraph()
        self.files.add_problems(file, parsed.problems)
        return parsed

    def _one_of_each(self) -> list[NonTensorFile]:
        files = self.files.of_run(_FILE)
        texts = {file.source.removesuffix(_TEXT) for file in files if file.name.endswith(_TEXT)}
        return [
            file
            for file in files
            if file.name.endswith(_TEXT) or file.source.removesuffix(_PROTO) not in texts
        ]


def _number(file: NonTensorFile) -> str:
    match = _NUMBER.fullmatch(file.name)
    return match[1] if match else ""
