"""The first overflow that the hardware recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ingest.questions.origin.answer import OriginAnswer, OriginLater, OriginOperator, OriginSpread
from ingest.questions.origin.calls import Call, bad_numbers
from ingest.questions.origin.wording import source_of, tensors_of
from ingest.reader.calls import key_of
from ingest.reader.snapshot import LeftOut, Snapshot
from ingest.reader.step import Step, overflow_rows
from workers.errors import DamagedStore
from workers.store.consolidated.blocks import TENSOR_KINDS

_ALTERNATIVES = 20


class _Record(NamedTuple):
    """An overflow record, and the step that has it."""

    step: Step
    fields: dict[str, Any]


def first_overflow(snapshot: Snapshot) -> OriginAnswer:
    """Return the operator of the first overflow record: by step, then by the order of its rank.

    Ranks are not ordered among each other, so the records of other ranks in that step are alternatives. Reads
    the indexes of ranks with a record, up to the first step with a record.
    """
    damaged: list[LeftOut] = []
    for step in snapshot.steps:
        records: list[_Record] = []
        for opened in snapshot.of_step(step).values():
            if not _has_records(opened):
                continue
            try:
                records += [_Record(opened, fields) for fields in overflow_rows(opened)]
            except DamagedStore as exc:
                damaged.append(LeftOut.damaged(opened.key, exc.message))
            opened.forget_tables()
        if records:
            return _answer(snapshot, records, (*snapshot.left_out, *damaged))
    return OriginAnswer(None, left_out=(*snapshot.left_out, *damaged))


def _answer(snapshot: Snapshot, records: list[_Record], left_out: tuple[LeftOut, ...]) -> OriginAnswer:
    step, fields = records[0]
    call = _call(step, fields)
    inputs, outputs = tensors_of(step, call, bad_numbers(step)) if call else ((), ())
    source, fused_from = source_of(snapshot, step, call) if call else (None, ())
    return OriginAnswer(
        cause="overflow",
        how="recorded",
        what="overflow",
        rank=step.key.rank,
        step=step.key.step,
        graph=call.key.graph if call else None,
        op_type=fields["op_type"] or None,
        op_name=fields["op_name"] or None,
        occurrence=call.key.occurrence if call else None,
        fused_from=fused_from,
        source=source,
        inputs=inputs,
        outputs=outputs,
        spread=OriginSpread(ranks=(step.key.rank,), steps=tuple(_later(snapshot, step.key.step or 0))),
        alternatives=tuple(map(_alternative, records[1:]))[:_ALTERNATIVES],
        notes=tuple(_notes(records, call)),
        left_out=left_out,
    )


def _notes(records: list[_Record], call: Call | None) -> list[str]:
    first = records[0].fields
    place = f"stream {first['stream']}, task {first['task']}"
    notes = [f"Recorded by {first['unit']}: {place}; {first['source']} has all of it."]
    if call is None:
        notes.append("The operator that failed was not dumped: task and stream are all that is known of it.")
    if len({record.step.key.rank for record in records}) > 1:
        notes.append("Records of different ranks are in no order: see the alternatives.")
    return notes


def _later(snapshot: Snapshot, first: int) -> Iterator[OriginLater]:
    """Yield the later steps with overflow records."""
    for step in snapshot.steps:
        ranks = tuple(rank for rank, opened in snapshot.of_step(step).items() if _has_records(opened))
        if ranks and step > first:
            yield OriginLater(step, ranks)


def _has_records(step: Step) -> bool:
    return bool(step.commit.summary.overflows)


def _alternative(record: _Record) -> OriginOperator:
    key, fields = record.step.key, record.fields
    reason = f"overflow recorded by {fields['unit']}: stream {fields['stream']}, task {fields['task']}"
    return OriginOperator(key.rank, key.step or 0, "", fields["op_type"], fields["op_name"], 0, reason)


def _call(step: Step, record: dict[str, Any]) -> Call | None:
    """Return the call that a record is about, by operator, stream and task; None if it was not dumped."""
    if not record["op_name"]:
        return None
    tables = step.tables
    matches = np.isin(tables.label("kind"), TENSOR_KINDS)
    for label in ("op_type", "op_name"):
        matches &= tables.label(label) == record[label]
    for number in ("stream", "task"):
        matches &= tables.number(number) == record[number]
    rows = np.flatnonzero(matches)
    if not len(rows):
        return None
    row = int(rows[0])
    return Call(
        rank=step.key.rank,
        step=int(step.key.step or 0),
        key=key_of(tables, row),
        row=row,
        inputs=0,
        missing_slots=(),
        bad_inputs=(),
        bad_outputs=(),
    )
