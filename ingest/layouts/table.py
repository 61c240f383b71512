"""The tables of docs/formats.md: made of what layouts and decoders say, and of how they match.

python -m ingest.layouts.table
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from ingest.layouts.base import Layout, System
from ingest.layouts.detect import LAYOUTS
from ingest.layouts.ranks import RankOf
from ingest.layouts.tree import step_of
from workers.arrays import device_format
from workers.arrays.dtypes import from_name
from workers.dump.formats import dump_data_tensor
from workers.dump.formats.dump_data_pb2 import DataType

COLUMNS = ("Dump system", "Place", "What is read", "Rank or other number", "Step", "Layout")


def rows() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table."""
    for layout in LAYOUTS:
        for system in layout.systems:
            fields = match(layout, system)
            rank = RankOf.of(fields)
            step = step_of(fields)
            yield (
                system.name,
                f"`{system.place}/`",
                system.holds,
                "single process" if rank is None else f"{rank.kind} {rank.number}",
                "none" if step is None else str(step),
                f"`{layout.name}`",
            )


def match(layout: Layout, system: System) -> dict[str, str]:
    """Return the fields that the example of a system gives by the patterns of its layout.

    Raises:
        LookupError: by none of them.
    """
    names = system.place.split("/")
    for pattern in layout.patterns:
        if len(pattern.levels) != len(names):
            continue
        found = [pattern.match(level, name) for level, name in enumerate(names)]
        if all(fields is not None for fields in found):
            return {name: value for fields in found if fields for name, value in fields.items()}
    message = f"{system.place} fits no pattern of {layout.name}"
    raise LookupError(message)


def element_types() -> Iterator[tuple[str, ...]]:
    """Yield the data types of DumpData and what they become."""
    for code, name in dump_data_tensor.ELEMENT_TYPES.items():
        element = from_name(name)
        if element.is_opaque:
            kept = "bytes, a byte for each element"
        elif element.is_packed:
            kept = f"bytes as dumped, {element.bits} bits for each element; read as `{element.values}`"
        elif element.is_native:
            kept = f"Zarr `{element.stored_name}`"
        else:
            kept = f"bytes as dumped; read as `{element.values}`"
        yield str(code), DataType.Name(code), f"`{name}`", kept


def device_formats() -> Iterator[tuple[str, ...]]:
    """Yield what becomes of tensors in the memory formats of DumpData, and the formats."""
    known = {name for name in dump_data_tensor.FORMAT_NAMES if device_format.is_known(name)}
    for becomes, names in (("host layout", known), ("as dumped", dump_data_tensor.FORMAT_NAMES - known)):
        yield becomes, ", ".join(f"`{name}`" for name in sorted(names))


def markdown(columns: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> str:
    """Return a table as Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *lines))


def tables() -> list[str]:
    """Return all tables."""
    return [
        markdown(COLUMNS, rows()),
        markdown(("Code", "Data type", "Element type", "Stored as"), element_types()),
        markdown(("Stored", "Formats"), device_formats()),
    ]


if __name__ == "__main__":
    sys.stdout.write("\n\n".join(tables()) + "\n")
