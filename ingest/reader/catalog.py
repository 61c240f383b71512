"""The catalog of a store: which ranks and steps are committed, and the steps themselves."""

from __future__ import annotations

import fnmatch
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any, Self, TypeAlias

from ingest.reader.opened_step import COLUMNS
from ingest.reader.ranges import format_ranges
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from workers.arrays.filter import Filter
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey
from workers.store import commit
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve

Choice: TypeAlias = int | Iterable[int] | None

#: Commits that are asked for at once, to find one.
_COMMITS_AT_ONCE = 256
#: Steps whose index is read ahead of need, and of how many it is kept where nothing was found in it.
_TABLES_AHEAD = 4
_TABLES_KEPT = 64
#: Ranks that are listed at once.
_LISTINGS_AT_ONCE = 16


def open_catalog(url: str | PathLike[str], **storage_options: Any) -> Catalog:
    """Open a store for reading.

    Args:
        url: a directory or any fsspec URL.
        storage_options: passed to fsspec; no credentials, which come from the environment.

    Raises:
        UsageError: there is no store.
        StoreFormatError: a newer version of dump-ingest wrote it.
        StoreError: it cannot be reached.
    """
    objects = open_objects(resolve(url, storage_options))
    if commit.read_root(objects) is None:
        raise no_store(str(url))
    return Catalog(objects)


def no_store(url: str) -> UsageError:
    """Return the answer to a URL where there is no store."""
    return UsageError(f"{url}: no dump-ingest store", hint="Is the URL right? `ingest` and `watch` make one.")


@dataclass(frozen=True, slots=True)
class Damage:
    """Something in the store that is not what was written."""

    key: StepKey
    source: str
    """The dump file that it came from; "" where more than one file is concerned."""
    reason: str


