"""The commit of one step: as it is, or made again from the dump or from the objects of its generation."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec import structs

from ingest.reader.cube_reader import copies_of
from ingest.reader.step import Step
from ingest.reader.verifying import Verified, verify_step
from ingest.repairing.tables import stored_marginals
from ingest.repairing.work import StepWork, Unmendable
from workers.errors import DamagedStore, SourceChanged
from workers.model import StepKey
from workers.store import commit, findings, metadata, tables
from workers.store.commit import Commit
from workers.store.model import CommitSummary, Origin, RowKind
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
from workers.store.tables import Tables, checksums_of
from workers.tasks.publish import MAX_PROBLEMS_IN_RECORD, count_rows

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
    """Return the totals of a step that follow from the rows of its index."""
    is_tensor = (built.label("kind") == RowKind.TENSOR.value) & (built.number("size") > 0)
    arrays, offsets = built.label("array")[is_tensor], built.number("offset")[is_tensor].tolist()
    source_sizes = dict(zip(built.label("source"), built.number("source_size").tolist(), strict=True))
    return {
        "duplicates": len(offsets) - len(set(zip(arrays, offsets, strict=True))),
        "raw_bytes": sum(source_sizes.values()),
        **count_rows(built),
    }


def _problems_of(built: Tables, *, is_known: bool) -> tuple[str, ...]:
    """Return what was wrong with files of a step, unless that is not known."""
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
    """Return the checked index, and the arrays in the pool that it refers to, as they are in the store."""
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
    """Return the commit of the generation that the damaged one names, or of one that has objects."""
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
    """Return the commit of the one generation whose objects are whole, or that the damaged one names."""
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
