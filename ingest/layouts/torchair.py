r"""TorchAir's dumps of FX graphs and of captured graphs.

    [msprobe_fx_dump/]worldsize{n}_global_rank{rank}/{graph}/{step}/
        {node}-{target}.{INPUT|OUTPUT}.{i}[.{j}].{YYYYMMDDHHMMSSffffff}.npy
    [msprobe_fx_dump/]data_dump/{step + 1}/{graph}/      older releases, without a rank
    worldsize{n}_global_rank{rank}/
        {node}_device_{device}_{count}.pt                aclgraph and npugraph_ex

`target` is what the node calls, such as `aten.add.Tensor`. It contains dots, and for a Python function blanks
and brackets, so names are parsed from the right. `j` is the place in an argument that is a list; then it
becomes the slot, and `i` a part of the io: `input.0`. The time is UTC, taken before the call, and the same
for all files of one call. A graph without a name is called `gm_{time}_dump`. A directory named by a time of
14 digits in its place is a dump of the graph engine (`ingest.layouts.cann`).

Arguments that are not tensors are saved as well: numbers as arrays without axes, `None` as a pickled object,
which is not read. (TorchAir, `npu_fx_compiler` and `fx_dumper`.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from ingest.layouts.base import Description, Layout, Place, ReadSmall, System, TensorFile
from ingest.layouts.pattern import parse
from workers.dump.formats.header import Container
from workers.dump.model import TensorName
from workers.model import SourceFile

_RANK = r"worldsize{world_size:\d{1,9}}_global_rank{rank}"
_GRAPH = r"{graph:(?!\d{14}\Z).+}"

_CALL_NAME = re.compile(
    r"(?P<node>[^-]+)-(?P<target>.+)\.(?P<io>INPUT|OUTPUT)\.(?P<i>\d{1,9})(?:\.(?P<j>\d{1,9}))?\.(?P<time>\d{20})",
    re.DOTALL,
)
_NODE_NAME = re.compile(r"(?P<node>.+)_device_(?P<device>\d{1,9})_(?P<count>\d{1,18})", re.DOTALL)
_NUMBERED = re.compile(r"_\d+\Z")


class TorchAir(Layout):
    """The tree of TorchAir's dumps, except for those of the graph engine."""

    name = "torchair"
    patterns = (
        *(
            parse(f"{prefix}{tree}")
            for prefix in ("", "msprobe_fx_dump/")
            for tree in (
                f"{_RANK}!/{_GRAPH}/{{step}}",
                r"data_dump/{previous_step}/{graph:gm_\d{8,20}_dump}!",
            )
        ),
        parse(f"{_RANK}!"),
    )
    systems = (
        System("TorchAir, eager", "worldsize4_global_rank1/graph_1/8", "npy"),
        System(
            "TorchAir, eager, older",
            "data_dump/9/gm_20260101000000_dump",
            "npy; the directory is the step + 1",
        ),
        System("msProbe around TorchAir, eager", "msprobe_fx_dump/worldsize4_global_rank1/graph_1/8", "npy"),
        System("TorchAir, aclgraph and npugraph_ex", "worldsize4_global_rank1", "pt, of no step"),
    )

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Describe the files of one place; see `Layout.describe`. Reads none of them."""
        graph = place.fields.get("graph", "")
        named = {}
        for file in files:
            directory, _, file_name = file.path.rpartition("/")
            if graph and file_name.endswith(".npy"):
                name = parse_call_name(file_name, graph=graph)
                named[file.path] = TensorFile(name, Container.NPY, any_argument=True)
            elif not graph and directory == place.path and file_name.endswith(".pt"):
                named[file.path] = TensorFile(parse_node_name(file_name), Container.PT)
        return Description(named)


def parse_call_name(file_name: str, *, graph: str = "") -> TensorName | None:
    """Parse the name of an npy file; return None if it is not TorchAir's.

    >>> parse_call_name("add_1-aten.add.Tensor.INPUT.0.20240801120000123456.npy").op_type
    'aten.add.Tensor'
    """
    match = _CALL_NAME.fullmatch(file_name.removesuffix(".npy"))
    if match is None:
        return None
    io, i, j = match["io"].lower(), int(match["i"]), match["j"]
    return TensorName(
        graph=graph,
        op_type=match["target"],
        op_name=match["node"],
        io=io if j is None else f"{io}.{i}",
        slot=i if j is None else int(j),
        timestamp=_microseconds(match["time"]),
    )


def parse_node_name(file_name: str) -> TensorName | None:
    """Parse the name of a `.pt` file; return None if it is not TorchAir's.

    >>> parse_node_name("mm_1_device_0_12.pt").op_name
    'mm_1'
    """
    match = _NODE_NAME.fullmatch(file_name.removesuffix(".pt"))
    if match is None:
        return None
    # FX numbers the nodes that call the same target.
    op_type = _NUMBERED.sub("", match["node"]) or match["node"]
    return TensorName(op_type=op_type, op_name=match["node"], io="output", sequence=int(match["count"]))


def _microseconds(time: str) -> int:
    """Return microseconds since the epoch; -1 for an invalid time."""
    try:
        date = datetime.strptime(time[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return -1
    return int(date.timestamp()) * 1_000_000 + int(time[14:])
