"""The catalog of a store: which ranks and steps are committed, the steps, and what is damaged of them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any, Self

from ingest.reader.choice import Choice, as_set, named_ranges, numbers_and_places, whole_number
from ingest.reader.mesh import Coordinates, Mesh, coordinates_of_steps, describe_places, parse_place
from ingest.reader.require import require_store
from ingest.reader.step import COLUMNS, Step, Steps, Tensors
from ingest.reader.tensor import Tensor
from ingest.reader.tensor_filter import FilterFields, TensorFilter
from workers.errors import DamagedStore, StoreDenied, UsageError
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import Commit
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.store.prefetch import prefetch

#: Steps whose index is read ahead of need.
_TABLES_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of the store that is not what was written."""

    key: StepKey
    source: str
    """The dump file it came from; "" if more than one file is concerned."""
    reason: str
    path: str = ""
    """The object that is missing or wrong, relative to the store; "" if no single object is known."""
    row: int = -1
    """The row of the index whose payload is damaged; -1 if no single row is concerned."""

    def __str__(self) -> str:
        reason = self.reason.removeprefix(f"{self.key}: ")
        return f"{self.key}: {self.source + ': ' if self.source else ''}{reason}"


class DamagedStepWarning(UserWarning):
    """An answer is not about some steps, because they are damaged."""


def warn_of(damages: Sequence[Damage], *, has_others: bool) -> None:
    """Warn of damaged steps that an answer is not about.

    Raises:
        DamagedStore: it is about no other steps.
    """
    if not damages:
        return
    if not has_others:
        raise DamagedStore(damages[0].reason)
    more = f", and {len(damages) - 1} more damaged steps" if len(damages) > 1 else ""
    # The caller of the method that calls this.
    warnings.warn(f"left out: {damages[0]}{more}", DamagedStepWarning, stacklevel=3)


def with_tables(steps: Sequence[Step], damages: list[Damage]) -> Iterator[Step]:
    """Yield these steps, each after its index was read; the next ones are read meanwhile.

    Steps whose index is damaged are added to `damages` instead.
    """

    def load(step: Step) -> Step | Damage:
        try:
            _ = step.tables
        except DamagedStore as exc:
            return Damage(step.key, "", exc.message)
        return step

    if len(steps) <= 1:
        loaded: Iterable[Step | Damage] = map(load, steps)  # without a thread
    else:
        loaded = prefetch(steps, load, ahead=_TABLES_AHEAD, threads=_TABLES_AHEAD, name="dump-ingest-read")
    for step in loaded:
        if isinstance(step, Damage):
            damages.append(step)
        else:
            yield step


#: Commits that are read at once to find one that exists.
_COMMITS_AT_ONCE = 256
#: Up to this many steps, a search keeps the index of each; above it, only of those with a match.
_TABLES_KEPT = 64
_MESH_HINT = "Say how ranks are laid out with the setting `mesh`: DUMP_INGEST_MESH=tp=2,dp=4."
#: Ranks that are listed at once.
_LISTINGS_AT_ONCE = 16


def open_catalog(
    url: str | PathLike[str], *, timeout_s: float | None = None, **storage_options: Any
) -> Catalog:
    """Open a store for reading. Takes one request.

    Args:
        url: a directory or any fsspec URL.
        timeout_s: how long a request may go on without progress, in seconds; default: what the variable
            `DUMP_INGEST_STORE_TIMEOUT_S` says, else a minute.
        storage_options: passed to fsspec. Credentials are refused here: they come from the environment.

    Raises:
        UsageError: the URL does not hold a store.
        StoreFormatError: a newer version of dump-ingest wrote it.
        DamagedStore: its root is damaged, or missing although it holds ranks.
        StoreError: it cannot be reached.
    """
    objects = open_objects(resolve(url, storage_options, timeout_s=timeout_s))
    require_store(objects, str(url))
    return Catalog(objects)


