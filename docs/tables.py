"""What is made of the code: tables in docs/formats.md and docs/rules.md, and the built-in rules as values.

python docs/tables.py            prints what would change
python docs/tables.py --write    writes it
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ingest.layouts.base import Layout, PathRank, System, step_of
from ingest.layouts.detect import LAYOUTS
from workers.arrays import device_format
from workers.arrays.dtypes import core_name, from_name
from workers.dump.formats import dump_data
from workers.dump.formats.dump_data_pb2 import DataType
from workers.rules.ready import READY
from workers.rules.schema import MODELS, BaseRule, StepRule, load_rules
from workers.rules.values import Scope

DOCS = Path(__file__).parent
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
                f"`{system.place}`" if is_of_file(layout, system) else f"`{system.place}/`",
                system.holds,
                _words(rank),
                "of each line" if layout.step_of_line else "none" if step is None else str(step),
                f"`{layout.name}`",
            )


def _words(rank: PathRank | None) -> str:
    if rank is None:
        return "single process"
    return "rank by place in the mesh" if rank.kind == "mesh" else f"{rank.kind} {rank.number}"


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


def _element_types() -> Iterator[tuple[str, ...]]:
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


def _device_formats() -> Iterator[tuple[str, ...]]:
    names = dump_data.FORMAT_NAMES
    known = {name for name in names if device_format.is_known(name)}
    for stored, stored_so in (("host layout", known), ("as dumped", names - known)):
        yield stored, ", ".join(f"`{name}`" for name in sorted(stored_so))


def is_of_file(layout: Layout, system: System) -> bool:
    """Return whether the example of a system is a single file."""
    return any(pattern.match_path(system.place) is not None for pattern in layout.file_patterns)


def markdown(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table as Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows))


def _built_in_rules() -> Iterator[tuple[str, ...]]:
    for rule in load_rules().rules:
        yield (
            f"`{rule.name}`",
            rule.severity,
            _parameters(rule),
            _cell(rule.description),
            _cell(rule.source),
        )


def _parameters(rule: BaseRule) -> str:
    values = rule.model_dump(mode="json")
    given = [f"{name} {_value(values[name])}" for name in rule.own_fields() if values[name] is not None]
    return f"`{rule.kind}`" + (f": {', '.join(given)}" if given else "")


def kinds() -> Iterator[tuple[str, ...]]:
    """Yield the kinds of rules."""
    for kind, model in MODELS.items():
        fields = [
            f"`{name}`"
            + ("" if field.is_required() or field.default is None else f" {_value(field.default)}")
            for name, field in model.own_fields().items()
        ]
        summary = (model.__doc__ or "").strip().partition("\n")[0]
        yield f"`{kind}`", str(model.scope), _cell(summary), ", ".join(fields)


def _rule_fields() -> Iterator[tuple[str, ...]]:
    step_only = StepRule.model_fields.keys() - BaseRule.model_fields.keys()
    for name in (*BaseRule.model_fields, *(name for name in StepRule.model_fields if name in step_only)):
        only = f" Only for kinds that look at {Scope.STEP}." if name in step_only else ""
        yield f"`{name}`", _cell(StepRule.model_fields[name].description or "") + only


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|x|", "magnitudes").replace("|", "\\|")


def tables(page: str) -> dict[str, str]:
    """Return the tables of a page, by their names in its markers, as Markdown."""
    if page == "rules.md":
        asks = ("Rule", "Severity", "What it asks", "Meaning", "Source")
        looks = ("Kind", "Looks at", "Fires for", "Additional fields, with defaults")
        return {
            "built-in rules": markdown(asks, _built_in_rules()),
            "kinds": markdown(looks, kinds()),
            "fields": markdown(("Field", "Meaning"), _rule_fields()),
        }
    return {
        "systems": markdown(_COLUMNS, systems()),
        "types": markdown(("Code", "Data type", "Element type", "Stored as"), _element_types()),
        "formats": markdown(("Stored", "Formats"), _device_formats()),
    }


def filled(page: str) -> str:
    """Return the text of a page with its tables between `<!-- table: NAME -->` and `<!-- end -->`.

    Raises:
        LookupError: the page lacks the markers of a table.
    """
    text = (DOCS / page).read_text("utf-8")
    for name, table in tables(page).items():
        begin, end = f"<!-- table: {name} -->\n", "<!-- end -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            message = f"{page} lacks the markers of the table {name}"
            raise LookupError(message)
        text = f"{before}{begin}{table}\n{end}{after}"
    return text


def rules_as_values() -> str:
    """Return the text of the file from which `workers.rules.values` reads the built-in rules."""
    return json.dumps(msgspec.to_builtins(load_rules().enabled), indent=1) + "\n"


def main() -> None:
    """Say which files are not as the code has them, or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files")
    writes = parser.parse_args().write
    made = {DOCS / page: filled(page) for page in ("formats.md", "rules.md")}
    made[READY] = rules_as_values()
    for path, text in made.items():
        if path.read_text("utf-8") != text:
            if writes:
                path.write_text(text, "utf-8")
            sys.stdout.write(f"{path.name}\n")


if __name__ == "__main__":
    main()
