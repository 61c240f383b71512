"""A generation that names what is lost: everything else of the step is kept and committed as `partial`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import xxhash

from ingest.reader.step import Step
from workers.store import commit, metadata, tables
from workers.store.packed.pool_packer import PackedInPool
from workers.store.record import StepContents
from workers.store.sketches import sketch_tables
from workers.store.table_checksums import checksums_of
from workers.store.tables import LABELS, NUMBERS, Tables
from workers.tasks.publish import MAX_PROBLEMS_IN_RECORD, count_rows

#: What the label `problem` of a lost row begins with.
LOST = "lost"


def name_of_rest(fingerprint: str, lost: Collection[int]) -> str:
    """Return the name of the generation that is another one without the payloads of some rows."""
    text = f"{fingerprint}\nlost\n{' '.join(map(str, sorted(lost)))}\n"
    return xxhash.xxh3_128(text.encode()).hexdigest()


def commit_rest(
    step: Step,
    lost: Mapping[int, str],
    shard_of: Callable[[str], bytes | None],
    made_in_pool: Mapping[str, PackedInPool | None],
) -> str:
    """Commit a step again without the payloads that are lost, and return the name of the generation.

    Lost rows keep their labels, digests and statistics. Their offset is -1, and their label `problem` says
    why. The committed generation stays as it is until `gc` removes it.

    Args:
        step: the step, whose index is whole.
        lost: by row, why its payload is lost.
        shard_of: given the path of a shard in the generation, returns its bytes; None if all in it is lost.
        made_in_pool: the arrays in the pool that are damaged, by path: what takes the place of each, which is
            in the store; None if all in it is lost.

    Raises:
        SourceChanged: another generation was committed meanwhile.
        StoreError: the store refused.
    """
    committed, objects = step.commit, step.objects
    name = name_of_rest(committed.fingerprint, lost)
    prefix = f"{committed.key.path}/{name}"
    stored: dict[str, int] = {}
    for path in committed.record.stored:
        data = shard_of(path)
        if data is not None:
            objects.put(f"{prefix}/{path}", data)
            stored[path] = len(data)
    pooled = {path: array for path, array in committed.record.pool.items() if path not in made_in_pool}
    pooled |= {made.path: made.array for made in made_in_pool.values() if made is not None}
    built = _without(step.tables, lost, made_in_pool)
    documents, chunks = tables.encode(built)
    chunks |= _kept_tables(step)
    nodes = _nodes(step, documents, stored)
    summary = replace(
        committed.summary,
        fingerprint=name,
        status="partial" if lost else committed.summary.status,
        stored_bytes=sum(stored.values())
        + sum(map(len, chunks.values()))
        + sum(array.nbytes for array in pooled.values()),
        objects=len(stored) + len(chunks) + len(nodes) + 2 * len(pooled) + 1,
        **count_rows(built),
    )
    sources = built.label("source")
    problems = [f"{sources[row]}: {reason}" for row, reason in sorted(lost.items())]
    record = committed.record
    commit.write(
        objects,
        summary,
        origin=record.source,
        nodes=nodes,
        objects_to_write=chunks,
        contents=StepContents(
            record.nets,
            record.graphs,
            stored,
            (*problems, *record.problems)[:MAX_PROBLEMS_IN_RECORD],
            record.poison,
            built.has_views,
            pooled,
            checksums_of(chunks),
        ),
        without_tensors=record.without_tensors,
        replaces=committed.fingerprint,
    )
    return name


def _without(
    built: Tables, lost: Mapping[int, str], made_in_pool: Mapping[str, PackedInPool | None]
) -> Tables:
    numbers, labels = built.numbers.copy(), built.labels.copy()
    for path, made in made_in_pool.items():
        if made is not None:
            labels[built.label("array") == path, LABELS.index("array")] = made.path
    problem = LABELS.index("problem")
    for row, reason in lost.items():
        numbers[row, NUMBERS.index("offset")] = -1
        before = labels[row, problem]
        labels[row, problem] = f"{before}; {reason}" if before else reason
    return Tables(labels, numbers, built.shape, built.digest, built.statistics)


def _kept_tables(step: Step) -> dict[str, bytes]:
    """Return the chunks of findings and sketches, by path in the generation."""
    prefix = step.commit.prefix
    nodes = step.commit.nodes
    keys = [f"{path}/c/0/0" for path, node in nodes.items() if _is_of_findings(path, node)]
    keys += sketch_tables.chunk_keys(nodes)
    contents = step.objects.get_many([f"{prefix}/{key}" for key in keys])
    return {key[len(prefix) + 1 :]: data for key, data in contents.items()}


def _is_of_findings(path: str, node: metadata.Document) -> bool:
    return path.startswith("findings/") and node.get("node_type") == "array"


def _nodes(
    step: Step, documents: Mapping[str, metadata.Document], stored: Collection[str]
) -> dict[str, metadata.Document]:
    """Return the metadata of the generation; none of arrays of which nothing is left."""
    kept = {path.partition("/c/")[0] for path in stored}
    sizes, array = step.tables.number("size"), step.tables.label("array")
    nodes = {
        path: node
        for path, node in step.commit.nodes.items()
        if not _is_packed(path) or path in kept or not sizes[array == path].any()
    }
    if not any(path.startswith("tensors/") for path in nodes):
        nodes.pop("tensors", None)
    return {**nodes, **documents}


def _is_packed(path: str) -> bool:
    return path == "files" or path.startswith("tensors/")
