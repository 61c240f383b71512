"""The findings of a step as two tables of its generation.

    findings/                       group
    findings/{rules}/               group; its attribute `rules` says what each rule asked for
    findings/{rules}/labels         (finding, label) text
    findings/{rules}/numbers        (finding, number) float64

`{rules}` names the set of rules, so what one set found never takes the place of what another one did. Where
nothing was found, the commit record says so, and there are no tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store import metadata, tables
from workers.store.model import SEVERITIES, Evaluated, Finding

GROUP = "findings"
LABELS = ("rule", "severity", "graph", "name", "reason")
NUMBERS = ("row", "value", "threshold")


def encode(
    definitions: Mapping[str, Mapping[str, Any]], found: Evaluated
) -> tuple[dict[str, metadata.Document], dict[str, bytes]]:
    """Return the metadata and the chunks, by their paths in the generation; none for no findings."""
    if not found.findings:
        return {}, {}
    labels = np.array([[getattr(one, name) for name in LABELS] for one in found.findings], object)
    numbers = np.array([[getattr(one, name) for name in NUMBERS] for one in found.findings], np.float64)
    definitions = {name: dict(rule) for name, rule in definitions.items() if name in found.totals}
    where = f"{GROUP}/{found.rules}"
    documents = {
        GROUP: metadata.group(),
        where: metadata.group({"rules": definitions}),
        f"{where}/labels": metadata.table_array(labels.shape, "string", ("finding", "label"), LABELS),
        f"{where}/numbers": metadata.table_array(numbers.shape, "float64", ("finding", "number"), NUMBERS),
    }
    return documents, {
        f"{where}/labels/c/0/0": tables.encode_table(labels, "string"),
        f"{where}/numbers/c/0/0": tables.encode_table(numbers, "float64"),
    }


def chunk_keys(rules: str, documents: Mapping[str, metadata.Document]) -> list[str]:
    """Return the keys of the chunks that `decode` needs, relative to a generation; none for no findings."""
    names = [f"{GROUP}/{rules}/{name}" for name in ("labels", "numbers")]
    return [f"{name}/c/0/0" for name in names] if rules and names[0] in documents else []


def decode(
    rules: str, key: StepKey, documents: Mapping[str, metadata.Document], chunks: Mapping[str, bytes]
) -> list[Finding]:
    """Return the findings, the worst first.

    Raises:
        DamagedStore: a chunk is missing, or not what its metadata says.
    """
    columns: dict[str, Sequence[object]] = {}
    for name, data_type, known in (("labels", "string", LABELS), ("numbers", "float64", NUMBERS)):
        path = f"{GROUP}/{rules}/{name}"
        chunk = chunks.get(f"{path}/c/0/0")
        if chunk is None or path not in documents:
            raise DamagedStore(f"{key}: {path} is missing")
        rows, width = documents[path]["shape"]
        fields = documents[path]["attributes"].get("fields", [])
        if not set(known) <= set(fields) or len(fields) != width:
            raise DamagedStore(f"{key}: {path} has not the columns {', '.join(known)}")
        table = tables.decode_table(chunk, data_type, (rows, width), f"{key}: {path}")
        columns.update((field, table[:, fields.index(field)].tolist()) for field in known)
    try:
        return [
            Finding(
                str(rule),
                _severity(severity),
                key.rank,
                key.step or 0,
                int(row),
                str(graph),
                str(name),
                float(value),
                float(threshold),
                str(reason),
            )
            for rule, severity, graph, name, reason, row, value, threshold in zip(
                *(columns[one] for one in (*LABELS, *NUMBERS)), strict=True
            )
        ]
    except (ValueError, TypeError, OverflowError) as exc:
        raise DamagedStore(f"{key}: {GROUP}/{rules} is damaged: {exc}") from exc


def _severity(text: object) -> str:
    if text not in SEVERITIES:
        message = f"{text!r} is no severity"
        raise ValueError(message)
    return str(text)
