"""Metadata and tables of one step: written again, or committed from the dump as a new generation."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace

from ingest.reader.step import Step
from ingest.repairing.from_index import with_tables
from ingest.repairing.remaking import Remade
from ingest.repairing.tables import NO_SUSPECTS, mend_tables
from ingest.repairing.work import StepWork, Unmendable
from workers.errors import DamagedStore
from workers.store import metadata
from workers.store.commit import Commit
from workers.store.record import LEAF
from workers.store.sketches import sketch_tables
from workers.tasks.convert import convert
from workers.tasks.publish import publish

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
        if suspects:
            return None
        if _commit_new_generation(work, committed):
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
    remade = work.dumps.remake(work.key, None, committed.record, sketches=lambda _: scope)
    if remade is None or not _is_as_much(remade, committed):
        return False
    work.repair.generation = remade.plan.fingerprint
    work.mended(committed.prefix, f"{remade.origin}, as a new generation")
    if work.policy.apply:
        plan = replace(remade.plan, replaces=committed.fingerprint)
        publish(plan, [convert(job) for job in plan.jobs])
    return True


def _is_as_much(remade: Remade, committed: Commit) -> bool:
    """Return whether what the dump has of a step counts as many bytes, tensors and files as its commit."""
    made, was = remade.assembled.summary, committed.summary
    names = ("raw_bytes", "tensors", "files", "statistics_only", "overflows")
    return all(getattr(made, name) == getattr(was, name) for name in names)