@dataclass(eq=False)
class Catalog:
    """All committed steps of a run, by rank and step. Steps that are not committed are not part of it.

    Nothing is read before it is needed. Each question reads only what it needs, and keeps it.
    """

    objects: ObjectStore
    _steps: dict[StepKey, Step] = field(default_factory=dict)
    """The steps that were opened so far."""
    _listings: dict[int, list[StepKey]] = field(default_factory=dict)
    """By rank that was listed: the steps of which the store has any object, committed or not."""
    _coordinates: dict[int, Coordinates] = field(default_factory=dict)
    """By rank that was asked for: what its dump tells."""
    mesh: Mesh | None = field(default=None, kw_only=True)
    """How the ranks are laid out, if the user says so; it counts instead of what the dump tells."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """The URL of the store."""
        return self.objects.address.url

    @cached_property
    def keys(self) -> list[StepKey]:
        """The committed steps, as of the first use: by step, then rank; run files first.

        Reads the commit of every step, so the time grows with their number.
        """
        damages: list[Damage] = []
        steps = self.committed(self._list(self.listed_ranks), damages)
        keys = [step.key for step in steps] + [damage.key for damage in damages]
        return sorted(keys, key=lambda key: key.order)

    @cached_property
    def ranks(self) -> list[int]:
        """The ranks that have a committed step, in order. Reads one commit of each rank."""
        self._list(self.listed_ranks)
        known = {key.rank for key in self._steps}
        damages: list[Damage] = []
        keys_of = {rank: self._listings[rank] for rank in self.listed_ranks if rank not in known}
        known |= self._first_of(keys_of, damages).keys()
        return sorted(known | {damage.key.rank for damage in damages})

    @property
    def steps(self) -> list[int]:
        """The steps that any rank has committed, in order. Takes as long as `keys`."""
        return sorted({key.step for key in self.keys if key.step is not None})

    def coordinates(self, rank: Choice = None) -> dict[int, Coordinates]:
        """Return by rank where it is in the mesh of the job: its rank and the size along each axis.

        By the mesh that the user gave, or else as the dump tells; empty for a rank of which nothing is known.
        Reads the index of one step of each rank, and only if the dump is of a kind that can tell.

        Args:
            rank: one rank, or several; all if None.

        Raises:
            UsageError: the mesh has fewer ranks.
        """
        ranks = sorted(self.ranks if rank is None else self._ranks_of(rank) or ())
        if self.mesh is not None:
            return {number: self.mesh.coordinates(number) for number in ranks}
        unknown = [number for number in ranks if number not in self._coordinates]
        if unknown:
            self._coordinates |= coordinates_of_steps(self._first_steps(unknown))
        return {number: self._coordinates.setdefault(number, {}) for number in ranks}

    def step(self, rank: int, step: int | None) -> Step:
        """Return one committed step of one rank. Takes one request.

        Args:
            rank: the rank.
            step: the step; None for the run files of the rank.

        Raises:
            UsageError: it is not in the store, or a number is not whole.
            DamagedStore: its commit is damaged.
        """
        key = StepKey(whole_number(rank), None if step is None else whole_number(step))
        if key not in self._steps:
            committed = commit.read(self.objects, key)
            if committed is None:
                raise self._absent(key)
            self._steps[key] = self._opened(committed)
        return self._steps[key]

    def _opened(self, committed: Commit) -> Step:
        opened = Step(self.objects, committed)
        opened.catalog = self
        return opened

    def select(
        self, rank: Choice = None, step: Choice = None, *, damages: list[Damage] | None = None
    ) -> Steps:
        """Return the committed steps of these ranks and steps, by step, then rank: a list and a table.

        Reads only the commits of these steps: others may be many, and may be damaged.

        Args:
            rank: one rank, or several, or a place in the mesh (`"tp=0,dp=1"`); all if None.
            step: one step, or several; all, and the run files, if None.
            damages: receives the steps whose commit is damaged. Without it, they are named in a
                `DamagedStepWarning`.

        Raises:
            UsageError: one of the ranks or steps is not in the store.
            DamagedStore: all commits are damaged, and `damages` is not given.
        """
        ranks, steps = self._ranks_of(rank), as_set(step)
        damaged: list[Damage] = []
        opened = self.committed(self._possible_keys(ranks, steps), damaged)
        present = {step.key for step in opened} | {damage.key for damage in damaged}
        self._check_present(ranks, steps, present)
        if damages is None:
            warn_of(damaged, has_others=bool(opened))
        else:
            damages += damaged
        return Steps(opened)

    def listed(self, rank: Choice = None, step: Choice = None) -> list[StepKey]:
        """Return the steps of these ranks of which the store has any object, committed or not; no run files.

        Each rank is listed once: the answer is as of the first question that listed it.
        """
        ranks, steps = self._ranks_of(rank), as_set(step)
        keys = self._possible_keys(ranks, None)
        return [key for key in keys if key.step is not None and (steps is None or key.step in steps)]

    def committed(self, keys: Sequence[StepKey], damages: list[Damage]) -> list[Step]:
        """Return the committed ones of these steps, and add damaged ones to `damages`.

        Unlike `select`, it does not mind a step that is only listed, such as one that is being written. Reads
        each commit once.
        """
        unread = [key for key in keys if key not in self._steps]
        commits, damaged = self._commits_of(unread)
        self._steps.update((key, self._opened(committed)) for key, committed in commits.items())
        damages += [Damage(key, "", reason) for key, reason in damaged.items()]
        return [self._steps[key] for key in keys if key in self._steps]

    def _ranks_of(self, choice: Choice) -> set[int] | None:
        """Return the chosen ranks; None for all.

        Raises:
            UsageError: it names a place in the mesh that no rank has.
        """
        if choice is None:
            return None
        ranks, places = numbers_and_places(choice)
        for text in places:
            place = parse_place(text)
            known = self.coordinates()
            at_place = {
                rank
                for rank, own in known.items()
                if all(axis in own and own[axis].rank == number for axis, number in place.items())
            }
            if not at_place:
                told = describe_places(known.values())
                hint = f"The store has {told}." if told else _MESH_HINT
                raise UsageError(f"{self.url}: no rank at {text}", hint=hint)
            ranks |= at_place
        return ranks

    def _first_steps(self, ranks: Sequence[int]) -> list[Step]:
        steps = {key.rank: step for key, step in self._steps.items() if key.step is not None}
        unknown = [rank for rank in ranks if rank not in steps]
        self._list(unknown)
        keys_of = {rank: [key for key in self._listings[rank] if key.step is not None] for rank in unknown}
        steps |= self._first_of(keys_of, [])
        return [steps[rank] for rank in ranks if rank in steps]

    def _first_of(self, keys_of: Mapping[int, Sequence[StepKey]], damages: list[Damage]) -> dict[int, Step]:
        """Return by rank the first of its keys that is committed; nearly always, the very first one is."""
        steps: dict[int, Step] = {}
        longest = max(map(len, keys_of.values()), default=0)
        for begin in (0, *range(1, longest, _COMMITS_AT_ONCE)):
            end = begin + _COMMITS_AT_ONCE if begin else 1
            keys = [key for rank, own in keys_of.items() if rank not in steps for key in own[begin:end]]
            steps |= {step.key.rank: step for step in reversed(self.committed(keys, damages))}
        return steps

    @cached_property
    def listed_ranks(self) -> list[int]:
        """The ranks of which the store has any object, committed or not, in order. Takes one request."""
        return commit.list_ranks(self.objects)

    def _possible_keys(self, ranks: set[int] | None, steps: set[int] | None) -> list[StepKey]:
        """Return the keys that a choice may mean, by step, then rank; whether they are committed is open."""
        chosen_ranks = self.listed_ranks if ranks is None else sorted(ranks)
        if steps is None:
            return self._list(chosen_ranks)
        # Listings are not needed: their answer would be a part of these keys.
        return sorted(
            (StepKey(rank, step) for rank in chosen_ranks for step in steps), key=lambda key: key.order
        )

    def _list(self, ranks: Sequence[int]) -> list[StepKey]:
        """Return the steps of which the store has any object, by step, then rank. Lists each rank once."""
        unlisted = [rank for rank in ranks if rank not in self._listings]
        if unlisted:
            with ThreadPoolExecutor(_LISTINGS_AT_ONCE, thread_name_prefix="dump-ingest-list") as threads:
                listings = threads.map(lambda rank: commit.list_keys(self.objects, [rank]), unlisted)
                self._listings.update(zip(unlisted, listings, strict=True))
        return sorted((key for rank in ranks for key in self._listings[rank]), key=lambda key: key.order)

    def _commits_of(self, keys: Sequence[StepKey]) -> tuple[dict[StepKey, Commit], dict[StepKey, str]]:
        """Return the commits of these steps, and why others are damaged. Here: reads each of them."""
        return self._read_commits(keys)

    def _read_commits(self, keys: Sequence[StepKey]) -> tuple[dict[StepKey, Commit], dict[StepKey, str]]:
        """Read commits as `commit.read_many` does; in a directory, one that may not be read is damaged.

        Raises:
            StoreDenied: none of them may be read, and no other was.
        """
        try:
            return commit.read_many(self.objects, keys)
        except StoreDenied:
            if not self.objects.is_local:
                raise  # there, all objects have the same permissions
        commits: dict[StepKey, Commit] = {}
        damaged: dict[StepKey, str] = {}
        denied: list[StoreDenied] = []
        for key in keys:
            try:
                own_commits, own_damaged = commit.read_many(self.objects, [key])
            except StoreDenied as exc:
                denied.append(exc)
                damaged[key] = f"{exc.message}. {exc.hint}"
            else:
                commits.update(own_commits)
                damaged.update(own_damaged)
        if len(denied) == len(keys) and not self._steps:
            raise denied[0]
        return commits, damaged

    def tensors(
        self,
        name: str | re.Pattern[str] | None = None,
        *,
        rank: Choice = None,
        step: Choice = None,
        graph: str | None = None,
        op_type: str | None = None,
        io: str | None = None,
        role: str | None = None,
        where: str | None = None,
        damages: list[Damage] | None = None,
    ) -> Tensors:
        """Return the tensors that fulfil every condition, by step, rank and order of execution.

        Reads the index of each chosen step, unless the consolidated view excludes the condition for all of
        its tensors. The answer is a list, and a table: see `Tensors.to_pandas`.

        Args:
            name: a glob for `Tensor.name` (`*Log*`), or a compiled regular expression to search in it.
            rank: one rank, or several, or a place in the mesh (`"tp=0,dp=1"`); all if None.
            step: one step, or several; all, and the run files, if None.
            graph: the name of the graph.
            op_type: the operator type, exactly.
            io: `input` or `output`.
            role: `loss`, `gradient`, `weight`, `optimizer_state` or `activation`; see `Tensor.role`.
            where: a condition on columns and statistics, such as `"nan_count > 0 and max > 10"`. What it asks
                of sketches may be known between bounds only: the tensors that are returned fulfil it
                certainly, and `Tensors.undecided` has those that may.
            damages: receives the steps of which the commit, the index, or sketches that `where` asks for are
                damaged. Without it, they are named in a `DamagedStepWarning`.

        Raises:
            UsageError: a rank or step is not in the store, `where` is not a valid condition, or the role is
                not one.
            DamagedStore: all of the steps are damaged, and `damages` is not given.
        """
        fields: FilterFields = {
            "graph": graph,
            "op_type": op_type,
            "io": io,
            "role": role,
            "name": name,
            "where": where,
        }
        condition = TensorFilter(fields, COLUMNS)
        damaged: list[Damage] = []
        chosen = self.select(rank, step, damages=damaged)
        unread = len(damaged)
        fitting, undecided = list[Tensor](), list[Tensor]()
        for opened in with_tables(self.possible_steps(chosen, [fields]), damaged):
            try:
                decided = opened.decided_rows(condition)
            except DamagedStore as exc:  # sketches that the condition asks for
                damaged.append(Damage(opened.key, "", exc.message))
                continue
            tensors, may_fit = ([Tensor(opened, row) for row in rows] for rows in decided)
            fitting += tensors
            undecided += may_fit
            if not tensors and not may_fit and len(chosen) > _TABLES_KEPT:
                opened.forget_tables()
        if damages is None:
            warn_of(damaged, has_others=len(chosen) + unread > len(damaged))
        else:
            damages += damaged
        return Tensors(fitting, undecided)

    def possible_steps(self, steps: Sequence[Step], _conditions: Sequence[FilterFields], /) -> Sequence[Step]:
        """Return the steps that may have a tensor which fulfils one of these conditions: here, all."""
        return steps

    def reopened(self) -> Self:
        """Return the same store with nothing read yet, so that it shows what is committed now."""
        return type(self)(self.objects, mesh=self.mesh)

    def _check_present(self, ranks: set[int] | None, steps: set[int] | None, present: set[StepKey]) -> None:
        absent_ranks = (ranks or set()) - {key.rank for key in present}
        absent_steps = (steps or set()) - {key.step for key in present}
        if not absent_ranks and not absent_steps:
            return
        if unknown := absent_ranks - set(self.listed_ranks):
            missing, hint = f"rank {_joined(unknown)}", self._contents(None, set())
        elif absent_steps:
            missing, hint = f"step {_joined(absent_steps)}", self._contents(ranks, absent_steps)
        else:
            missing = f"such step of rank {_joined(absent_ranks)}"
            hint = self._contents(absent_ranks, steps or set())
        raise UsageError(f"{self.url}: no {missing}", hint=hint)

    def _absent(self, key: StepKey) -> UsageError:
        is_known = key.rank in self.listed_ranks
        absent_steps = {key.step} if is_known and key.step is not None else set()
        hint = self._contents({key.rank} if is_known else None, absent_steps)
        return UsageError(f"{self.url}: {key} is not in the store", hint=hint)

    def _contents(self, ranks: set[int] | None, absent_steps: set[int]) -> str:
        """Describe which steps these ranks have, or all ranks, without those known not to be committed.

        Uses listings alone: reading all commits for a hint would take too long.
        """
        keys = self._list(self.listed_ranks if ranks is None else sorted(ranks))
        steps = {key.step for key in keys if key.step is not None} - absent_steps
        all_ranks = named_ranges("rank", self.listed_ranks)
        if ranks is None:
            return f"The store has {all_ranks} and {named_ranges('step', steps)}."
        verb = "has" if len(ranks) == 1 else "have"
        return (
            f"The store has {all_ranks}; {named_ranges('rank', ranks)} {verb} {named_ranges('step', steps)}."
        )


def _joined(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
