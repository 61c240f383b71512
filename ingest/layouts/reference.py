"""Reference dumps of other frameworks, as the vendor's comparison tool takes them.

    {op_name}.{output_index}.{timestamp}.npy      outputs of Caffe, TensorFlow, ONNX and others
    {op_name}.{output_index}.{timestamp}.pb       the same as DumpData, of a Caffe model before quantisation
    {op_name}.{output_index}.{timestamp}.quant    the same after quantisation

Characters other than letters, digits, `-` and `_` in names of operators are replaced; the timestamp has 16
digits. (CANN, accuracy comparison: "Dump File Naming Conventions".) The files of one run are in one
directory, which may be called `step8`.

Nothing tells the type of an operator: it is `Reference`. What is quantised has the graph `quantized`, so that
both halves of a pair have the same name otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ingest.layouts.base import Description, Layout, Place, ReadSmall, System, TensorFile
from ingest.layouts.pattern import parse
from workers.dump.formats.header import Container
from workers.dump.model import TensorName
from workers.model import SourceFile

#: The type of all operators of a reference dump.
REFERENCE = "Reference"
QUANTIZED = "quantized"
_FILE = r"{tensor:[A-Za-z0-9_-]+\.\d{1,9}\.\d{16}}.{kind:npy|pb|quant}"
_NAME = re.compile(r"(?P<op>[A-Za-z0-9_-]+)\.(?P<slot>\d{1,9})\.(?P<time>\d{16})\.(?P<kind>npy|pb|quant)")


class ReferenceDump(Layout):
    """The files that a reference of an Ascend dump consists of: of one process."""

    name = "reference"
    patterns = ()
    file_patterns = tuple(
        parse(f"{above}{_FILE}", of_files=True)
        for above in ("", r"{before:(?:.*[._-])?}step{sep:[._-]?}{step}/")
    )
    implied = {"step": "0"}  # noqa: RUF012  (a ClassVar in `Layout`)
    systems = (
        System(
            "references of other frameworks, in the vendor's comparison format",
            "conv1.0.1610000000000000.npy",
            "npy; DumpData as `.pb` and `.quant`",
        ),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Describe the files of one place; see `Layout.describe`. Reads none of them."""
        named = ((file.path, parse_reference_name(file.path.rpartition("/")[2])) for file in files)
        return Description({path: tensor for path, tensor in named if tensor is not None})


def parse_reference_name(file_name: str) -> TensorFile | None:
    """Parse the name of a file; return None if it has another form.

    >>> parse_reference_name("conv1.0.1610000000000000.npy").name.op_name
    'conv1'
    """
    match = _NAME.fullmatch(file_name)
    if match is None:
        return None
    name = TensorName(
        graph=QUANTIZED if match["kind"] == "quant" else "",
        op_type=REFERENCE,
        op_name=match["op"],
        io="output",
        slot=int(match["slot"]),
        timestamp=int(match["time"]),
    )
    return TensorFile(name, Container.NPY if match["kind"] == "npy" else Container.DUMP_DATA)
