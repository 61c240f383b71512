"""Metadata, tables, sketches and findings of one step: which are damaged, and what they can be made from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from ingest.reader.damage import Damage
from ingest.reader.step import Step
from ingest.reader.step_tables import findings_of, read_sketches
from ingest.reader.verifying.verify import STATISTICS_DO, WRONG_DIGEST, WRONG_SKETCHES, WRONG_STATISTICS
from ingest.repairing.work import Lost, Remade, StepWork, Unmendable
from workers.arrays.digest import new_digest
from workers.arrays.sketches.marginal_scope import MarginalScope
from workers.errors import DamagedStore, TensorsRemoved
from workers.model import MIB, StepKey
from workers.rules.step import evaluate
from workers.store import commit, findings, metadata, tables
from workers.store.commit import Commit
from workers.store.objects import ObjectStore
from workers.store.record import LEAF, CommitRecord, encode_leaf, totals_of
from workers.store.sketches import sketch_tables
from workers.store.sketches.sketch_tables import SketchKind
from workers.store.step import RecomputedStatistics
from workers.store.table_codec import checksums_of
from workers.store.tables import Tables
from workers.tasks.convert import convert
from workers.tasks.publish import count_rows, publish
from workers.tasks.sketch import sketches_of

_PIECE_NBYTES = 16 * MIB
DIGEST_CHUNK, STATISTICS_CHUNK = "index/digest/c/0/0", "statistics/c/0/0"
#: What follows from the payloads, which have checksums of their own.
_RECOMPUTED = frozenset([DIGEST_CHUNK, STATISTICS_CHUNK])
NO_SUSPECTS: Mapping[str, bool] = MappingProxyType({})
RECOMPUTED_FROM = "the payloads, computed again"


@dataclass(frozen=True, slots=True)
class MendedTables:
    """The tables of a step as they are to be."""

    tables: Tables
    chunks: Mapping[str, bytes]
    """The chunks that are to be written, by path in the generation."""
    origin: str


def mend_tables(
    objects: ObjectStore,
    committed: Commit,
    remake: Callable[[], Remade | None],
    suspects: Mapping[str, bool] = NO_SUSPECTS,
) -> MendedTables:
    """Return the tables of a step: what is damaged is made again from the dump, or from the payloads.

    Args:
        objects: the store.
        committed: the commit.
        remake: returns the same generation as the dump gives it; called if it is needed.
        suspects: tables that contradict payloads although they can be decoded; see `doubtful_tables`.

    Raises:
        DamagedStore: a table is damaged, and nothing is known that it can be made from; or tables are only
            suspected, and neither the dump nor the payloads tell whether they are wrong.
    """
    where, prefix, nodes = str(committed.key), committed.prefix, committed.packed_nodes
    contents = objects.get_many([f"{prefix}/{key}" for key in tables.chunk_keys()])
    stored = {key[len(prefix) + 1 :]: data for key, data in contents.items()}
    arrays, damaged = tables.decode_each(nodes, stored, where, committed.record.checksums)
    try:
        decoded = _checked(nodes, stored, committed, committed.record.checksums)
        if not suspects:
            return MendedTables(decoded, {}, "")
        problem = DamagedStore(f"{where}: its index contradicts its payloads")
    except DamagedStore as exc:
        problem = exc
    remade = remake()
    if remade is not None:
        return _from_dump(remade, committed, stored, damaged)
    if wrong := _recomputable(suspects, damaged):
        return _from_payloads(objects, committed, arrays, wrong)
    raise problem


def _recomputable(suspects: Mapping[str, bool], damaged: Mapping[str, str]) -> Collection[str]:
    """Return the tables that are wrong, if payloads tell all of them; else none."""
    if suspects and all(suspects.values()) and len(suspects) < len(_RECOMPUTED):
        return suspects
    return damaged.keys() if damaged.keys() <= _RECOMPUTED else ()


def _checked(
    nodes: dict[str, metadata.Document],
    chunks: Mapping[str, bytes],
    committed: Commit,
    checksums: Mapping[str, int],
) -> Tables:
    where = str(committed.key)
    decoded = tables.decode(nodes, dict(chunks), where, checksums)
    return tables.check(decoded, nodes, where, has_tensors=committed.without_tensors is None)


def _from_dump(
    remade: Remade, committed: Commit, stored: Mapping[str, bytes], damaged: Mapping[str, str]
) -> MendedTables:
    """Take the damaged tables from the dump; or all that differ, if each of them can be decoded."""
    made = {key: remade.assembled.chunks[key] for key in tables.chunk_keys()}
    chosen = damaged or [key for key in made if stored.get(key) != made[key]]
    chunks = {key: made[key] for key in chosen}
    for key in chunks:
        node = key.removesuffix("/c/0/0")
        if remade.assembled.nodes[node] != committed.nodes.get(node):
            raise DamagedStore(f"{committed.key}: {node} has another shape in the dump than in the commit")
    checksums = {**committed.record.checksums, **checksums_of(chunks)}
    return MendedTables(
        _checked(committed.packed_nodes, {**stored, **chunks}, committed, checksums), chunks, remade.origin
    )


def _recomputed(step: Step) -> Iterator[tuple[int, bytes, npt.NDArray[np.float64] | None]]:
    """Yield row, digest and statistics of each payload; None if it has no statistics."""
    placed = np.flatnonzero(step.tables.number("offset") >= 0).tolist()
    for row, pieces in step.payloads([row for row in placed if step.has_payload(row)], _PIECE_NBYTES):
        running, recomputed = new_digest(), RecomputedStatistics(step, row)
        for piece in pieces:
            running.update(piece)
            recomputed.update(piece)
        yield row, running.digest(), recomputed.result()


def _from_payloads(
    objects: ObjectStore,
    committed: Commit,
    arrays: Mapping[str, npt.NDArray[Any]],
    damaged: Collection[str],
) -> MendedTables:
    """Compute digests and statistics again.

    Raises:
        DamagedStore: a payload is damaged, or statistics came from a table of the dump.
    """
    rows = len(arrays["labels"])
    known: dict[str, Any] = {
        "digest": tables.empty_digests(rows),
        "statistics": tables.empty_statistics(rows),
        **arrays,
    }
    built = Tables(**known)
    where = str(committed.key)
    tables.check(built, committed.packed_nodes, where, has_tensors=committed.without_tensors is None)
    step = Step(objects, committed, built)
    given = set(built.label("statistics_from")) - {"", "computed"}
    if STATISTICS_CHUNK in damaged and given:
        raise DamagedStore(f"{where}: its statistics come from {min(given)}, which is not decoded here")
    digest, statistics = built.digest.copy(), built.statistics.copy()
    for row, digest_of_row, values in _recomputed(step):
        if DIGEST_CHUNK in damaged:
            digest[row] = np.frombuffer(digest_of_row, np.uint8)
        if STATISTICS_CHUNK in damaged and values is not None:
            statistics[row] = values
    mended = Tables(built.labels, built.numbers, built.shape, digest, statistics)
    _, chunks = tables.encode(mended)
    return MendedTables(mended, {key: chunks[key] for key in damaged}, RECOMPUTED_FROM)


def doubtful_tables(damages: Sequence[Damage], checksums: Mapping[str, int]) -> dict[str, bool]:
    """Return the tables that contradict payloads whose checksums are right.

    Args:
        damages: what is damaged of the step.
        checksums: what the commit lists: these tables are beyond doubt.

    Returns:
        By path of the chunk, whether the table is certainly wrong, because the other one agrees with the
        payloads. If none does, the payloads may be those of another step.
    """
    doubtful: dict[str, bool] = {}
    for damage in damages:
        if damage.source and damage.reason.startswith(WRONG_DIGEST):
            is_certain = damage.reason.endswith(STATISTICS_DO)
            doubtful[DIGEST_CHUNK] = doubtful.get(DIGEST_CHUNK, True) and is_certain
        if damage.source and damage.reason.startswith(WRONG_STATISTICS):
            doubtful[STATISTICS_CHUNK] = True
    return {path: is_certain for path, is_certain in doubtful.items() if path not in checksums}


def stored_marginals(objects: ObjectStore, key: StepKey, generation: str) -> MarginalScope | None:
    """Return the tensors that have marginals in a generation, by its objects; None if it has no sketches."""
    leaves = {f"{key.path}/{generation}/{path}/{LEAF}": path for path in sorted(sketch_tables.PATHS)}
    return sketch_tables.marginals_in({leaves[leaf] for leaf in objects.get_many(list(leaves))})


def _made_sketches(
    work: StepWork, step: Step, damaged: Sequence[SketchKind]
) -> tuple[Mapping[str, metadata.Document], Mapping[str, bytes], str]:
    """Return metadata and chunks of these kinds of sketches, and where they come from."""
    of_kind = sketch_tables.ARRAYS_OF_MARGINALS
    with suppress(DamagedStore, TensorsRemoved):
        sketches = sketches_of(step, [arrays for kind, arrays in of_kind.items() if kind in damaged])
        return sketches.documents, sketches.chunks, RECOMPUTED_FROM
    documents: dict[str, metadata.Document] = {}
    chunks: dict[str, bytes] = {}
    origin = ""
    names, record = [step.commit.fingerprint], step.commit.record
    for scope in [of_kind[kind].scope for kind in damaged if kind in of_kind] or [MarginalScope.NONE]:
        remade = work.dumps.remake(work.key, names, record, sketches=scope)
        if remade is not None:
            documents |= remade.assembled.nodes
            chunks |= remade.assembled.chunks
            origin = remade.origin
    return documents, chunks, origin


def mend_sketches(work: StepWork, step: Step, damages: Sequence[Damage]) -> Step:
    """Write the damaged sketches again, from payloads or the dump; return the step with them in its commit.

    Args:
        work: the repair of the step.
        step: the step, whose index is whole.
        damages: what is damaged of it.
    """
    prefix, nodes = step.commit.prefix, step.commit.nodes
    damaged = [
        kind
        for kind in sketch_tables.KINDS
        if any(
            damage.reason == WRONG_SKETCHES[kind]
            or any(damage.path.startswith(f"{prefix}/{array}/c/") for array in kind.arrays)
            for damage in damages
        )
    ]
    if not damaged:
        return step
    documents, chunks, origin = _made_sketches(work, step, damaged)
    mended: dict[str, bytes] = {}
    for kind in damaged:
        if all(documents.get(array) == nodes.get(array) for array in kind.arrays):
            mended |= {key: chunks[key] for key in kind.chunk_keys(nodes, str(step.key))}
        else:
            reason = "neither its payloads nor a dump give the same"
            work.repair.lost.append(Lost(f"{prefix}/{kind.arrays[-1]}", reason))
    stored = work.objects.get_many([f"{prefix}/{path}" for path in mended])
    for path, data in mended.items():
        if stored.get(f"{prefix}/{path}") != data:  # one table of several may be whole
            work.put(f"{prefix}/{path}", data, origin)
    return Step(work.objects, with_tables(step.commit, mended), step.tables)


_FROM_INDEX = "the index"
#: Totals of the record that follow from the index; the others are not checked.
_CHECKED_TOTALS = ("tensors", "nan_count", "pos_inf_count", "neg_inf_count")


def mend_findings(work: StepWork, step: Step) -> Step:
    """Return the step with whole findings: evaluated again, by the rules of today if they changed.

    Raises:
        Unmendable: the findings are damaged, and no rules are given to make them again.
    """
    try:
        findings_of(step)
    except DamagedStore as exc:
        rules, summary = work.dumps.rules, step.commit.summary
        if rules is None or work.key.step is None:
            raise Unmendable(f"{step.commit.prefix}/{findings.GROUP}", exc.message) from exc
        sketches = None
        with suppress(DamagedStore):
            sketches = read_sketches(step)
        result = evaluate(rules, step.tables, work.key, sketches)
        documents, chunks = findings.encode(rules.definitions, result)
        origin = f"{_FROM_INDEX}, by the rules of the commit"
        committed = step.commit
        if rules.digest != summary.rules:
            origin = f"{_FROM_INDEX}, by the rules of today"
            nodes = {
                path: node
                for path, node in committed.nodes.items()
                if path.partition("/")[0] != findings.GROUP
            }
            for path, document in documents.items():
                work.put(f"{committed.prefix}/{path}/{LEAF}", metadata.encode(document), origin)
            committed = _with_totals(
                committed,
                {**nodes, **documents},
                rules=result.rules,
                findings=dict(result.totals),
                severities=result.severities,
                failed_rules=dict(result.failed),
            )
        for path, data in chunks.items():
            if work.objects.get(f"{committed.prefix}/{path}") != data:
                work.put(f"{committed.prefix}/{path}", data, origin)
        return Step(work.objects, with_tables(committed, chunks), step.tables)
    return step


def mend_totals(work: StepWork, step: Step) -> Step:
    """Return the step with totals that are those of its rows."""
    counts, summary = count_rows(step.tables), step.commit.summary
    if all(getattr(summary, name) == counts[name] for name in _CHECKED_TOTALS):
        return step
    work.mended(work.leaf_path, _FROM_INDEX)
    return Step(work.objects, _with_totals(step.commit, step.commit.nodes, **counts), step.tables)


def _with_totals(committed: Commit, nodes: Mapping[str, metadata.Document], **totals: Any) -> Commit:
    """Return a commit with other nodes and other totals."""
    summary = replace(committed.summary, **totals)
    return _with_record(committed, structs.replace(committed.record, summary=totals_of(summary)), nodes)


def with_tables(committed: Commit, chunks: Mapping[str, bytes]) -> Commit:
    """Return a commit that lists these chunks of tables; as it is if it does, or if it lists none.

    What is computed again on another machine may differ in the last digits, or in its compression.
    """
    listed = committed.record.checksums
    changed = {**listed, **checksums_of(chunks)}
    if not listed or changed == listed:
        return committed
    record = structs.replace(committed.record, checksums=changed)
    return _with_record(committed, record, committed.nodes)


def _with_record(committed: Commit, record: CommitRecord, nodes: Mapping[str, metadata.Document]) -> Commit:
    leaf = encode_leaf(record, nodes)
    return commit.parse(leaf, committed.key)


_FROM_COMMIT = "the commit"


def mend_nodes(work: StepWork, committed: Commit) -> None:
    """Write the metadata of nodes again that are not as the commit has them."""
    names = {f"{committed.prefix}/{path}/{LEAF}".replace("//", "/"): path for path in committed.nodes}
    documents = {name: committed.nodes[path] for name, path in names.items()}
    documents |= {f"{path}/{LEAF}": pooled.node for path, pooled in committed.record.pool.items()}
    contents = work.objects.get_many(list(documents))
    for name, node in documents.items():
        document = metadata.encode(node)
        if contents.get(name) != document:
            work.put(name, document, _FROM_COMMIT)


def tables_of(work: StepWork, committed: Commit, suspects: Mapping[str, bool] = NO_SUSPECTS) -> Step | None:
    """Return the step with its index, of which damaged tables are written again.

    Args:
        work: the repair of the step.
        committed: its commit.
        suspects: tables that contradict payloads although they can be decoded; see `doubtful_tables`.

    Returns:
        None if the dump gave a new generation, which is committed; or if nothing tells whether suspects are
        wrong.

    Raises:
        Unmendable: a table is damaged, and nothing is known that it can be made from.
    """
    try:
        mended = mend_tables(work.objects, committed, lambda: work.remade(committed), suspects)
    except DamagedStore as exc:
        if suspects or _commit_new_generation(work, committed):
            return None
        raise Unmendable(
            f"{committed.prefix}/index",
            f"{exc.message}; the dump that has the step was not found: name it with --dump, or remove "
            f"the step with `dump-ingest gc {shlex.quote(work.objects.address.url)} --rank {work.key.rank} "
            f"--step {work.key.step}`",
        ) from exc
    for path, data in mended.chunks.items():
        work.put(f"{committed.prefix}/{path}", data, mended.origin)
    return Step(work.objects, with_tables(committed, mended.chunks), mended.tables)


def _commit_new_generation(work: StepWork, committed: Commit) -> bool:
    """Commit what the dump has of the step, if it is as much as the commit says; return whether it is."""
    scope = sketch_tables.marginals_in(committed.nodes)
    remade = work.dumps.remake(work.key, None, committed.record, sketches=scope)
    as_much = ("raw_bytes", "tensors", "files", "statistics_only", "overflows")
    if remade is None or any(
        getattr(remade.assembled.summary, name) != getattr(committed.summary, name) for name in as_much
    ):
        return False
    work.repair.generation = remade.plan.fingerprint
    work.mended(committed.prefix, f"{remade.origin}, as a new generation")
    if work.policy.apply:
        plan = replace(remade.plan, replaces=committed.fingerprint)
        publish(plan, [convert(job) for job in plan.jobs])
    return True
