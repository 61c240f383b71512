"""The commit of one step: as it is, or made again from the dump or from the objects of its generation."""

from __future__ import annotations

from ingest.reader.cubes.commit_copies import copies_of
from ingest.reader.step import Step
from ingest.reader.verifying.verify import Verified, verify_step
from ingest.repairing.commits import commit_from_objects, list_generations, name_in
from ingest.repairing.sketches import stored_marginals
from ingest.repairing.work import StepWork, Unmendable
from workers.errors import DamagedStore, SourceChanged
from workers.store import commit
from workers.store.commit import Commit
from workers.store.model import Origin
from workers.store.record import new_record


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
    record = new_record(
        assembled.summary,
        origin=remade.plan.origin,
        contents=assembled.contents,
        without_tensors=assembled.without_tensors,
        previous=names,
    )
    name = assembled.summary.fingerprint
    work.mended(work.leaf_path, remade.origin)
    return commit.parse(commit.encode_leaf(record.to_dict(), name, assembled.nodes), work.key)


def _commit_from_objects(work: StepWork, leaf: bytes) -> Commit | None:
    named = name_in(leaf)
    names = list_generations(work.objects, work.key)
    whole = []
    for name in [named] if named in names else names:
        try:
            made = commit_from_objects(work.objects, work.key, name, leaf=leaf, origin=_origin_of_rank(work))
        except DamagedStore:
            continue
        if name == named or not list(verify_step(Step(work.objects, made), Verified())):
            whole.append(made)
    if len(whole) != 1:
        return None
    work.mended(work.leaf_path, "the objects of its generation")
    return whole[0]


def _origin_of_rank(work: StepWork) -> Origin | None:
    """Return where another step of the rank comes from."""
    steps = work.catalog.select(rank=work.key.rank, damages=[])
    return steps[0].commit.record.source if steps else None