@dataclass(eq=False)
class Catalog:
    """All committed steps of a run, keyed by rank and step. A step that is not committed is not here.

    Nothing is listed or read before it is asked for, and then no more than what was asked for; what was read
    is kept.
    """

    objects: ObjectStore
    _steps: dict[StepKey, Step] = field(default_factory=dict)
    _names: dict[int, list[StepKey]] = field(default_factory=dict)
    """By rank: the steps for which there is anything at all."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        """Where the store is."""
        return self.objects.address.url

    @cached_property
    def keys(self) -> list[StepKey]:
        """What is committed, when this was first asked for: by step, then rank; run files first.

        Asks for the commit of every step, so it takes as long as there are steps.
        """
        damages: list[Damage] = []
        found = self._open(self._list(self._listed_ranks), damages)
        return sorted([step.key for step in found] + [one.key for one in damages], key=lambda key: key.order)

    @cached_property
    def ranks(self) -> list[int]:
        """The ranks that have anything committed. Reads one commit of each."""
        self._list(self._listed_ranks)
        first = [keys[0] for keys in self._names.values() if keys]
        damages: list[Damage] = []
        self._open(first, damages)
        known = {key.rank for key in self._steps} | {one.key.rank for one in damages}
        # Their first step is not committed, or not yet: ask for more.
        rest = [rank for rank in self._listed_ranks if rank not in known and self._has_any(rank)]
        return sorted({*known, *rest})

    @property
    def steps(self) -> list[int]:
        """The steps that any rank has committed. Takes as long as there are steps, as `keys` does."""
        return sorted({key.step for key in self.keys if key.step is not None})

    def step(self, rank: int, step: int | None) -> Step:
        """Return one committed step of one rank; `step` None is its run files.

        Raises:
            UsageError: it is not in the store.
            DamagedStore: its commit is damaged.
        """
        key = StepKey(rank, step)
        if key not in self._steps:
            found = commit.read(self.objects, key)
            if found is None:
                raise self._absent(key)
            self._steps[key] = Step(self.objects, found)
        return self._steps[key]

    def select(
        self, rank: Choice = None, step: Choice = None, *, damages: list[Damage] | None = None
    ) -> list[Step]:
        """Return the committed steps of these ranks and steps; all where None. With `step`, no run files.

        Reads no commit of any other step: there may be many, and one of them may be damaged.

        Args:
            rank: one rank, or several.
            step: one step, or several.
            damages: takes the steps whose commit is damaged; without it, the first one is raised.

        Raises:
            UsageError: a rank or step that was asked for is not in the store.
            DamagedStore: a commit is damaged, and `damages` is not given.
        """
        ranks, steps = _set(rank), _set(step)
        if steps is None:
            keys = self._list(self._listed_ranks if ranks is None else sorted(ranks))
        else:
            # No listing: there is nothing to learn from it.
            of = self._listed_ranks if ranks is None else ranks
            keys = sorted((StepKey(r, s) for r in of for s in steps), key=lambda key: key.order)
        bad: list[Damage] = []
        chosen = self._open(keys, bad)
        if bad and damages is None:
            raise DamagedStore(bad[0].reason)
        there = [*(one.key for one in chosen), *(one.key for one in bad)]
        without_rank = (ranks or set()) - {key.rank for key in there}
        without_step = (steps or set()) - {key.step for key in there}
        if without_rank or without_step:
            raise self._nothing_of(without_rank, without_step, ranks, steps or set())
        if damages is not None:
            damages += bad
        return chosen

    def listed(self, rank: Choice = None, step: Choice = None) -> list[StepKey]:
        """Return the steps of these ranks for which there is anything, committed or not; no run files.

        As they are when this or another question first lists a rank.
        """
        ranks, steps = _set(rank), _set(step)
        keys = self._list(self._listed_ranks if ranks is None else sorted(ranks))
        return [key for key in keys if key.step is not None and (steps is None or key.step in steps)]

    @cached_property
    def _listed_ranks(self) -> list[int]:
        return commit.list_ranks(self.objects)

    def _list(self, ranks: Sequence[int]) -> list[StepKey]:
        """Return what there is of these ranks, committed or not, in order; each rank is listed once."""
        unlisted = [rank for rank in ranks if rank not in self._names]
        if unlisted:
            with ThreadPoolExecutor(_LISTINGS_AT_ONCE, thread_name_prefix="dump-ingest-list") as threads:
                listings = threads.map(lambda rank: commit.list_keys(self.objects, [rank]), unlisted)
                self._names.update(zip(unlisted, listings, strict=True))
        return sorted((key for rank in ranks for key in self._names[rank]), key=lambda key: key.order)

    def _open(self, keys: Sequence[StepKey], damages: list[Damage]) -> list[Step]:
        """Return those of these steps that are committed; each commit is read once. Note damaged ones."""
        unread = [key for key in keys if key not in self._steps]
        found, damaged = commit.read_many(self.objects, unread)
        self._steps.update((key, Step(self.objects, one)) for key, one in found.items())
        damages += [Damage(key, "", reason) for key, reason in damaged.items()]
        return [self._steps[key] for key in keys if key in self._steps]

    def _has_any(self, rank: int) -> bool:
        keys = self._names[rank]
        for start in range(0, len(keys), _COMMITS_AT_ONCE):
            damages: list[Damage] = []
            if self._open(keys[start : start + _COMMITS_AT_ONCE], damages) or damages:
                return True
        return False

    def tensors(
        self,
        rank: Choice = None,
        step: Choice = None,
        *,
        graph: str | None = None,
        op_type: str | None = None,
        name: str | re.Pattern[str] | None = None,
        io: str | None = None,
        where: str | None = None,
    ) -> list[Tensor]:
        """Return the tensors that fulfil every condition, by step, rank and time.

        Args:
            rank: one rank, or several.
            step: one step, or several.
            graph: name of the graph.
            op_type: operator type, exactly.
            name: `Tensor.name` as a glob (`*Log*`), or a compiled regular expression that is searched in it.
            io: `input` or `output`.
            where: a condition on columns and statistics, such as `"nan_count > 0 and max > 10"`.

        Raises:
            UsageError: a rank or step is not in the store, or `where` is no condition.
        """
        condition = Filter(where, COLUMNS) if where is not None else None
        equal = {"graph": graph, "op_type": op_type, "io": io}
        wanted = {k: v for k, v in equal.items() if v is not None}
        found: list[Tensor] = []
        chosen = self.select(rank, step)
        for one in _with_tables(chosen):
            tensors = [Tensor(one, row) for row in one.rows(condition, wanted)]
            matching = [tensor for tensor in tensors if name is None or _matches(name, tensor.name)]
            found += matching
            if not matching and len(chosen) > _TABLES_KEPT:
                one.forget_tables()
        return found

    def reopened(self) -> Self:
        """Return the same store with nothing read of it yet, so that it shows what is committed now."""
        return type(self)(self.objects)

    def _nothing_of(
        self, ranks: set[int], steps: set[int], asked: set[int] | None, asked_steps: set[int]
    ) -> UsageError:
        """Return the answer to a choice of which these ranks, or these steps, are not there."""
        if unknown := ranks - set(self._listed_ranks):
            what, hint = f"rank {_listed(unknown)}", self._holds(None, set())
        elif steps:
            what, hint = f"step {_listed(steps)}", self._holds(asked, steps)
        else:
            what, hint = f"such step of rank {_listed(ranks)}", self._holds(ranks, asked_steps)
        return UsageError(f"{self.url}: no {what}", hint=hint)

    def _absent(self, key: StepKey) -> UsageError:
        is_known = key.rank in self._listed_ranks
        steps = {key.step} if is_known and key.step is not None else set()
        hint = self._holds({key.rank} if is_known else None, steps)
        return UsageError(f"{self.url}: {key} is not in the store", hint=hint)

    def _holds(self, of: set[int] | None, absent_steps: set[int]) -> str:
        """Say what there is of these ranks, or of all, but for steps that are known not to be committed.

        From listings alone: to read all commits for a hint would take too long.
        """
        keys = self._list(self._listed_ranks if of is None else sorted(of))
        ranks, steps = self._listed_ranks, {key.step for key in keys if key.step is not None} - absent_steps
        if of is None:
            return f"It holds ranks {format_ranges(ranks)} and steps {format_ranges(steps)}."
        whose = f"rank{'s' * (len(of) > 1)} {format_ranges(of)}"
        return f"It holds ranks {format_ranges(ranks)}, and of {whose} steps {format_ranges(steps)}."


def _with_tables(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield these steps, each when its index is there; the next ones are read meanwhile.

    Raises:
        DamagedStore: the index of a step is damaged.
    """
    if len(steps) <= 1:
        yield from steps
        return

    def load(step: Step) -> Step:
        _ = step.tables
        return step

    with ThreadPoolExecutor(_TABLES_AHEAD, thread_name_prefix="dump-ingest-read") as threads:
        ahead: deque[Future[Step]] = deque()
        try:
            for step in steps:
                ahead.append(threads.submit(load, step))
                if len(ahead) > _TABLES_AHEAD:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            threads.shutdown(cancel_futures=True)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _matches(pattern: str | re.Pattern[str], name: str) -> bool:
    if isinstance(pattern, str):
        return fnmatch.fnmatchcase(name, pattern)
    return pattern.search(name) is not None


def _set(choice: Choice) -> set[int] | None:
    if choice is None:
        return None
    return {int(n) for n in choice} if isinstance(choice, Iterable) else {int(choice)}
