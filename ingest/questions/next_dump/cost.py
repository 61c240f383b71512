"""How much a configuration will dump, by what a store knows of the job."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest.disk.space import space_at
from ingest.dump_configs.checking.check import CheckedConfig
from ingest.dump_configs.model import AskedDump
from ingest.questions.next_dump.estimate import Amount, Sizes
from ingest.reader.catalog import Catalog
from ingest.reader.flow.operator_kinds import is_parameter
from ingest.reader.text import counted
from ingest.units import human_bytes
from workers.errors import UsageError

#: What one operator of a tensor costs in a table of statistics, in bytes.
_STATISTICS_NBYTES = 200


@dataclass(frozen=True, slots=True)
class DumpCost:
    """What a configuration will dump."""

    files: int
    """Files of one step, on all ranks that dump."""
    nbytes: int
    """Their bytes."""
    steps: int | None
    """The number of steps; None for all, however many the job has."""
    ranks: int
    seconds: float | None
    """What dumping adds to a step; None if the store does not know how long dumping took."""
    free_nbytes: int | None
    """What is free where the dump goes; None if that is not a directory of this host."""
    unknown: tuple[str, ...]
    """Entries that fit no operator in the store."""
    seconds_unknown: str = ""
    """Why the time is not known; "" if it is."""

    @property
    def full_disk_after(self) -> int | None:
        """After how many steps the disk is full; None if it has room for all, or that is not known."""
        if self.free_nbytes is None or not self.nbytes:
            return None
        fits = self.free_nbytes // self.nbytes
        return fits if self.steps is None or fits < self.steps else None

    def __str__(self) -> str:
        """Return the output of `dump-ingest check --store`."""
        return "\n".join(_lines(self))

    def to_dict(self) -> dict[str, Any]:
        """Return one object of plain values."""
        return {
            **{name: getattr(self, name) for name in self.__slots__ if name != "unknown"},
            "unknown": list(self.unknown),
            "full_disk_after": self.full_disk_after,
        }


def dump_cost(store: Catalog, checked: CheckedConfig) -> DumpCost:
    """Estimate how much a configuration will dump, taking the job to be the one in the store.

    Raises:
        UsageError: the store has no step, or nobody can tell what the configuration asks for.
    """
    asked = checked.asked
    sizes = Sizes(store, checked.system)
    if asked is None or not sizes.ranks:
        raise UsageError(
            f"{store.url}: nothing to estimate with", hint="The store must have steps of this job."
        )
    ranks = [rank for rank in sizes.ranks if asked.devices is None or rank in asked.devices]
    near = max((key for key in store.keys if key.step is not None), key=lambda key: key.order)
    step = near.step or 0
    amount = _amount(asked, sizes, ranks, step)
    whole, took = sizes.of_all([near.rank], [step]), sizes.time_of_step(near.rank, step)
    part = amount.files / max(len(ranks), 1) / max(whole.files, 1)
    return DumpCost(
        files=amount.files,
        nbytes=amount.nbytes,
        steps=None if asked.steps is None else len(asked.steps),
        ranks=len(ranks),
        seconds=None if took.seconds is None else took.seconds * part,
        free_nbytes=_free_nbytes(asked.directory),
        unknown=tuple(_unknown(asked, sizes, sizes.ranks[0], step)),
        seconds_unknown=took.unknown,
    )


def _free_nbytes(directory: str) -> int | None:
    """Return the free space where a dump goes; None if that is not a directory of this host."""
    space = space_at(_existing(Path(directory))) if directory.startswith("/") else None
    return None if space is None else space.free_nbytes


def _amount(asked: AskedDump, sizes: Sizes, ranks: Iterable[int], step: int) -> Amount:
    """Return how much is dumped in one step of these ranks."""
    amount = Amount()
    for rank in ranks:
        for (_, op_type, op_name, io), own in sizes.of_step(rank, step).items():
            if _is_asked(asked, op_type, op_name, io):
                amount += own if asked.tensors else Amount(0, own.files * _STATISTICS_NBYTES)
    return amount


def _is_asked(asked: AskedDump, op_type: str, op_name: str, io: str) -> bool:
    if asked.operators is None:
        return is_parameter(op_type) or asked.io.includes(io)
    return asked.io.includes(io) and any(pattern.matches(op_type, op_name) for pattern in asked.operators)


def _unknown(asked: AskedDump, sizes: Sizes, rank: int, step: int) -> Iterator[str]:
    names = [(op_type, op_name) for _, op_type, op_name, _ in sizes.of_step(rank, step)]
    for pattern in asked.operators or ():
        if not any(pattern.matches(*name) for name in names):
            yield pattern.text


def _existing(path: Path) -> Path:
    """Return the directory, or the nearest one above it that exists."""
    while not os.path.isdir(path) and path != path.parent:  # noqa: PTH112  (False where it may not be read)
        path = path.parent
    return path


def _lines(cost: DumpCost) -> Iterator[str]:
    steps = "each step" if cost.steps is None else f"each of {counted(cost.steps, 'step')}"
    unknown = f"; time not known: {cost.seconds_unknown}" if cost.seconds_unknown else ""
    time = unknown if cost.seconds is None else f", about {cost.seconds:.1f} s"
    yield (
        f"  {steps}: about {counted(cost.files, 'file')}, {human_bytes(cost.nbytes)} on "
        f"{counted(cost.ranks, 'rank')}{time}"
    )
    if cost.free_nbytes is not None:
        after = cost.full_disk_after
        room = "room for all" if after is None else f"full after {counted(after, 'step')}"
        yield f"  {human_bytes(cost.free_nbytes)} free there: {room}"
    for text in cost.unknown:
        yield f"  no operator in the store is called {text}"
