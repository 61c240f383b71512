"""Runs of which MindSpore dumped statistics alone, without elements."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.stores import MadeDump, ingest_directly

_HEADER = (
    "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,"
    "Avg Value,Count,Negative Zero Count,Positive Zero Count,NaN Count,Negative Inf Count,"
    "Positive Inf Count,Zero Count"
)
_TIME = 1_795_220_037_870_000


def ingest_statistics(root: Path, ranks: Sequence[Mapping[str, float]]) -> Path:
    """Ingest the largest elements of outputs, by `{type}.{name}`, of tensors of six elements or of one.

    A name that ends in `step` is that of a tensor without axes.
    """
    made = MadeDump(root / "dump")
    for rank, tensors in enumerate(ranks):
        lines = [_HEADER]
        for number, (name, largest) in enumerate(tensors.items()):
            shape, count = ("()", 1) if name.endswith("step") else ("(2, 3)", 6)
            least = largest if count == 1 else -1
            lines.append(
                f'{name.replace(".", ",", 1)},0,0,{_TIME + number},output,0,{4 * count},float32,"{shape}",'
                f"{largest},{least},{largest},{count},0,{count},0,0,0,0"
            )
        (made.directory(rank=rank) / "statistic.csv").write_text("\n".join([*lines, ""]))
    ingest_directly(made.root, root / "run.zarr")
    return root / "run.zarr"
