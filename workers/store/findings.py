"""The findings of a step as two tables of its generation.

    findings/                       group
    findings/{rules}/               group; its attribute `rules` says what each rule asked for
    findings/{rules}/labels         (finding, label) text
    findings/{rules}/numbers        (finding, number) float64

`{rules}` names the set of rules, so the findings of one set never replace the findings of another set. If a
set found nothing, only the commit record says so, and the tables are missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store import metadata, table_codec
from workers.store.model import SEVERITIES, Evaluated, Finding
from workers.store.table_codec import NO_CHECKSUMS, refuse_foreign

GROUP = "findings"
LABELS = ("rule", "severity", "graph", "name", "reason")
NUMBERS = ("row", "value", "threshold")


def encode(
    definitions: Mapping[str, Mapping[str, Any]], evaluated: Evaluated
) -> tuple[dict[str, metadata.Document], dict[str, bytes]]:
    """Return the metadata and the chunks, by their paths in the generation; none for no findings."""
    findings = evaluated.findings
    if not findings:
        return {}, {}
    labels = np.array([[getattr(finding, name) for name in LABELS] for finding in findings], object)
    numbers = np.array([[getattr(finding, name) for name in NUMBERS] for finding in findings], np.float64)
    definitions = {name: dict(rule) for name, rule in definitions.items() if name in evaluated.totals}
    where = f"{GROUP}/{evaluated.rules}"
    documents = {
        GROUP: metadata.group(),
        where: metadata.group({"rules": definitions}),
        f"{where}/labels": metadata.table_array(labels.shape, "string", ("finding", "label"), LABELS),
        f"{where}/numbers": metadata.table_array(numbers.shape, "float64", ("finding", "number"), NUMBERS),
    }
    return documents, {
        f"{where}/labels/c/0/0": table_codec.encode(labels, "string"),
        f"{where}/numbers/c/0/0": table_codec.encode(numbers, "float64"),
    }


def chunk_keys(rules: str, documents: Mapping[str, metadata.Document]) -> list[str]:
    """Return the keys of the chunks that `decode` needs, relative to a generation; none for no findings."""
    names = [f"{GROUP}/{rules}/{name}" for name in ("labels", "numbers")]
    return [f"{name}/c/0/0" for name in names] if rules and names[0] in documents else []


def decode(
    rules: str,
    key: StepKey,
    documents: Mapping[str, metadata.Document],
    chunks: Mapping[str, bytes],
    checksums: Mapping[str, int] = NO_CHECKSUMS,
) -> list[Finding]:
    """Return the findings, the worst first.

    Args:
        rules: the digest of the rule set.
        key: the step.
        documents: the metadata, by path in the generation.
        chunks: those of `chunk_keys`, by path in the generation.
        checksums: what the commit lists of the chunks.

    Raises:
        DamagedStore: a chunk is missing, not what its metadata says, or not that of the commit.
    """
    columns: dict[str, Sequence[object]] = {}
    for name, data_type, known in (("labels", "string", LABELS), ("numbers", "float64", NUMBERS)):
        path = f"{GROUP}/{rules}/{name}"
        chunk = chunks.get(f"{path}/c/0/0")
        if chunk is None or path not in documents:
            raise DamagedStore(f"{key}: {path} is missing")
        columns |= _decode_columns(chunk, data_type, documents[path], known, f"{key}: {path}")
    try:
        rows = zip(*columns.values(), strict=True)
        findings = [_finding(key, dict(zip(columns, row, strict=True))) for row in rows]
    except (ValueError, TypeError, OverflowError) as exc:
        raise DamagedStore(f"{key}: {GROUP}/{rules} is damaged: {exc}") from exc
    refuse_foreign(chunks, checksums, str(key))
    return findings


def _decode_columns(
    chunk: bytes, data_type: str, document: metadata.Document, known: Sequence[str], where: str
) -> dict[str, Sequence[object]]:
    """Return the columns of one table that this version knows, by name."""
    shape = table_codec.shape_of(document, where)
    fields = table_codec.fields_of(document, shape[1], where)
    if not set(known) <= set(fields):
        raise DamagedStore(f"{where} does not have the columns {', '.join(known)}")
    table = table_codec.decode(chunk, data_type, shape, where)
    return {field: table[:, fields.index(field)].tolist() for field in known}


def _finding(key: StepKey, columns: Mapping[str, Any]) -> Finding:
    """Return the finding of one row, by the names of its columns."""
    if columns["severity"] not in SEVERITIES:
        message = f"{columns['severity']!r} is not a severity"
        raise ValueError(message)
    texts = {name: str(columns[name]) for name in LABELS}
    return Finding(
        **texts,
        rank=key.rank,
        step=key.step or 0,
        row=int(columns["row"]),
        value=float(columns["value"]),
        threshold=float(columns["threshold"]),
    )
