"""MindSpore dumps, versions 1.3 to 2.10, and msProbe on top of them.

    rank_{r}/{net}/{graph}/{iteration}/
        {op_type}.{op_name}.{task}.{stream}.{time}.{io}.{slot}.{format}[.{dtype}].npy
        {op_type}.{op_name}.{task}.{stream}.{time}                     (asynchronous, up to 2.2)
    rank_{r}/{net}/{graph}/constants/...
    rank_{r}/{graphs,execution_order,.dump_metadata}/...

All graphs of one rank and iteration make one step. Files of a rank outside of its iterations are its run
files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from ingest.layouts.base import Description, Layout, Place, ReadSmall, System, TensorFile
from ingest.layouts.cann import describe_files
from ingest.layouts.iterations import parse_iterations
from ingest.layouts.long_names import LongNames
from ingest.layouts.mindspore_names import parse_tensor_name
from ingest.layouts.pattern import parse
from workers.dump.model import TensorName
from workers.model import SourceFile

#: The directory of a net. msProbe's native dumps have a time there (14 digits).
_NET = r"{net:(?!(?:_|\.dump_metadata|graphs|execution_order|debug_files|[0-9]{14})$).+}"


class MindSpore(Layout):
    """The trees of MindSpore's own dumps."""

    name = "mindspore"
    patterns = (
        parse(f"rank_{{rank}}!/{_NET}/{{graph}}/{{step}}"),
        parse(f"rank_{{rank}}!/{_NET}/{{graph}}/constants"),
        parse("rank_{rank}!/debug_files/{step}"),
    )
    systems = (
        System(
            "MindSpore 1.3 to 2.10, synchronous (CPU, GPU, Ascend O0 and O1)",
            "rank_1/Net/0/8",
            "npy, `statistic.csv`, `mapping.csv`, overflow records, kernel arguments",
        ),
        System(
            "MindSpore 1.3 to 2.2, asynchronous, `npy`",
            "rank_1/Net/0/8",
            "npy, `statistic.csv`, `mapping.csv`",
        ),
        System("MindSpore 1.3 to 2.2, asynchronous, `bin`", "rank_1/Net/0/8", "DumpData, `mapping.csv`"),
        System("MindSpore 2.0 to 2.2, overflow detection", "rank_1/debug_files/8", "overflow records"),
        System("MindSpore, constants of a graph", "rank_1/Net/0/constants", "npy"),
        System(
            "msProbe level L2 of MindSpore in static graphs",
            "rank_1/Net/0/8",
            "as MindSpore, which writes it",
        ),
    )
    # 1.3 and 1.4 write here first.
    transient = (parse("rank_{rank}/_/{graph}/{step}"),)
    near_miss = re.compile(r"rank_.*|rank[-+]?\d+", re.DOTALL)
    configuration = "/.dump_metadata/data_dump.json"

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:
        """Describe the files of one iteration; see `Layout.describe`."""
        net, graph = place.fields.get("net", ""), place.fields.get("graph", "")
        npy = [file.path for file in files if file.path.endswith(".npy")]
        others = [file for file in files if not file.path.endswith(".npy")]
        described = describe_files(others, read, net=net, graph=graph)
        names = LongNames(read)
        named = {path: _named(path, net, graph, names) for path in npy}
        return replace(described, named={**described.named, **named})

    def expected_steps(self, configuration: bytes) -> frozenset[int]:
        """Return the iterations that a configuration lists; see `Layout.expected_steps`."""
        try:
            settings = json.loads(configuration)["common_dump_settings"]
            return parse_iterations(settings["iteration"]) or frozenset()
        except (ValueError, KeyError, TypeError, RecursionError):
            return frozenset()  # optional, and no version guarantees it


def _named(path: str, net: str, graph: str, names: LongNames) -> TensorFile:
    file_name = path.rpartition("/")[2]
    name = parse_tensor_name(file_name, net=net, graph=graph)
    if name is not None:
        return TensorFile(name)
    stem = file_name.removesuffix(".npy")
    if not stem.isdecimal():
        return TensorFile(None)
    # A name that is too long is replaced by a number; without its row, the number is its name.
    real, settled = names.real_name(path)
    if real:
        return TensorFile(parse_tensor_name(real, net=net, graph=graph), settled=settled)
    return TensorFile(TensorName(net=net, graph=graph, op_name=stem), settled=False)
