"""One step: finds what is damaged, decides what it is made from, and writes it.

What is byte for byte as it was is written under its own key. The commit goes last, in one PUT. Nothing that
is undamaged is written again.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingest.reader.catalog import Catalog
from ingest.reader.damage import Damage
from ingest.reader.step import Step
from ingest.reader.verifying.verify import Verified, verify, verify_step
from ingest.repairing.damaged_commit import commit_of, write_commit
from ingest.repairing.from_index import mend_findings, mend_totals, with_tables
from ingest.repairing.remaking import Dumps
from ingest.repairing.result import Lost, StepRepair
from ingest.repairing.sketches import mend_sketches
from ingest.repairing.step_payloads import mend_payloads
from ingest.repairing.step_tables import mend_nodes, tables_of
from ingest.repairing.tables import doubtful_tables
from ingest.repairing.work import RepairPolicy, StepWork, Unmendable
from workers.errors import DamagedStore, SourceChanged, StepRemoved, TensorsRemoved
from workers.model import StepKey


def mend_step(catalog: Catalog, key: StepKey, dumps: Dumps, policy: RepairPolicy) -> StepRepair | None:
    """Repair one step; return what became of it, or None if it is undamaged or gone.

    Memory: the index of the step and of one other, one shard, and a few pieces of 16 MiB. Tables that are
    made from the dump take a conversion of the whole step, which writes nothing.

    Raises:
        StoreError: the store refused. What was repaired stays repaired.
    """
    damages = list(verify(catalog, [key]))
    if not damages:
        return None
    work = StepWork(catalog, key, dumps, policy, StepRepair(key, tuple(map(str, damages))))
    try:
        _mend(work)
    except Unmendable as exc:
        work.repair.lost.append(exc.lost)
    except SourceChanged as exc:
        work.repair.lost.append(Lost(str(key), f"{exc.message}; run it again"))
    except (StepRemoved, TensorsRemoved):
        return None
    except DamagedStore as exc:  # other steps must not wait for what is wrong with this one
        work.repair.lost.append(Lost(key.path, exc.message))
    if policy.apply:
        work.repair.remains = tuple(map(str, verify(catalog.reopened(), [key])))
    return work.repair


def _mend(work: StepWork) -> None:
    """Repair a step that is damaged.

    Raises:
        Unmendable: something could not be made again that the rest needs.
        StoreError: the store refused.
    """
    leaf = work.objects.get(work.leaf_path)
    if leaf is None:
        return
    committed = commit_of(work, leaf)
    mend_nodes(work, committed)
    step = tables_of(work, committed)
    if step is None:
        return  # a new generation was committed from the dump
    step = mend_findings(work, step)
    step = mend_totals(work, step)
    damages = _damages_of(step)
    if doubtful := doubtful_tables(damages, step.commit.record.checksums):
        step = tables_of(work, step.commit, doubtful) or step
        damages = _damages_of(step)
    step = _mend_sketches(work, step, damages)
    mend_payloads(work, step, damages)
    write_commit(work, leaf, step.commit)


def _damages_of(step: Step) -> list[Damage]:
    """Return what is damaged of a step whose index is whole."""
    return list(verify_step(step, Verified()))


def _mend_sketches(work: StepWork, step: Step, damages: Sequence[Damage]) -> Step:
    """Write the damaged sketches again, and return the step with a commit that lists them."""
    names, record = [step.commit.fingerprint], step.commit.record
    mended = mend_sketches(
        step,
        damages,
        lambda scope: work.dumps.remake(work.key, names, record, sketches=lambda _: scope),
    )
    work.repair.lost += mended.lost
    chunks = {f"{step.commit.prefix}/{path}": data for path, data in mended.chunks.items()}
    stored = work.objects.get_many(list(chunks))
    for name, data in chunks.items():
        if stored.get(name) != data:  # one table of several may be whole
            work.put(name, data, mended.origin)
    return Step(work.objects, with_tables(step.commit, mended.chunks), step.tables)
