"""The findings of a step as two tables of its generation.

    findings/                       group
    findings/{rules}/               group; its attribute `rules` says what each rule asked for
    findings/{rules}/labels         (finding, label) text
    findings/{rules}/numbers        (finding, number) float64

`{rules}` names the set of rules, so the findings of one set never replace the findings of another set. If a
set found nothing, only the commit record says so, and the tables are missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store import metadata
from workers.store.model import SEVERITIES, Evaluated, Finding
from workers.store.tables import NO_CHECKSUMS, TableFormat

GROUP = "findings"
LABELS = ("rule", "severity", "graph", "name", "reason")
NUMBERS = ("row", "value", "threshold")


def _formats(rules: str) -> tuple[TableFormat, TableFormat]:
    where = f"{GROUP}/{rules}"
    labels = TableFormat(f"{where}/labels", "string", ("finding", "label"), LABELS)
    return labels, TableFormat(f"{where}/numbers", "float64", ("finding", "number"), NUMBERS)


def encode(
    definitions: Mapping[str, Mapping[str, Any]], evaluated: Evaluated
) -> tuple[dict[str, metadata.Document], dict[str, bytes]]:
    """Return the metadata and the chunks, by their paths in the generation; none for no findings."""
    if not evaluated.findings:
        return {}, {}
    definitions = {name: dict(rule) for name, rule in definitions.items() if name in evaluated.totals}
    documents = {
        GROUP: metadata.group(),
        f"{GROUP}/{evaluated.rules}": metadata.group({"rules": definitions}),
    }
    chunks: dict[str, bytes] = {}
    for table, dtype in zip(_formats(evaluated.rules), (object, np.float64), strict=True):
        rows = [[getattr(finding, name) for name in table.fields] for finding in evaluated.findings]
        of_table = table.encode(np.array(rows, dtype))
        documents |= of_table[0]
        chunks |= of_table[1]
    return documents, chunks


def chunk_keys(rules: str, documents: Mapping[str, metadata.Document]) -> list[str]:
    """Return the keys of the chunks that `decode` needs, relative to a generation; none for no findings."""
    formats = _formats(rules)
    return [table.chunk for table in formats] if rules and formats[0].path in documents else []


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
    labels, numbers = (table.decode(documents, chunks, str(key), checksums) for table in _formats(rules))
    try:
        return [
            _finding(key, *map(str, of_row), *of_finding)
            for of_row, of_finding in zip(labels.tolist(), numbers.tolist(), strict=True)
        ]
    except (ValueError, TypeError, OverflowError) as exc:
        raise DamagedStore(f"{key}: {GROUP}/{rules} is damaged: {exc}") from exc


def _finding(key: StepKey, *values: Any) -> Finding:
    columns = dict(zip((*LABELS, *NUMBERS), values, strict=True))
    if columns["severity"] not in SEVERITIES:
        raise ValueError(f"{columns['severity']!r} is not a severity")
    columns["row"] = int(columns["row"])
    return Finding(rank=key.rank, step=key.step or 0, **columns)
