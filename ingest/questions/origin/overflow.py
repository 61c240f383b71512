"""The first overflow that the hardware wrote down."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingest.questions.origin.answer import OriginAnswer, OriginLater, OriginOperator, OriginSpread
from ingest.questions.origin.calls import Call, bad_numbers, key_of
from ingest.questions.origin.wording import source_line, tensors_of
from ingest.reader.rows import overflow_rows
from ingest.reader.snapshot import LeftOut, Snapshot
from ingest.reader.step import Step
from workers.errors import DamagedStore
from workers.store.blocks import TENSOR_KINDS

_ALTERNATIVES = 20


def first_overflow(snapshot: Snapshot) -> OriginAnswer:
    """Return the operator of the first overflow record: by step, then in the order of its rank.

    Ranks are not ordered among one another: the records of the others in that step are alternatives. Reads
    the index of the steps up to the first one with a record, of the ranks that have one.
    """
    damaged: list[LeftOut] = []
    for step in snapshot.steps:
        records: list[tuple[Step, dict[str, Any]]] = []
        for one in snapshot.of_step(step).values():
            if not one.commit.summary.overflows:
                continue
            try:
                records += [(one, row) for row in overflow_rows(one)]
            except DamagedStore as exc:
                damaged.append(LeftOut(one.key, f"damaged: {exc.message}"))
            one.forget_tables()
        if records:
            return _answer(snapshot, records, damaged)
    return OriginAnswer(None, left_out=(*snapshot.left_out, *damaged))


def _answer(
    snapshot: Snapshot, records: list[tuple[Step, dict[str, Any]]], damaged: list[LeftOut]
) -> OriginAnswer:
    # What has a name says more than what has none, but only within one rank is there an order.
    step, record = records[0]
    call = _call(step, record)
    inputs, outputs = tensors_of(step, call, bad_numbers(step)) if call else ((), ())
    ranks = {one.key.rank for one, _ in records}
    place = f"stream {record['stream']}, task {record['task']}"
    notes = [f"Recorded by {record['unit']}: {place}; {record['source']} has all of it."]
    if call is None:
        notes.append("The operator that failed was not dumped: task and stream are all that is known of it.")
    if len(ranks) > 1:
        notes.append("Records of different ranks are in no order: see the alternatives.")
    later = []
    for number in snapshot.steps:
        of = snapshot.of_step(number)
        having = tuple(rank for rank, one in of.items() if one.commit.summary.overflows)
        if having and number > (step.key.step or 0):
            later.append(OriginLater(number, having))
    return OriginAnswer(
        cause="overflow",
        how="recorded",
        what="overflow",
        rank=step.key.rank,
        step=step.key.step,
        graph=call.key.graph if call else None,
        op_type=record["op_type"] or None,
        op_name=record["op_name"] or None,
        occurrence=call.key.occurrence if call else None,
        source=source_line(snapshot, step, call) if call else None,
        inputs=inputs,
        outputs=outputs,
        spread=OriginSpread(ranks=(step.key.rank,), steps=tuple(later)),
        alternatives=tuple(
            OriginOperator(
                one.key.rank,
                one.key.step or 0,
                "",
                other["op_type"],
                other["op_name"],
                0,
                f"overflow recorded by {other['unit']}: stream {other['stream']}, task {other['task']}",
            )
            for one, other in records[1:]
        )[:_ALTERNATIVES],
        notes=tuple(notes),
        left_out=(*snapshot.left_out, *damaged),
    )


def _call(step: Step, record: dict[str, Any]) -> Call | None:
    """Return the call that a record is about, by operator, stream and task."""
    if not record["op_name"]:
        return None
    tables = step.tables
    rows = np.isin(tables.label("kind"), TENSOR_KINDS)
    for label in ("op_type", "op_name"):
        rows &= tables.label(label) == record[label]
    for number in ("stream", "task"):
        rows &= tables.number(number) == record[number]
    found = np.flatnonzero(rows)
    if not len(found):
        return None
    row = int(found[0])
    key = key_of(step, row)
    return Call(step.key.rank, int(step.key.step or 0), key, row, 0, (), (), ())
