"""Findings come back from their tables, whatever numbers they hold; and damage is named."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store import findings, tables
from workers.store.findings import LABELS, NUMBERS
from workers.store.model import Evaluated, Finding

KEY = StepKey(3, 7)
FINDINGS = (
    Finding("nan", "critical", 3, 7, 5, "0", "MatMul.op0.output.0", 2.0, 0.0, "2 NaN of 9 elements"),
    Finding("mine", "info", 3, 7, -1, "", "", math.nan, math.inf, "höher"),
)
EVALUATED = Evaluated("0123", FINDINGS, {"nan": 9, "mine": 1})
DEFINITIONS = {name: {"kind": name} for name in ("nan", "mine", "silent")}


def decoded(change: Callable[[dict[str, Any], dict[str, bytes]], object] = lambda *_: None) -> list[Finding]:
    documents, chunks = findings.encode(DEFINITIONS, EVALUATED)
    assert sorted(chunks) == sorted(findings.chunk_keys("0123", documents))
    change(documents, chunks)
    return findings.decode("0123", KEY, documents, chunks)


def test_columns_of_another_version_do_no_harm() -> None:
    def add_column(documents: dict[str, Any], chunks: dict[str, bytes]) -> None:
        document = documents["findings/0123/labels"]
        table = tables.decode_table(chunks["findings/0123/labels/c/0/0"], "string", (2, 5), "here")
        wider = np.insert(table, 0, "later", axis=1)
        chunks["findings/0123/labels/c/0/0"] = tables.encode_table(wider, "string")
        document["shape"] = [2, 6]
        document["attributes"]["fields"] = ["added", *LABELS]

    assert repr(decoded(add_column)) == repr(list(FINDINGS))


def with_first(name: str, value: object) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    """Return a change that puts a value into the first row of a column."""
    return lambda documents, chunks: write(documents, chunks, name, value)


def write(documents: dict[str, Any], chunks: dict[str, bytes], name: str, value: object) -> None:
    is_label = name in LABELS
    columns, kind = (LABELS, "string") if is_label else (NUMBERS, "float64")
    path = f"findings/0123/{'labels' if is_label else 'numbers'}"
    shape = documents[path]["shape"]
    table = tables.decode_table(chunks[f"{path}/c/0/0"], kind, (shape[0], shape[1]), "here").copy()
    table[0, columns.index(name)] = value
    chunks[f"{path}/c/0/0"] = tables.encode_table(table, kind)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda _, chunks: chunks.popitem(), "numbers is missing"),
        (lambda documents, _: documents.pop("findings/0123/labels"), "labels is missing"),
        (lambda documents, _: documents["findings/0123/labels"].pop("shape"), "does not have a shape"),
        (lambda documents, _: documents["findings/0123/labels"].update(shape=[3, 5]), "cannot be decoded"),
        (lambda documents, _: documents["findings/0123/labels"].pop("attributes"), "not as many names"),
        (
            lambda documents, _: documents["findings/0123/labels"]["attributes"].update(fields=["x"] * 5),
            "does not have the columns rule",
        ),
        (
            lambda documents, _: documents["findings/0123/labels"]["attributes"].update(fields=[[]] * 5),
            "not as many names",
        ),
        (
            lambda documents, chunks: write(documents, chunks, "severity", "awful"),
            "'awful' is not a severity",
        ),
        (with_first("row", math.nan), "cannot convert float NaN"),
        (with_first("row", math.inf), "cannot convert float inf"),
    ],
)
def test_damage_is_named_with_the_step(change: Callable[..., object], what: str) -> None:
    with pytest.raises(DamagedStore, match=f"rank 3 step 7: findings/0123.*{what}"):
        decoded(change)
