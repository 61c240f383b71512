"""One step: finds what is damaged, decides what it is made from, and writes it.

What is byte for byte as it was is written under its own key. The commit goes last, in one PUT. Nothing that
is undamaged is written again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from ingest.reader.catalog import Catalog
from ingest.reader.damage import Damage
from ingest.reader.step import Step
from ingest.reader.step_findings import findings_of
from ingest.reader.verify import Verified, verify, verify_step
from ingest.repairing.commits import commit_from_objects, leaf_of, list_generations, name_in
from ingest.repairing.loss import LOST, commit_rest, name_of_rest
from ingest.repairing.payloads import DamagedShard, Payloads, reasons_of
from ingest.repairing.pooled import PooledShards, steps_referring
from ingest.repairing.remaking import Dumps, Remade
from ingest.repairing.result import Lost, Mended, StepRepair
from ingest.repairing.sketches import has_sketches, mend_sketches, sketches_for_rules
from ingest.repairing.sources import Copies
from ingest.repairing.tables import MendedTables, doubtful_tables, mend_tables
from workers.errors import DamagedStore, SourceChanged, StepRemoved, TensorsRemoved
from workers.model import StepKey
from workers.rules.step import evaluate
from workers.store import commit, findings, metadata, pool, sketch_tables
from workers.store.commit import Commit
from workers.store.model import Origin
from workers.store.objects import ObjectStore
from workers.store.record import LEAF, new_record, totals_of
from workers.store.step import StoredStep
from workers.tasks.convert import convert
from workers.tasks.publish import count_rows, publish

_FROM_COMMIT = "the commit"
_FROM_INDEX = "the index"
#: Totals of the record that follow from the index; the others are not checked.
_CHECKED_TOTALS = ("tensors", "nan_count", "pos_inf_count", "neg_inf_count")


@dataclass(frozen=True, slots=True)
class RepairPolicy:
    """What a repair may do."""

    apply: bool = False
    """Whether to write; otherwise it only says what it would write."""
    accept_loss: bool = False
    """Whether a step is committed again without the payloads that are found nowhere."""


class _Unmendable(Exception):
    """Nothing is known that an object can be made from."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(reason)
        self.lost = Lost(what, reason)


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
    work = _StepWork(catalog, key, dumps, policy, StepRepair(key, tuple(map(str, damages))))
    try:
        work.run()
    except _Unmendable as exc:
        work.repair.lost.append(exc.lost)
    except SourceChanged as exc:
        work.repair.lost.append(Lost(str(key), f"{exc.message}; run it again"))
    except (StepRemoved, TensorsRemoved):
        return None
    if policy.apply:
        work.repair.remains = tuple(map(str, verify(catalog.reopened(), [key])))
    return work.repair


