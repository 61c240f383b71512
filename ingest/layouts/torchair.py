r"""Family D: TorchAir's dumps of FX graphs, and of captured graphs.

    [msprobe_fx_dump/]worldsize{n}_global_rank{rank}/{graph}/{step}/
        {node}-{target}.{INPUT|OUTPUT}.{i}[.{j}].{YYYYMMDDHHMMSSffffff}.npy
    [msprobe_fx_dump/]data_dump/{step + 1}/{graph}/      older releases, without a rank
    worldsize{n}_global_rank{rank}/
        {node}_device_{device}_{count}.pt                aclgraph and npugraph_ex

`target` is what the node calls, as `aten.add.Tensor`; it holds dots, and for a Python function blanks and
brackets, so names are parsed from the right. `j` is the place in an argument that is a list; here it is the
slot, and `i` a part of the io: `input.0`. The time is UTC, taken before the call, and the same for all files
of one call. A graph is called `gm_{time}_dump` if it was given no name. Where it has a time of 14 digits, it
is a dump of the graph engine (`ingest.layouts.cann`).

Arguments that are no tensors are saved as well: numbers as arrays without axes, `None` as a pickled object,
which is not read. (TorchAir, `npu_fx_compiler` and `fx_dumper`.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from ingest.layouts.base import Description, Place, ReadSmall, System, TensorFile
from ingest.layouts.pattern import Pattern, parse
from workers.dump.formats.header import Container
from workers.dump.model import TensorName
from workers.model import SourceFile

_RANK = r"worldsize{world_size:\d{1,9}}_global_rank{rank}"
_GRAPH = r"{graph:(?!\d{14}\Z).+}"
_OLD_STEP = r"{previous_step:\d{1,18}}"

_CALL_NAME = re.compile(
    r"(?P<node>[^-]+)-(?P<target>.+)\.(?P<io>INPUT|OUTPUT)\.(?P<i>\d{1,9})(?:\.(?P<j>\d{1,9}))?\.(?P<time>\d{20})",
    re.DOTALL,
)
_NODE_NAME = re.compile(r"(?P<node>.+)_device_(?P<device>\d{1,9})_(?P<count>\d{1,18})", re.DOTALL)
_NUMBERED = re.compile(r"_\d+\Z")


class TorchAir:
    """The tree of TorchAir's dumps, but for those of the graph engine."""

    name = "torchair"
    patterns: Sequence[Pattern] = (
        *(
            parse(f"{prefix}{tree}")
            for prefix in ("", "msprobe_fx_dump/")
            for tree in (
                f"{_RANK}!/{_GRAPH}/{{step}}",
                rf"data_dump/{_OLD_STEP}/{{graph:gm_\d{{8,20}}_dump}}!",
            )
        ),
        parse(f"{_RANK}!"),
    )
    systems: Sequence[System] = (
        System("TorchAir, eager", "worldsize4_global_rank1/graph_1/8", "npy"),
        System(
            "TorchAir, eager, older",
            "data_dump/9/gm_20260101000000_dump",
            "npy; the directory is the step + 1",
        ),
        System("msProbe around TorchAir, eager", "msprobe_fx_dump/worldsize4_global_rank1/graph_1/8", "npy"),
        System("TorchAir, aclgraph and npugraph_ex", "worldsize4_global_rank1", "pt, of no step"),
    )
    evidence = None
    transient: Sequence[Pattern] = ()

    def describe(self, place: Place, files: Sequence[SourceFile], read: ReadSmall) -> Description:  # noqa: ARG002
        """Tell what the files of one place are; see `Layout.describe`. Reads none."""
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
    """Return what the name of an npy file tells; None if it is not TorchAir's.

    >>> parse_call_name("add_1-aten.add.Tensor.INPUT.0.20240801120000123456.npy").op_type
    'aten.add.Tensor'
    """
    found = _CALL_NAME.fullmatch(file_name.removesuffix(".npy"))
    if found is None:
        return None
    io = found["io"].lower()
    return TensorName(
        graph=graph,
        op_type=found["target"],
        op_name=found["node"],
        io=io if found["j"] is None else f"{io}.{int(found['i'])}",
        slot=int(found["i"] if found["j"] is None else found["j"]),
        timestamp=_microseconds(found["time"]),
    )


def parse_node_name(file_name: str) -> TensorName | None:
    """Return what the name of a `.pt` file tells; None if it is not TorchAir's.

    >>> parse_node_name("mm_1_device_0_12.pt").op_name
    'mm_1'
    """
    found = _NODE_NAME.fullmatch(file_name.removesuffix(".pt"))
    if found is None:
        return None
    # FX numbers the nodes that call the same.
    op_type = _NUMBERED.sub("", found["node"]) or found["node"]
    return TensorName(op_type=op_type, op_name=found["node"], io="output", sequence=int(found["count"]))


def _microseconds(time: str) -> int:
    """Return microseconds since the epoch, -1 where there is no such time."""
    try:
        date = datetime.strptime(time[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return -1
    return int(date.timestamp()) * 1_000_000 + int(time[14:])
