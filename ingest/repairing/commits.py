"""The commit of one step: as it is, or made again from the dump or from the objects of its generation."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from msgspec import structs

from ingest.reader.cubes.commit_copies import copies_of
from ingest.reader.step import Step
from ingest.reader.verifying.verify import Verified, verify_step
from ingest.repairing.tables import stored_marginals
from ingest.repairing.work import StepWork, Unmendable
from workers.errors import DamagedStore, SourceChanged
from workers.model import StepKey
from workers.store import commit, findings, metadata, tables
from workers.store.commit import Commit
from workers.store.model import CommitSummary, Finding, Origin, RowKind
from workers.store.objects import ObjectStore
from workers.store.packed import pool
from workers.store.packed.pool import GENERATION, PooledArray
from workers.store.record import (
    LEAF,
    decode_record,
    encode_leaf,
    new_record,
    without_checksum,
)
from workers.store.table_codec import checksums_of
from workers.store.tables import Tables
from workers.tasks.publish import MAX_PROBLEMS_IN_RECORD, count_rows

_FINGERPRINT_IN_TEXT = re.compile(rb'"fingerprint": ?"([0-9a-f]{32}(?:-[0-9a-f]{16})?)"')
_NOT_KNOWN = "the commit was damaged and made again from its objects: files that were skipped are not known"


def list_generations(objects: ObjectStore, key: StepKey) -> list[str]:
    """Return the generations of which a step has any object."""
    return [name for name in objects.children(key.path) if GENERATION.fullmatch(name)]


def name_in(leaf: bytes) -> str:
    """Return the generation that a damaged commit still names; "" if it names none."""
    match = _FINGERPRINT_IN_TEXT.search(leaf)
    return match[1].decode() if match else ""


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
    nodes = _read_nodes(objects, prefix, [name for name in sizes if name.rpartition("/")[2] == LEAF])
    in_chunks = {name: nbytes for name, nbytes in sizes.items() if "/c/" in name}
    stored = {name: size for name, size in in_chunks.items() if name.startswith(("tensors/", "files/"))}
    without = None
    with suppress(DamagedStore):  # why it has no tensors, if what is left of the commit says so
        without = decode_record(without_checksum(leaf), key).without_tensors
    chunks = _read_chunks(objects, prefix, in_chunks.keys() - stored.keys())
    built, pooled = _read_index(objects, key, chunks, nodes, has_tensors=without is None)
    was_complete = b'"status":"complete"' in leaf
    totals = _totals_of(built)
    rules, found = _read_findings(objects, key, prefix, nodes)
    problems = zip(built.label("source"), built.label("problem"), strict=True)
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
        problems=(
            *(() if was_complete else (_NOT_KNOWN,)),
            *(f"{source}: {problem}" for source, problem in problems if problem),
        )[:MAX_PROBLEMS_IN_RECORD],
        pool=pooled,
        checksums=checksums_of(chunks),
    )
    return commit.parse(encode_leaf(record, nodes), key)


def _read_chunks(objects: ObjectStore, prefix: str, names: Iterable[str]) -> dict[str, bytes]:
    """Return chunks of tables, by path in the generation."""
    read = objects.get_many([f"{prefix}/{name}" for name in names])
    return {name[len(prefix) + 1 :]: data for name, data in read.items()}


def _read_index(
    objects: ObjectStore,
    key: StepKey,
    chunks: dict[str, bytes],
    nodes: dict[str, metadata.Document],
    *,
    has_tensors: bool,
) -> tuple[Tables, dict[str, PooledArray]]:
    """Return the checked index, and the arrays in the pool that it refers to."""
    decoded = tables.decode(nodes, chunks, str(key))
    pooled = _read_pooled(objects, key, decoded) if has_tensors else {}
    all_nodes = {**nodes, **{path: array.node for path, array in pooled.items()}}
    return tables.check(decoded, all_nodes, str(key), has_tensors=has_tensors), pooled


def _totals_of(built: Tables) -> dict[str, Any]:
    """Return the totals of a step that follow from the rows of its index."""
    is_tensor = (built.label("kind") == RowKind.TENSOR.value) & (built.number("size") > 0)
    places = set(
        zip(built.label("array")[is_tensor], built.number("offset")[is_tensor].tolist(), strict=True)
    )
    source_sizes = dict(zip(built.label("source"), built.number("source_size").tolist(), strict=True))
    return {
        "duplicates": int(np.count_nonzero(is_tensor)) - len(places),
        "raw_bytes": sum(source_sizes.values()),
        **count_rows(built),
    }


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


def _read_pooled(objects: ObjectStore, key: StepKey, decoded: Tables) -> dict[str, PooledArray]:
    """Return the arrays in the pool that an index refers to, as they are in the store."""
    paths = sorted(path for path in set(decoded.label("array")) if pool.is_pooled(path))
    for path in paths:
        pool.refuse_foreign(key, path)
    nodes = _read_nodes(objects, "", [f"{path}/{LEAF}" for path in paths], ())
    sizes = {path: objects.sizes(path).get(pool.SHARD, 0) for path in paths}
    return {path: PooledArray(sizes[path], nodes[path]) for path in paths}


def _read_findings(
    objects: ObjectStore, key: StepKey, prefix: str, nodes: dict[str, metadata.Document]
) -> tuple[str, list[Finding]]:
    """Return the rule set that was evaluated and what it found; "" for none that is known."""
    names = sorted({path.split("/")[1] for path in nodes if path.startswith(f"{findings.GROUP}/")})
    if not names:
        return "", []
    keys = findings.chunk_keys(names[0], nodes)
    return names[0], findings.decode(names[0], key, nodes, _read_chunks(objects, prefix, keys))


def commit_of(work: StepWork, leaf: bytes) -> Commit:
    """Return the commit that a leaf holds, made again if it is damaged. Writes nothing.

    Raises:
        Unmendable: no copy, no dump and no whole generation of the step is there.
    """
    try:
        return commit.parse(leaf, work.key)
    except DamagedStore as exc:
        made = (
            _commit_from_view(work, leaf) or _commit_from_dump(work, leaf) or _commit_from_objects(work, leaf)
        )
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
    if made == leaf or work.repair.generation or not work.policy.apply:
        return
    if work.objects.get(work.leaf_path) != leaf:
        raise SourceChanged(f"{work.key} was committed again meanwhile")
    # What the damaged one was is not known.
    commit.replace_leaf(work.objects, work.key, made, committed.fingerprint, ())


def _commit_from_view(work: StepWork, leaf: bytes) -> Commit | None:
    """Return the copy in the consolidated view: byte for byte what was committed."""
    copy = copies_of(work.objects, [work.key]).get(work.key)
    if copy is None or name_in(leaf) not in ("", copy.fingerprint):
        return None
    work.mended(work.leaf_path, "its copy in the consolidated view")
    return copy


def _commit_from_dump(work: StepWork, leaf: bytes) -> Commit | None:
    names = list_generations(work.objects, work.key)
    named = name_in(leaf)
    remade = work.dumps.remake(
        work.key,
        [named] if named else names or None,
        None,
        sketches=lambda name: stored_marginals(work.objects, work.key, name),
    )
    if remade is None:
        return None
    work.remember(remade)
    assembled = remade.assembled
    previous = tuple(name for name in names if name != assembled.summary.fingerprint)
    record = structs.replace(assembled.record, previous=previous)
    work.mended(work.leaf_path, remade.origin)
    return commit.parse(encode_leaf(record, assembled.nodes), work.key)


def _commit_from_objects(work: StepWork, leaf: bytes) -> Commit | None:
    named = name_in(leaf)
    names = list_generations(work.objects, work.key)
    # Where another step of the rank comes from.
    steps = work.catalog.select(rank=work.key.rank, damages=[])
    origin = steps[0].commit.record.source if steps else None
    whole = []
    for name in [named] if named in names else names:
        try:
            made = commit_from_objects(work.objects, work.key, name, leaf=leaf, origin=origin)
        except DamagedStore:
            continue
        if name == named or not list(verify_step(Step(work.objects, made), Verified())):
            whole.append(made)
    if len(whole) != 1:
        return None
    work.mended(work.leaf_path, "the objects of its generation")
    return whole[0]
