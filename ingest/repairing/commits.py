"""The commit of one step: as it is, or made again from the dump or from the objects of its generation.

So are its metadata, tables, sketches and findings: which are damaged, and what they can be made from.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from ingest.reader.catalog import Damage
from ingest.reader.cube_reader import copies_of
from ingest.reader.step import Step
from ingest.reader.step_tables import findings_of, read_sketches
from ingest.reader.verifying import CHECKED_TOTALS, WRONG_SKETCHES, Verified, verify_step
from ingest.repairing.work import Lost, Remade, StepWork, Unmendable
from workers.arrays.digest import new_digest
from workers.arrays.marginals import MarginalScope
from workers.errors import DamagedStore, SourceChanged, TensorsRemoved
from workers.model import MIB, StepKey
from workers.rules.step import evaluate
from workers.store import commit, findings, metadata, tables
from workers.store.commit import Commit
from workers.store.model import CommitSummary, Origin, RowKind
from workers.store.objects import ObjectStore
from workers.store.packed import pool
from workers.store.packed.pool import GENERATION, PooledArray
from workers.store.record import LEAF, decode_record, encode_leaf, new_record, totals_of, without_checksum
from workers.store.sketches import (
    ARRAYS_OF_MARGINALS,
    HISTOGRAMS,
    SKETCH_KINDS,
    SKETCH_PATHS,
    SketchKind,
    marginals_in,
    reported_rows,
)
from workers.store.step import RecomputedStatistics
from workers.store.tables import Tables, checksums_of
from workers.tasks.consolidate import sketches_of
from workers.tasks.convert import convert
from workers.tasks.publish import MAX_PROBLEMS_IN_RECORD, count_rows, publish

_PIECE_NBYTES = 16 * MIB
DIGEST_CHUNK, STATISTICS_CHUNK = "index/digest/c/0/0", "statistics/c/0/0"
RECOMPUTED_FROM, _FROM_INDEX = "the payloads, computed again", "the index"


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
        made = _tables_from_dump(remade, committed, stored, damaged)
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


def _tables_from_dump(
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
    of_kind = ARRAYS_OF_MARGINALS
    with suppress(DamagedStore, TensorsRemoved):
        sketches = sketches_of(step, [arrays for kind, arrays in of_kind.items() if kind in damaged])
        # Histograms of what the dump has statistics of alone come from there.
        if HISTOGRAMS not in damaged or not reported_rows(step.tables):
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
    if all(getattr(summary, name) == counts[name] for name in CHECKED_TOTALS):
        return step
    work.mended(work.leaf_path, _FROM_INDEX)
    return Step(work.objects, _with_totals(step.commit, step.commit.nodes, **counts), step.tables)


def _with_totals(committed: Commit, nodes: Mapping[str, metadata.Document], **totals: Any) -> Commit:
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


_FINGERPRINT_IN_TEXT = re.compile(rb'"fingerprint": ?"([0-9a-f]{32}(?:-[0-9a-f]{16})?)"')
_NOT_KNOWN = "the commit was damaged and made again from its objects: files that were skipped are not known"


def list_generations(objects: ObjectStore, key: StepKey) -> list[str]:
    """Return the generations of which a step has any object."""
    return [name for name in objects.children(key.path) if GENERATION.fullmatch(name)]


def commit_from_objects(
    objects: ObjectStore, key: StepKey, fingerprint: str, *, leaf: bytes = b"", origin: Origin | None = None
) -> Commit:
    """Return the commit of a generation as its objects give it. Writes nothing.

    Totals, networks and graphs follow from the index. What the index does not have is taken from `leaf`, or
    the step is `partial` and says so.

    Args:
        objects: the store.
        key: the step.
        fingerprint: the generation.
        leaf: what is left of the commit.
        origin: where the step comes from, if it is known.

    Raises:
        DamagedStore: its metadata or its index is damaged.
    """
    prefix = f"{key.path}/{fingerprint}"
    sizes = objects.sizes(prefix)
    nodes = _read_nodes(objects, prefix, [name for name in sizes if name.endswith(LEAF)])
    in_chunks = {name: nbytes for name, nbytes in sizes.items() if "/c/" in name}
    stored = {name: size for name, size in in_chunks.items() if name.startswith(("tensors/", "files/"))}
    without = None
    with suppress(DamagedStore):  # why it has no tensors, if what is left of the commit says so
        without = decode_record(without_checksum(leaf), key).without_tensors
    read = objects.get_many([f"{prefix}/{name}" for name in in_chunks.keys() - stored.keys()])
    chunks = {name[len(prefix) + 1 :]: data for name, data in read.items()}
    built, pooled = _read_index(objects, key, chunks, nodes, has_tensors=without is None)
    was_complete = b'"status":"complete"' in leaf
    totals = _totals_of(built)
    # The rule set that was evaluated, if one is known, and what it found.
    rules = min((path.split("/")[1] for path in nodes if path.startswith(f"{findings.GROUP}/")), default="")
    found = findings.decode(rules, key, nodes, chunks) if rules else []
    summary = CommitSummary(
        key=key,
        fingerprint=fingerprint,
        status="complete" if was_complete and not totals["quarantined"] else "partial",
        stored_bytes=sum(in_chunks.values()) + sum(array.nbytes for array in pooled.values()),
        objects=len(sizes) + 2 * len(pooled) + 1,
        rules=rules,
        findings=dict(Counter(finding.rule for finding in found)),
        severities={finding.rule: finding.severity for finding in found},
        **totals,
    )
    record = new_record(
        summary,
        origin=origin or Origin("", "", ""),
        stored=stored,
        previous=[name for name in list_generations(objects, key) if name != fingerprint],
        without_tensors=without,
        nets=tuple(sorted(set(built.label("net")) - {""})),
        graphs=tuple(sorted(set(built.label("graph")) - {""})),
        problems=_problems_of(built, is_known=was_complete),
        pool=pooled,
        checksums=checksums_of(chunks),
    )
    return commit.parse(encode_leaf(record, nodes), key)


def _totals_of(built: Tables) -> dict[str, Any]:
    is_tensor = (built.label("kind") == RowKind.TENSOR.value) & (built.number("size") > 0)
    arrays, offsets = built.label("array")[is_tensor], built.number("offset")[is_tensor].tolist()
    source_sizes = dict(zip(built.label("source"), built.number("source_size").tolist(), strict=True))
    return {
        "duplicates": len(offsets) - len(set(zip(arrays, offsets, strict=True))),
        "raw_bytes": sum(source_sizes.values()),
        **count_rows(built),
    }


def _problems_of(built: Tables, *, is_known: bool) -> tuple[str, ...]:
    rows = zip(built.label("source"), built.label("problem"), strict=True)
    problems = [f"{source}: {problem}" for source, problem in rows if problem]
    return tuple(problems if is_known else [_NOT_KNOWN, *problems])[:MAX_PROBLEMS_IN_RECORD]


def _read_nodes(
    objects: ObjectStore, prefix: str, names: Sequence[str], groups: Sequence[str] = ("", "index")
) -> dict[str, metadata.Document]:
    nodes: dict[str, metadata.Document] = {}
    keys = {name: f"{prefix}/{name}".removeprefix("/") for name in names}
    contents = objects.get_many(list(keys.values()))
    for name, key in keys.items():
        path = name.rpartition("/")[0]
        try:
            document = json.loads(contents[key])
        except (KeyError, ValueError) as exc:
            raise DamagedStore(f"{key} is damaged: {exc!r:.200}") from exc
        if not isinstance(document, dict) or document.get("node_type") not in ("array", "group"):
            raise DamagedStore(f"{key} is not the metadata of a node")
        nodes[path] = document
    if not {*groups} <= nodes.keys():
        raise DamagedStore(f"{prefix}: metadata of its groups is missing")
    return nodes


def _read_index(
    objects: ObjectStore,
    key: StepKey,
    chunks: dict[str, bytes],
    nodes: dict[str, metadata.Document],
    *,
    has_tensors: bool,
) -> tuple[Tables, dict[str, PooledArray]]:
    decoded = tables.decode(nodes, chunks, str(key))
    paths = sorted(path for path in set(decoded.label("array")) if has_tensors and pool.is_pooled(path))
    for path in paths:
        pool.refuse_foreign(key, path)
    pooled_nodes = _read_nodes(objects, "", [f"{path}/{LEAF}" for path in paths], ())
    checked = tables.check(decoded, {**nodes, **pooled_nodes}, str(key), has_tensors=has_tensors)
    sizes = {path: objects.sizes(path).get(pool.SHARD, 0) for path in paths}
    return checked, {path: PooledArray(sizes[path], pooled_nodes[path]) for path in paths}


def commit_of(work: StepWork, leaf: bytes) -> Commit:
    """Return the commit that a leaf holds, made again if it is damaged. Writes nothing.

    Raises:
        Unmendable: no copy, no dump and no whole generation of the step is there.
    """
    try:
        return commit.parse(leaf, work.key)
    except DamagedStore as exc:
        match = _FINGERPRINT_IN_TEXT.search(leaf)
        named, names = match[1].decode() if match else "", list_generations(work.objects, work.key)
        # Byte for byte what was committed.
        copy = copies_of(work.objects, [work.key]).get(work.key)
        if copy is not None and named in ("", copy.fingerprint):
            work.mended(work.leaf_path, "its copy in the consolidated view")
            return copy
        made = _from_dump(work, named, names) or _from_objects(work, leaf, named, names)
        if made is None:
            raise Unmendable(
                work.leaf_path,
                f"{exc.message}; no dump and no whole generation of the step was found: "
                "name a dump with --dump, or ingest the step again",
            ) from exc
        return made


def write_commit(work: StepWork, leaf: bytes, committed: Commit) -> None:
    """Write the commit if it was made again.

    Raises:
        SourceChanged: somebody else committed the step meanwhile.
    """
    made = committed.data
    if made == leaf or work.repair.generation or not work.apply:
        return
    if work.objects.get(work.leaf_path) != leaf:
        raise SourceChanged(f"{work.key} was committed again meanwhile")
    # What the damaged one was is not known.
    commit.replace_leaf(work.objects, work.key, made, committed.fingerprint, ())


def _from_dump(work: StepWork, named: str, names: Sequence[str]) -> Commit | None:
    wanted = [named] if named else names or None
    remade = work.dumps.remake(
        work.key, wanted, None, lambda name: stored_marginals(work.objects, work.key, name)
    )
    if remade is None:
        return None
    work.remade.append(remade)
    assembled = remade.assembled
    previous = tuple(name for name in names if name != assembled.summary.fingerprint)
    record = structs.replace(assembled.record, previous=previous)
    work.mended(work.leaf_path, remade.origin)
    return commit.parse(encode_leaf(record, assembled.nodes), work.key)


def _from_objects(work: StepWork, leaf: bytes, named: str, names: Sequence[str]) -> Commit | None:
    # Where another step of the rank comes from.
    steps = work.catalog.select(rank=work.key.rank, damages=[])
    origin = steps[0].commit.record.source if steps else None
    whole = []
    for name in [named] if named in names else names:
        with suppress(DamagedStore):
            made = commit_from_objects(work.objects, work.key, name, leaf=leaf, origin=origin)
            if name == named or not list(verify_step(Step(work.objects, made), Verified())):
                whole.append(made)
    if len(whole) != 1:
        return None
    work.mended(work.leaf_path, "the objects of its generation")
    return whole[0]
