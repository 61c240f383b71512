"""Metadata, tables, sketches and findings of one step: which are damaged, and what they can be made from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from ingest.reader.catalog import Damage
from ingest.reader.step import Step
from ingest.reader.step_tables import findings_of, read_sketches
from ingest.reader.verifying import WRONG_SKETCHES
from ingest.repairing.work import Lost, Remade, StepWork, Unmendable
from workers.arrays.digest import new_digest
from workers.arrays.marginals import MarginalScope
from workers.errors import DamagedStore, TensorsRemoved
from workers.model import MIB, StepKey
from workers.rules.step import evaluate
from workers.store import commit, findings, metadata, tables
from workers.store.commit import Commit
from workers.store.objects import ObjectStore
from workers.store.record import LEAF, encode_leaf, totals_of
from workers.store.sketches import ARRAYS_OF_MARGINALS, SKETCH_KINDS, SKETCH_PATHS, SketchKind, marginals_in
from workers.store.step import RecomputedStatistics
from workers.store.tables import Tables, checksums_of
from workers.tasks.convert import convert
from workers.tasks.publish import count_rows, publish
from workers.tasks.sketch import sketches_of

_PIECE_NBYTES = 16 * MIB
DIGEST_CHUNK, STATISTICS_CHUNK = "index/digest/c/0/0", "statistics/c/0/0"
RECOMPUTED_FROM, _FROM_INDEX = "the payloads, computed again", "the index"
#: Totals of the record that follow from the index; the others are not checked.
_CHECKED_TOTALS = ("tensors", "nan_count", "pos_inf_count", "neg_inf_count")


def mend_nodes(work: StepWork, committed: Commit) -> None:
    """Write the metadata of nodes again that are not as the commit has them."""
    documents = {
        f"{committed.prefix}/{path}/{LEAF}".replace("//", "/"): node for path, node in committed.nodes.items()
    }
    documents |= {f"{path}/{LEAF}": pooled.node for path, pooled in committed.record.pool.items()}
    work.put_changed({name: metadata.encode(node) for name, node in documents.items()}, "the commit")


def tables_of(work: StepWork, committed: Commit) -> Step | None:
    """Return the step with its index, of which damaged tables are written again.

    Returns:
        None if the dump gave a new generation, which is committed.

    Raises:
        Unmendable: a table is damaged, and nothing is known that it can be made from.
    """
    prefix, nodes, record = committed.prefix, committed.packed_nodes, committed.record
    contents = work.objects.get_many([f"{prefix}/{key}" for key in tables.chunk_keys()])
    stored = {key[len(prefix) + 1 :]: data for key, data in contents.items()}
    arrays, damaged = tables.decode_each(nodes, stored, str(committed.key), record.checksums)
    with suppress(DamagedStore):
        return Step(work.objects, committed, _checked(committed, stored, record.checksums))
    try:
        made, built, origin = _made_again(work, committed, stored, arrays, damaged)
    except DamagedStore as exc:
        if _commit_new_generation(work, committed):
            return None
        raise Unmendable(
            f"{prefix}/index",
            f"{exc.message}; the dump that has the step was not found: name it with --dump, or remove "
            f"the step with `dump-ingest gc {shlex.quote(work.objects.address.url)} --rank {work.key.rank} "
            f"--step {work.key.step}`",
        ) from exc
    for path, data in made.items():
        work.put(f"{prefix}/{path}", data, origin)
    return Step(work.objects, with_tables(committed, made), built)


def _made_again(
    work: StepWork,
    committed: Commit,
    stored: Mapping[str, bytes],
    arrays: Mapping[str, npt.NDArray[Any]],
    damaged: Mapping[str, str],
) -> tuple[dict[str, bytes], Tables, str]:
    """Return the damaged chunks as they are to be, all tables, and where they come from.

    Raises:
        DamagedStore: nothing is known that they can be made from.
    """
    if (remade := work.from_dump(committed)) is not None:
        made = _from_dump(remade, committed, stored, damaged)
        checksums = {**committed.record.checksums, **checksums_of(made)}
        return made, _checked(committed, {**stored, **made}, checksums), remade.origin
    for key, problem in damaged.items():
        if key not in (DIGEST_CHUNK, STATISTICS_CHUNK):
            raise DamagedStore(problem)
    built = _recomputed(work.objects, committed, arrays, damaged)
    made = {key: chunk for key, chunk in tables.encode(built)[1].items() if key in damaged}
    return made, built, RECOMPUTED_FROM


def _checked(committed: Commit, chunks: Mapping[str, bytes], checksums: Mapping[str, int]) -> Tables:
    where, nodes = str(committed.key), committed.packed_nodes
    decoded = tables.decode(nodes, dict(chunks), where, checksums)
    return tables.check(decoded, nodes, where, has_tensors=committed.without_tensors is None)


def _from_dump(
    remade: Remade, committed: Commit, stored: Mapping[str, bytes], damaged: Collection[str]
) -> dict[str, bytes]:
    """Return the damaged tables as the dump gives them; or all that differ, if each can be decoded."""
    made = {key: remade.assembled.chunks[key] for key in tables.chunk_keys()}
    chosen = {key: made[key] for key in damaged or [key for key in made if stored.get(key) != made[key]]}
    for key in chosen:
        node = key.removesuffix("/c/0/0")
        if remade.assembled.nodes[node] != committed.nodes.get(node):
            raise DamagedStore(f"{committed.key}: {node} has another shape in the dump than in the commit")
    return chosen


def _recomputed(
    objects: ObjectStore,
    committed: Commit,
    arrays: Mapping[str, npt.NDArray[Any]],
    damaged: Collection[str],
) -> Tables:
    """Compute damaged digests and statistics again.

    Raises:
        DamagedStore: a payload is damaged, or statistics came from a table of the dump.
    """
    rows, where = len(arrays["labels"]), str(committed.key)
    known: dict[str, Any] = {
        "digest": tables.empty_digests(rows),
        "statistics": tables.empty_statistics(rows),
        **arrays,
    }
    built = Tables(**known)
    tables.check(built, committed.packed_nodes, where, has_tensors=committed.without_tensors is None)
    given = set(built.label("statistics_from")) - {"", "computed"}
    if STATISTICS_CHUNK in damaged and given:
        raise DamagedStore(f"{where}: its statistics come from {min(given)}, which is not decoded here")
    step = Step(objects, committed, built)
    digest, statistics = built.digest.copy(), built.statistics.copy()
    placed = np.flatnonzero(built.number("offset") >= 0).tolist()
    for row, pieces in step.payloads([row for row in placed if step.has_payload(row)], _PIECE_NBYTES):
        running, recomputed = new_digest(), RecomputedStatistics(step, row)
        for piece in pieces:
            running.update(piece)
            recomputed.update(piece)
        if DIGEST_CHUNK in damaged:
            digest[row] = np.frombuffer(running.digest(), np.uint8)
        if STATISTICS_CHUNK in damaged and (values := recomputed.result()) is not None:
            statistics[row] = values
    return Tables(built.labels, built.numbers, built.shape, digest, statistics)


def _commit_new_generation(work: StepWork, committed: Commit) -> bool:
    """Commit what the dump has of the step, if it is as much as the commit says; return whether it is."""
    scope = marginals_in(committed.nodes)
    remade = work.dumps.remake(work.key, None, committed.record, _always(scope))
    as_much = ("raw_bytes", "tensors", "files", "statistics_only", "overflows")
    if remade is None or any(
        getattr(remade.assembled.summary, name) != getattr(committed.summary, name) for name in as_much
    ):
        return False
    work.repair.generation = remade.plan.fingerprint
    work.mended(committed.prefix, f"{remade.origin}, as a new generation")
    if work.apply:
        plan = replace(remade.plan, replaces=committed.fingerprint)
        publish(plan, [convert(job) for job in plan.jobs])
    return True


def stored_marginals(objects: ObjectStore, key: StepKey, generation: str) -> MarginalScope | None:
    """Return the tensors that have marginals in a generation, by its objects; None if it has no sketches."""
    leaves = {f"{key.path}/{generation}/{path}/{LEAF}": path for path in sorted(SKETCH_PATHS)}
    return marginals_in({leaves[leaf] for leaf in objects.get_many(list(leaves))})


def _always(scope: MarginalScope | None) -> Callable[[str], MarginalScope | None]:
    return lambda _: scope


def _made_sketches(
    work: StepWork, step: Step, damaged: Sequence[SketchKind]
) -> tuple[Mapping[str, metadata.Document], Mapping[str, bytes], str]:
    """Return metadata and chunks of these kinds of sketches, and where they come from."""
    of_kind = ARRAYS_OF_MARGINALS
    with suppress(DamagedStore, TensorsRemoved):
        sketches = sketches_of(step, [arrays for kind, arrays in of_kind.items() if kind in damaged])
        return sketches.documents, sketches.chunks, RECOMPUTED_FROM
    documents: dict[str, metadata.Document] = {}
    chunks: dict[str, bytes] = {}
    origin = ""
    names, record = [step.commit.fingerprint], step.commit.record
    for scope in [of_kind[kind].scope for kind in damaged if kind in of_kind] or [MarginalScope.NONE]:
        remade = work.dumps.remake(work.key, names, record, _always(scope))
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
        for kind in SKETCH_KINDS
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
    # One table of several may be whole.
    work.put_changed({f"{prefix}/{path}": data for path, data in mended.items()}, origin)
    return Step(work.objects, with_tables(step.commit, mended), step.tables)


def mend_findings(work: StepWork, step: Step) -> Step:
    """Return the step with whole findings: evaluated again, by the rules of today if they changed.

    Raises:
        Unmendable: the findings are damaged, and belong to no step.
    """
    try:
        findings_of(step)
    except DamagedStore as exc:
        rules, summary = work.dumps.rules, step.commit.summary
        if work.key.step is None:
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
        work.put_changed({f"{committed.prefix}/{path}": data for path, data in chunks.items()}, origin)
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
    record = structs.replace(committed.record, summary=totals_of(summary))
    return commit.parse(encode_leaf(record, nodes), committed.key)


def with_tables(committed: Commit, chunks: Mapping[str, bytes]) -> Commit:
    """Return a commit that lists these chunks of tables; as it is if it does, or if it lists none.

    What is computed again on another machine may differ in the last digits, or in its compression.
    """
    listed = committed.record.checksums
    changed = {**listed, **checksums_of(chunks)}
    if not listed or changed == listed:
        return committed
    record = structs.replace(committed.record, checksums=changed)
    return commit.parse(encode_leaf(record, committed.nodes), committed.key)
