"""What a file of tensors holds besides them: values by name, which the index keeps as JSON.

The `record` of a row is a JSON object. `file` has the values of the file, in one of its rows; `tensor` has
what is known of this tensor alone; `path` the keys that lead to it, if its name does not tell them apart;
`view` how it is picked from the bytes of the file.
"""

from __future__ import annotations

import json
from typing import Any

from workers.store.tables import Tables


def attributes_of(tables: Tables, row: int) -> dict[str, Any]:
    """Return the values of the file of a tensor; and under `tensor`, what is known of that alone."""
    sources, records = tables.label("source"), tables.label("record")
    attributes: dict[str, Any] = {}
    for text in records[(sources == sources[row]) & (records != "")].tolist():
        # One row has the values of the file; a file may have thousands of others.
        values = parse_record(text).get("file") if '"file"' in text else None
        if isinstance(values, dict):
            attributes |= values
    own = record_of(tables, row)
    if "tensor" in own:
        attributes["tensor"] = own["tensor"]
    return attributes


def record_of(tables: Tables, row: int) -> dict[str, Any]:
    """Return the record of a row; {} if it has none, or it is damaged."""
    return parse_record(str(tables.label("record")[row]))


def parse_record(text: str) -> dict[str, Any]:
    """Return a record that is written as JSON; {} if it is empty, or not one."""
    try:
        record = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
