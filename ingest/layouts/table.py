"""The tables of docs/formats.md, made from what layouts and decoders say.

    python -m ingest.layouts.table [--write]

prints them, or writes them into the page.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ingest.layouts.base import Layout, System, step_of
from ingest.layouts.detect import LAYOUTS
from ingest.layouts.places import PathRank
from workers.arrays import device_format
from workers.arrays.dtypes import core_name, from_name
from workers.dump.formats import dump_data
from workers.dump.formats.dump_data_pb2 import DataType

#: The page, in a checkout.
PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
_COLUMNS = ("Dump system", "Place", "What is read", "Rank or other number", "Step", "Layout")


def systems() -> Iterator[tuple[str, ...]]:
    """Yield the dump systems of all layouts, each with an example of a place."""
    for layout in LAYOUTS:
        for system in layout.systems:
            fields = match(layout, system)
            rank = PathRank.of(fields)
            step = step_of(fields)
            yield (
                system.name,
                f"`{system.place}`" if _is_of_file(layout, system) else f"`{system.place}/`",
                system.holds,
                _words(rank),
                "of each line" if layout.step_of_line else "none" if step is None else str(step),
                f"`{layout.name}`",
            )


def _words(rank: PathRank | None) -> str:
    if rank is None:
        return "single process"
    return "rank by place in the mesh" if rank.kind == "mesh" else f"{rank.kind} {rank.number}"


def _is_of_file(layout: Layout, system: System) -> bool:
    return any(pattern.match_path(system.place) is not None for pattern in layout.file_patterns)


def match(layout: Layout, system: System) -> dict[str, str]:
    """Return the fields in the example of a system, by the patterns of its layout.

    Raises:
        LookupError: the example fits no pattern.
    """
    for pattern in (*layout.patterns, *layout.file_patterns):
        fields = pattern.match_path(system.place)
        if fields is not None:
            return {**layout.implied, **fields}
    message = f"{system.place} fits no pattern of {layout.name}"
    raise LookupError(message)


def element_types() -> Iterator[tuple[str, ...]]:
    """Yield the data types of DumpData, and how they are stored."""
    for code, name in dump_data.ELEMENT_TYPES.items():
        element = from_name(name)
        if element.is_opaque:
            stored = "bytes, one for each element"
        elif element.is_packed:
            stored = f"bytes as dumped, {element.bits}-bit elements; read as `{element.values}`"
        elif element.is_native:
            core = core_name(element.stored_name)
            stored = f"Zarr `{core}`" + ("" if core == element.stored_name else f", `logical_dtype` `{name}`")
        else:
            stored = f"bytes as dumped; read as `{element.values}`"
        yield str(code), DataType.Name(code), f"`{name}`", stored


def device_formats() -> Iterator[tuple[str, ...]]:
    """Yield in which layouts tensors in the memory formats of DumpData are stored, and these formats."""
    names = dump_data.FORMAT_NAMES
    known = {name for name in names if device_format.is_known(name)}
    for stored, stored_so in (("host layout", known), ("as dumped", names - known)):
        yield stored, ", ".join(f"`{name}`" for name in sorted(stored_so))


def markdown(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table as Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows))


def tables() -> dict[str, str]:
    """Return all tables, by their names in the markers of the page."""
    return {
        "systems": markdown(_COLUMNS, systems()),
        "types": markdown(("Code", "Data type", "Element type", "Stored as"), element_types()),
        "formats": markdown(("Stored", "Formats"), device_formats()),
    }


def with_tables(page: str) -> str:
    """Return a page with the tables between their markers, `<!-- table: NAME -->` and `<!-- end -->`.

    Raises:
        LookupError: the page lacks the markers of a table.
    """
    for name, table in tables().items():
        page, count = re.subn(
            rf"(<!-- table: {name} -->\n).*?(<!-- end -->)",
            lambda markers, table=table: f"{markers[1]}{table}\n{markers[2]}",  # type: ignore[misc]
            page,
            flags=re.DOTALL,
        )
        if count != 1:
            message = f"the page has {count} places for the table {name}, not 1"
            raise LookupError(message)
    return page


def main() -> None:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(prog="python -m ingest.layouts.table", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    if parser.parse_args().write:
        PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")
    else:
        sys.stdout.write("\n\n".join(tables().values()) + "\n")


if __name__ == "__main__":
    main()