@dataclass(eq=False)
class _StepWork:
    """The work on one step."""

    catalog: Catalog
    key: StepKey
    dumps: Dumps
    policy: RepairPolicy
    repair: StepRepair
    _remade: list[Remade | None] = field(default_factory=list)
    """What the dump gives for the committed generation; empty before it was asked."""

    @property
    def objects(self) -> ObjectStore:
        return self.catalog.objects

    def run(self) -> None:
        """Repair the step.

        Raises:
            _Unmendable: something could not be made again that the rest needs.
            StoreError: the store refused.
        """
        leaf = self.objects.get(f"{self.key.path}/{LEAF}")
        if leaf is None:
            return
        committed = self._commit(leaf)
        self._mend_nodes(committed)
        step = self._mend_tables(committed)
        if step is None:
            return  # a new generation was committed from the dump
        step = self._mend_findings(step)
        step = self._mend_totals(step)
        damages = self._verified(step)
        if doubtful := doubtful_tables(damages):
            step = self._mend_tables(step.commit, doubtful) or step
            damages = self._verified(step)
        self._mend_sketches(step, damages)
        self._mend_payloads(step, damages)
        self._write_commit(leaf, step.commit)

    # -- the commit

    def _commit(self, leaf: bytes) -> Commit:
        """Return the commit, made again if it is damaged."""
        try:
            return commit.parse(leaf, self.key)
        except DamagedStore as exc:
            made = self._commit_from_dump(leaf) or self._commit_from_objects(leaf)
            if made is None:
                raise _Unmendable(
                    f"{self.key.path}/{LEAF}",
                    f"{exc.message}; no dump and no whole generation of the step was found: "
                    "name a dump with --dump, or ingest the step again",
                ) from exc
            return made

    def _commit_from_dump(self, leaf: bytes) -> Commit | None:
        names = list_generations(self.objects, self.key)
        named = name_in(leaf)
        sketched = [name for name in names if has_sketches(self.objects, self.key, name)]
        remade = self.dumps.remake(self.key, [named] if named else names or None, None, sketches=sketched)
        if remade is None:
            return None
        self._remade.append(remade)
        assembled = remade.assembled
        record = new_record(
            assembled.summary,
            origin=remade.plan.origin,
            contents=assembled.contents,
            without_tensors=assembled.without_tensors,
            previous=names,
        )
        name = assembled.summary.fingerprint
        self.repair.mended.append(Mended(f"{self.key.path}/{LEAF}", remade.origin))
        return commit.parse(commit.encode_leaf(record.to_dict(), name, assembled.nodes), self.key)

    def _commit_from_objects(self, leaf: bytes) -> Commit | None:
        named = name_in(leaf)
        names = list_generations(self.objects, self.key)
        whole = []
        for name in [named] if named in names else names:
            try:
                made = commit_from_objects(
                    self.objects, self.key, name, leaf=leaf, origin=self._origin_of_rank()
                )
            except DamagedStore:
                continue
            if name == named or not list(verify_step(Step(self.objects, made), Verified())):
                whole.append(made)
        if len(whole) != 1:
            return None
        self.repair.mended.append(Mended(f"{self.key.path}/{LEAF}", "the objects of its generation"))
        return whole[0]

    def _origin_of_rank(self) -> Origin | None:
        """Return where another step of the rank comes from."""
        steps = self.catalog.select(rank=self.key.rank, damages=[])
        return steps[0].commit.record.source if steps else None

    def _write_commit(self, leaf: bytes, committed: Commit) -> None:
        """Write the commit if it was made again, unless somebody else committed the step meanwhile."""
        made = leaf_of(committed)
        if made == leaf or self.repair.generation or not self.policy.apply:
            return
        if self.objects.get(f"{self.key.path}/{LEAF}") != leaf:
            raise SourceChanged(f"{self.key} was committed again meanwhile")
        self.objects.put(f"{self.key.path}/{LEAF}", made)

    # -- metadata, tables, findings, totals

    def _mend_nodes(self, committed: Commit) -> None:
        names = {f"{committed.prefix}/{path}/{LEAF}".replace("//", "/"): path for path in committed.nodes}
        documents = {name: committed.nodes[path] for name, path in names.items()}
        documents |= {f"{path}/{LEAF}": pooled.node for path, pooled in committed.record.pool.items()}
        contents = self.objects.get_many(list(documents))
        for name, node in documents.items():
            document = metadata.encode(node)
            if contents.get(name) != document:
                self._put(name, document, _FROM_COMMIT)

    def _mend_tables(self, committed: Commit, suspects: Collection[str] = ()) -> Step | None:
        """Return the step with its index; None if the dump gave a new generation, which is committed."""
        try:
            mended = mend_tables(self.objects, committed, lambda: self._from_dump(committed), suspects)
        except DamagedStore as exc:
            if suspects:
                return None
            if self._commit_new_generation(committed):
                return None
            raise _Unmendable(
                f"{committed.prefix}/index",
                f"{exc.message}; the dump that has the step was not found: name it with --dump, or remove "
                f"the step with `dump-ingest gc {self.objects.address.url} --rank {self.key.rank} "
                f"--step {self.key.step}`",
            ) from exc
        self._put_tables(committed, mended)
        return Step(self.objects, committed, mended.tables)

    def _put_tables(self, committed: Commit, mended: MendedTables) -> None:
        for path, data in mended.chunks.items():
            self._put(f"{committed.prefix}/{path}", data, mended.origin)

    def _mend_findings(self, step: Step) -> Step:
        """Return the step with whole findings: evaluated again, by the rules of today if they changed."""
        try:
            findings_of(step)
        except DamagedStore as exc:
            rules, summary = self.dumps.rules, step.commit.summary
            if rules is None or self.key.step is None:
                raise _Unmendable(f"{step.commit.prefix}/{findings.GROUP}", exc.message) from exc
            result = evaluate(rules, step.tables, self.key, sketches_for_rules(step))
            documents, chunks = findings.encode(rules.definitions, result)
            origin = f"{_FROM_INDEX}, by the rules of the commit"
            committed = step.commit
            if rules.digest != summary.rules:
                origin = f"{_FROM_INDEX}, by the rules of today"
                nodes = {path: node for path, node in committed.nodes.items() if not _is_of_findings(path)}
                for path, document in documents.items():
                    self._put(f"{committed.prefix}/{path}/{LEAF}", metadata.encode(document), origin)
                committed = _with(
                    committed,
                    {**nodes, **documents},
                    rules=result.rules,
                    findings=dict(result.totals),
                    severities=result.severities,
                    failed_rules=dict(result.failed),
                )
            for path, data in chunks.items():
                if self.objects.get(f"{committed.prefix}/{path}") != data:
                    self._put(f"{committed.prefix}/{path}", data, origin)
            return Step(self.objects, committed, step.tables)
        return step

    def _mend_totals(self, step: Step) -> Step:
        """Return the step with totals that are those of its rows."""
        counts, summary = count_rows(step.tables), step.commit.summary
        if all(getattr(summary, name) == counts[name] for name in _CHECKED_TOTALS):
            return step
        self.repair.mended.append(Mended(f"{self.key.path}/{LEAF}", _FROM_INDEX))
        return Step(self.objects, _with(step.commit, step.commit.nodes, **counts), step.tables)

    def _mend_sketches(self, step: Step, damages: Sequence[Damage]) -> None:
        names, record = [step.commit.fingerprint], step.commit.record
        mended = mend_sketches(
            step, damages, lambda: self.dumps.remake(self.key, names, record, sketches=True)
        )
        self.repair.lost += mended.lost
        for path, data in mended.chunks.items():
            self._put(f"{step.commit.prefix}/{path}", data, mended.origin)

    # -- payloads

    def _verified(self, step: Step) -> list[Damage]:
        """Return what is damaged of a step whose index is whole."""
        return list(verify_step(step, Verified()))

    def _payloads(self, step: Step, damages: Sequence[Damage]) -> Payloads:
        roots = [dump.root for dump in self.dumps.of(step.commit.record)]
        payloads = Payloads(
            step, damages, roots, Copies(self.catalog), self._earlier(step.commit), self._sharers
        )
        payloads.find_sources()
        return payloads

    def _sharers(self, path: str) -> list[tuple[StoredStep, list[Path]]]:
        """Return the steps of other ranks that refer to an array in the pool, and the dumps of each."""
        others = steps_referring(self.objects, self.key, path)
        return [(other, [dump.root for dump in self.dumps.of(other.commit.record)]) for other in others]

    def _earlier(self, committed: Commit) -> list[StoredStep]:
        """Return the earlier generations that can still be read."""
        earlier: list[StoredStep] = []
        for name in reversed(committed.record.previous):
            try:
                earlier.append(StoredStep(self.objects, commit_from_objects(self.objects, self.key, name)))
            except DamagedStore:
                continue
        return earlier

    def _mend_payloads(self, step: Step, damages: Sequence[Damage]) -> None:
        payloads = self._payloads(step, damages)
        pooled = PooledShards(step, payloads, self._put)
        stored, odd = step.commit.record.stored, False
        for shard in payloads.shards:
            if payloads.is_lost(shard):
                continue
            if pool.is_pooled(shard.array):
                odd |= not pooled.mend(shard)
                continue
            data, path = payloads.encode(shard), f"{step.commit.prefix}/{shard.path}"
            if len(data) != stored.get(shard.path):
                odd = True  # another version of the compressor: the commit has another size
            elif self.objects.get(path) != data:
                self._put(path, data, payloads.origins(shard))
        reasons = reasons_of(step, damages, payloads.lost)
        sources = step.tables.label("source")
        self.repair.lost += [Lost(str(sources[row]), reason) for row, reason in reasons.items()]
        if odd or (reasons and self.policy.accept_loss):
            lost = {row: f"{LOST}: {reason}" for row, reason in reasons.items()}
            if not reasons or self.policy.accept_loss:
                self._commit_rest(step, lost, payloads)

    def _commit_rest(self, step: Step, lost: dict[int, str], payloads: Payloads) -> None:
        self.repair.generation = name_of_rest(step.commit.fingerprint, lost)
        if not self.policy.apply:
            return
        shards = {shard.path: shard for shard in payloads.shards}
        made_in_pool = PooledShards(step, payloads, self._put).replaced()
        commit_rest(
            step, lost, lambda path: self._shard_of(step, path, shards.get(path), payloads), made_in_pool
        )

    def _shard_of(
        self, step: Step, path: str, damaged: DamagedShard | None, payloads: Payloads
    ) -> bytes | None:
        if damaged is None:
            return self.objects.get(f"{step.commit.prefix}/{path}")
        return payloads.encode(damaged) if payloads.holds_anything(damaged) else None

    # -- the dump

    def _from_dump(self, committed: Commit) -> Remade | None:
        """Return the committed generation as the dump gives it. The dump is read once."""
        if not self._remade:
            self._remade.append(self.dumps.remake(self.key, [committed.fingerprint], committed.record))
        return self._remade[0]

    def _commit_new_generation(self, committed: Commit) -> bool:
        """Commit what the dump has of the step, if it is as much as the commit says; return whether it is."""
        sketches = sketch_tables.has_sketches(committed.nodes)
        remade = self.dumps.remake(self.key, None, committed.record, sketches=sketches)
        if remade is None or not _is_as_much(remade, committed):
            return False
        self.repair.generation = remade.plan.fingerprint
        self.repair.mended.append(Mended(committed.prefix, f"{remade.origin}, as a new generation"))
        if self.policy.apply:
            plan = replace(remade.plan, replaces=committed.fingerprint)
            publish(plan, [convert(job) for job in plan.jobs])
        return True

    def _put(self, path: str, data: bytes, origin: str) -> None:
        """Write one object, unless this is a dry run."""
        if self.policy.apply:
            self.objects.put(path, data)
        self.repair.mended.append(Mended(path, origin))


def _is_as_much(remade: Remade, committed: Commit) -> bool:
    """Return whether what the dump has of a step counts as many bytes, tensors and files as its commit."""
    made, was = remade.assembled.summary, committed.summary
    names = ("raw_bytes", "tensors", "files", "statistics_only", "overflows")
    return all(getattr(made, name) == getattr(was, name) for name in names)


def _is_of_findings(path: str) -> bool:
    return path == findings.GROUP or path.startswith(f"{findings.GROUP}/")


def _with(committed: Commit, nodes: Mapping[str, metadata.Document], **totals: Any) -> Commit:
    """Return a commit with other nodes and other totals."""
    summary = replace(committed.summary, **totals)
    record = structs.replace(committed.record, summary=totals_of(summary))
    leaf = commit.encode_leaf(record.to_dict(), committed.fingerprint, nodes)
    return commit.parse(leaf, committed.key)
