"""One command against the archivers that people would use instead: time, bytes and objects.

The dump has two ranks and three steps of the large profile, or is the one that `--dump` names. Everything
lies in memory, if there is room: the disk is not what is compared. Nothing is encrypted by borg.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.costs import Cost, Footprint, command_cost, copy_cost, footprint
from bench.load import build, read_replicated
from bench.measure import Measure, Ratio, Table, in_turns, median, shown
from bench.parts.pooling import REPLICATED
from bench.parts.whole import PROGRAM, ingest_cost
from bench.setting import PROFILE, Setting

_RANKS, _STEPS = 2, 3
#: The most that may be stored of the raw bytes: by default, and after `gc --recompress`.
_MOST, _MOST_RECOMPRESSED = 0.225, 0.205
_OURS, _COPY = "dump-ingest ingest", "cp -r"
#: How each peer packs a dump.
_PEERS = {
    "mksquashfs lz4": "mksquashfs $dump $to -comp lz4 -no-progress -quiet",
    "mksquashfs zstd -1": "mksquashfs $dump $to -comp zstd -Xcompression-level 1 -no-progress -quiet",
    "restic": "restic init --repo $to && restic backup --quiet --repo $to $dump",
    "borg lz4": "borg init --encryption none $to && borg create --compression lz4 $to::all $dump",
    "borg zstd": "borg init --encryption none $to && borg create --compression zstd,1 $to::all $dump",
    "tar, zstd -1": "tar --create $dump | zstd -1 --quiet -o $to",
}


class _Packed(NamedTuple):
    """What one way took, and what is there afterwards."""

    cost: Cost
    left: Footprint


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield a table of all, what we store, and what we take of the time of a copy."""
    with setting.target(setting.fast) as built:
        dump = setting.dump or built
        if not setting.dump:
            replicated = read_replicated(REPLICATED)
            steps = 1 if setting.quick else _STEPS
            build(PROFILE, dump, steps=steps, ranks=_RANKS, replicated=lambda row: row.name in replicated)
        raw = footprint(dump).nbytes
        ways: dict[str, Callable[[Path], Cost]] = {
            _COPY: partial(copy_cost, dump),
            _OURS: partial(ingest_cost, dump),
        }
        ways |= {
            name: partial(_packed_by, command, dump)
            for name, command in _PEERS.items()
            if shutil.which(command.split(maxsplit=1)[0])
        }
        told = in_turns(setting.rounds, {name: partial(_run, setting, way) for name, way in ways.items()})
        with setting.target(setting.fast) as store:
            recompressed = _recompressed(dump, store)
    yield Table(
        f"{raw / 1e9:.2f} GB of tensors, by one command each",
        ("command", "wall", "processor", "stored / raw", "objects"),
        tuple(
            (
                name,
                f"{shown(median([each.cost.wall for each in rounds]))} s",
                f"{shown(median([each.cost.processor for each in rounds]))} s",
                f"{rounds[0].left.nbytes / raw:.3f}",
                str(rounds[0].left.objects),
            )
            for name, rounds in told.items()
        ),
    )
    ours = told[_OURS]
    for floor, what, nbytes in (
        (_MOST, "stored", ours[0].left.nbytes),
        (_MOST_RECOMPRESSED, "stored, after gc --recompress", recompressed),
    ):
        yield Measure(what, "raw", "MB", (nbytes / 1e6,), (raw / 1e6,), Ratio.SHARE, floor=floor)
    for what, field in (("seconds", 0), ("processor time", 1)):
        our, other = (tuple(each.cost[field] for each in rounds) for rounds in (ours, told[_COPY]))
        yield Measure(f"{what}, one command", _COPY, "s", our, other, Ratio.SHARE)


def _run(setting: Setting, way: Callable[[Path], Cost]) -> _Packed:
    """Pack the dump in one way, and look at what is there."""
    with setting.target(setting.fast) as target:
        packed = _Packed(way(target), footprint(target))
        if target.is_file():  # `target` removes directories
            target.unlink()
    return packed


def _packed_by(command: str, dump: Path, target: Path) -> Cost:
    """Run the command of a peer, with nothing of the user's: no cache, no password, no question."""
    with TemporaryDirectory(dir=target.parent) as home:
        settings = {
            "HOME": home,
            "RESTIC_PASSWORD": "none",
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
            "dump": str(dump.absolute()),
            "to": str(target),
        }
        words = [f"{name}={value}" for name, value in settings.items()]
        return command_cost(["env", *words, "bash", "-o", "pipefail", "-c", command])


def _recompressed(dump: Path, store: Path) -> int:
    """Return the bytes of a store of which all steps were recompressed, and what they were before is gone."""
    ingest_cost(dump, store)
    for options in (("--recompress", "0s"), ("--keep-last", "1000000", "--grace", "0s")):
        command_cost([str(PROGRAM), "gc", str(store), *options, "--apply"])
    return footprint(store).nbytes
