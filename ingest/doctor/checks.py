"""The checks of `dump-ingest doctor`: each answers one question, and says what to do if it fails."""

from __future__ import annotations

import grp
import json
import os
import platform
import pwd
import socket
import stat
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest.disk.pressure import parse_threshold
from ingest.disk.space import space_at
from ingest.doctor.remote import (
    KEPT,
    Check,
    check_backlog,
    check_clock,
    check_gc,
    check_process,
    check_scheduler,
    check_view,
)
from ingest.dump_configs.checking.check import check_dump_config, worst_first
from ingest.layouts.base import Dump, DumpScan, ProblemKind
from ingest.layouts.detect import find_dump
from ingest.layouts.proposal import proposed_hint
from ingest.reader.choice import format_ranges
from ingest.reader.context.files import COPIES
from ingest.reader.text import counted
from ingest.service.foreign_dump import ForeignDumpCheck
from ingest.settings import LoadedSettings, Settings
from ingest.units import human_bytes
from ingest.wiring.stores import grid_of, place_of_store, refuse_misplaced
from workers import __version__
from workers.errors import (
    AccessDenied,
    ClockSkewed,
    DumpIngestError,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from workers.host.credentials import masked
from workers.host.paths import from_here
from workers.store import commit
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects

#: Steps of which one file is tried.
_TRIED = 8
#: How many directories are named.
_NAMED = 8
_NO_STORE_HINT = (
    "The first commit creates it. If watchers have committed already, this is not their store: compare the "
    "setting `store` of all processes (`dump-ingest config show`)."
)
_MISNAMED_HINT = "Nothing in it is ingested. Rename it as docs/formats.md shows, or move it out of the dump."
_ONLY_FILES = "no tensors in any known layout: tensor files would be kept as files"

#: Of a store that does not answer at all. Other commands say that nothing half done is visible.
_UNREACHABLE_HINT = (
    "Compare the address with the URL of the store and AWS_ENDPOINT_URL, and look whether this host reaches "
    "it (name, proxy, firewall); then run doctor again."
)
#: Of a store that is a directory.
_UNWRITABLE_HINT = "Look whether its file system is full, mounted read-only or away; then run doctor again."

#: The store, if the dump cannot be read.
_NOT_CHECKED = Check(
    "store",
    ok=False,
    detail="not checked: without the dump, nobody can tell whether the store would lie in it",
    hint="Mend the dump first, or check the store alone: dump-ingest doctor --store URL",
)


@dataclass(frozen=True, slots=True)
class _Scanned:
    """A dump, and what one scan found in it."""

    dump: Dump
    scan: DumpScan


def run_checks(loaded: LoadedSettings, directory: Path | None, processes: Sequence[str] = ()) -> list[Check]:
    """Check software and settings; and dump, store, scheduler and processes, if they are named.

    Args:
        loaded: the settings.
        directory: the dump.
        processes: where watchers and consolidators serve their metrics, such as `http://host:9108`.

    Raises:
        UsageError: a URL is not one of a web server.
    """
    settings = loaded.settings
    software = f"dump-ingest {__version__}, Python {platform.python_version()}, {platform.machine()}"
    results = [
        Check("software", ok=True, detail=software),
        Check("identity", ok=True, detail=str(Identity.of_this_process())),
        _settings(loaded),
    ]
    scanned: _Scanned | None = None
    if directory is not None:
        try:
            scanned = _scan(settings, directory)
            results += _dump(settings, scanned)
        except DumpIngestError as exc:
            results.append(_failure("dump", exc))
        results += _disk(settings, directory)
    if settings.store is not None and directory is not None and scanned is None:
        results.append(_NOT_CHECKED)
    elif settings.store is not None:
        results += _guarded("store", lambda: _reachable_store(settings, scanned))
    if settings.scheduler is not None:
        results += _guarded("scheduler", lambda: [check_scheduler(settings)])
    if processes:
        url = "" if settings.store is None else masked(place_of_store(settings, None).url)
        is_view_kept = any(result.check == "view" and result.detail.startswith(KEPT) for result in results)
        results += [check_process(process, url, is_view_kept=is_view_kept) for process in processes]
    return results


def _guarded(name: str, check: Callable[[], list[Check]]) -> list[Check]:
    try:
        return check()
    except DumpIngestError as exc:
        return [_failure(name, exc)]


def _failure(name: str, exc: DumpIngestError) -> Check:
    return Check(name, ok=False, detail=exc.message, hint=exc.hint)


def _settings(loaded: LoadedSettings) -> Check:
    if loaded.unknown_variables:
        names = ", ".join(loaded.unknown_variables)
        return Check(
            "settings",
            ok=False,
            detail=f"environment variables that are not settings: {names}",
            hint="Check the spelling, or unset them: `dump-ingest config schema` lists all settings.",
        )
    given = sum(1 for origin in loaded.origins.values() if origin != "default")
    return Check("settings", ok=True, detail=f"valid, {given} of {len(loaded.origins)} given")


def _scan(settings: Settings, directory: Path) -> _Scanned:
    """Find the dump and scan it once, for all checks.

    Raises:
        DumpIngestError: the dump does not exist, or cannot be read.
    """
    # A parent that may not be entered hides the dump: it would seem not to exist.
    _require_readable(directory, directory)
    dump = find_dump(directory, rank_map=settings.rank_map, layout=settings.layout)
    scan = dump.scan({})
    _require_none_denied(dump, scan)
    # A few files are enough: the files of a dump all have the same owner and mode.
    for listing in scan.listings[:_TRIED]:
        for file in listing.files[-1:]:
            _require_readable(dump.root / file.path, dump.root)
    return _Scanned(dump, scan)


def _dump(settings: Settings, scanned: _Scanned) -> list[Check]:
    """Say what the dump has, and whether ranks are missing or directories have the wrong names."""
    scan = scanned.scan
    keys = [listing.key for listing in scan.listings if listing.key.step is not None]
    ranks, steps = {key.rank for key in keys}, {key.step for key in keys}
    nbytes = sum(listing.nbytes for listing in scan.listings)
    names = {name for listing in scan.listings for name in listing.layout.split("+")}
    layouts = "+".join(sorted(names - {""})) or "empty"
    size = f"{counted(len(ranks), 'rank')}, {counted(len(steps), 'step')}, {human_bytes(nbytes)}"
    detail = f"{layouts} at {scanned.dump.root}: {size}"
    checks = [*_names(scan), *_expected_ranks(settings, scan, ranks), *check_configuration(scanned.dump.root)]
    return [Check("dump", ok=True, detail=detail), *_layout(scanned), *checks]


def _layout(scanned: _Scanned) -> list[Check]:
    """Propose a pattern if the first steps have no tensors by any layout; nothing if they have some."""
    steps = [listing for listing in scanned.scan.listings if listing.key.step is not None]
    described = (scanned.dump.describe(listing) for listing in steps[:_TRIED])
    if any(step.named or step.reported for step in described):
        return []
    hint = proposed_hint(scanned.dump.root)
    # Directories of checkpoints have the same names, beside a job that has not dumped yet.
    return [Check("layout", ok=True, detail=_ONLY_FILES, hint=hint)] if hint else []


def _expected_ranks(settings: Settings, scan: DumpScan, ranks: Collection[int]) -> list[Check]:
    """Compare the ranks of a dump with the number that settings or rank tables give; nothing without one."""
    given = settings.expected_ranks
    expected = scan.expected_ranks if given is None else given
    if not expected:
        return []
    by = "the rank table" if given is None else "expected_ranks"
    detail = f"{len(ranks)} of {counted(expected, 'rank')}, by {by}"
    if len(ranks) >= expected:
        return [Check("ranks", ok=True, detail=detail)]
    missing = format_ranges(sorted(set(range(expected)) - set(ranks)))
    hint = (
        f"Ranks {missing} have no dump here. If they are on another host, ask `doctor` there; otherwise look "
        "at their processes. If only some ranks dump on purpose, set expected_ranks to their number, or to 0."
    )
    # A dump on the disk of one host never has all of them.
    return [Check("ranks", ok=given is None, detail=detail, hint=hint)]


def _require_none_denied(dump: Dump, scan: DumpScan) -> None:
    """Do nothing if the scan could read everything that it came to.

    Raises:
        AccessDenied: it could not; the message says why.
    """
    problems = [*scan.problems, *(problem for listing in scan.listings for problem in listing.problems)]
    denied = [problem for problem in problems if problem.denied]
    if denied:
        _require_readable(dump.root / denied[0].path, dump.root)
        raise AccessDenied(
            f"{dump.root}: {counted(len(denied), 'path')} cannot be read; the first: {denied[0]}",
            hint=denied[0].hint,
        )


def _names(scan: DumpScan) -> list[Check]:
    """Report directories that resemble those of ranks or steps, and cannot be taken for them."""
    problems = [problem for problem in scan.problems if problem.kind is ProblemKind.NAME]
    if not problems:
        return []
    more = f" (and {len(problems) - _NAMED} more)" if len(problems) > _NAMED else ""
    detail = "; ".join(str(problem) for problem in problems[:_NAMED]) + more
    return [Check("names", ok=False, detail=detail, hint=problems[0].hint or _MISNAMED_HINT)]


def _disk(settings: Settings, directory: Path) -> list[Check]:
    """Report how full the disk of a dump is. That is never a failure: everything works until it is full."""
    space = space_at(directory)
    if space is None:
        return []
    share = space.free_nbytes / max(space.nbytes, 1)
    detail = f"{human_bytes(space.free_nbytes)} of {human_bytes(space.nbytes)} free ({share:.0%})"
    detail += f", {space.free_inodes} inodes" if space.inodes else ""
    if parse_threshold(settings.pressure_free).freedom(space) >= 1:
        return [Check("disk", ok=True, detail=detail)]
    hint = (
        f"Less is free than pressure_free ({settings.pressure_free}), so under_pressure "
        f"({settings.under_pressure}) applies. Free some space, or ingest with `--after-commit delete`."
    )
    return [Check("disk", ok=True, detail=f"{detail}, nearly full", hint=hint)]


def _require_readable(path: Path, dump: Path) -> None:
    """Do nothing if a path can be read.

    Raises:
        AccessDenied: it cannot; the message says who owns it and who asks, the hint what to change.
    """
    if barrier := first_barrier(path):
        me = Identity.of_this_process()
        raise AccessDenied(barrier.explain(me), hint=barrier.advice(me, dump))


def _reachable_store(settings: Settings, scanned: _Scanned | None) -> list[Check]:
    """Check the store; if it does not answer, say where to look."""
    try:
        return _store(settings, scanned)
    except ClockSkewed:
        raise
    except StoreUnavailable as exc:
        is_remote = "://" in place_of_store(settings, None).url
        hint = _UNREACHABLE_HINT if is_remote else _UNWRITABLE_HINT
        return [Check("store", ok=False, detail=exc.message, hint=hint)]


def _store(settings: Settings, scanned: _Scanned | None) -> list[Check]:
    """Find out whether objects come back as they were written; then look at what the store has."""
    objects = open_objects(place_of_store(settings, None if scanned is None else scanned.dump))
    root = commit.read_root(objects)
    if root is None:
        refuse_misplaced(objects)
    clock = _write_and_read_back(objects, settings)
    belongs = [_belongs(settings, scanned, objects)] if scanned and not settings.replace else []
    if root is None:
        detail = f"{settings.store}: writable, no store there yet"
        return [Check("store", ok=True, detail=detail, hint=_NO_STORE_HINT), *clock, *belongs]
    detail = f"{settings.store}: writable, store format {root}"
    # Steps of another dump with the same numbers are not those of this one.
    is_its_store = all(check.ok for check in belongs)
    listings = scanned.scan.listings if scanned and is_its_store else ()
    backlog = check_backlog(objects, listings) if listings else None
    checks = (backlog, check_view(objects), check_gc(objects))
    return [Check("store", ok=True, detail=detail), *clock, *belongs, *(check for check in checks if check)]


def _write_and_read_back(objects: ObjectStore, settings: Settings) -> list[Check]:
    """Write an object, read it back and delete it; return how far the clock of the store is from ours.

    Raises:
        StoreError: it is another one, or the store refused.
    """
    key = f".doctor-{uuid.uuid4().hex}"
    payload = os.urandom(64)
    objects.put(key, payload)
    if objects.get(key) != payload:
        raise StoreError(
            f"{settings.store}: an object did not come back as it was written ({key}, {len(payload)} bytes)",
            hint="Do not ingest into this store. Look for a proxy or a cache in between, check the storage "
            "itself, and run doctor again.",
        )
    written = objects.listed(key).get("")
    now = time.time()
    objects.delete(key)
    return [] if written is None else [check_clock(written.modified_at, now)]


def _belongs(settings: Settings, scanned: _Scanned, objects: ObjectStore) -> Check:
    """Find out whether the store has the ranks of the dump from this dump, and from no other."""
    host = settings.host or socket.gethostname()
    foreign_dumps = ForeignDumpCheck(scanned.dump, objects, grid_of(settings), host, set(settings.continues))
    ranks = {listing.key.rank for listing in scanned.scan.listings}
    for error in foreign_dumps.check(ranks):
        return _failure("dump in store", error)
    detail = (
        f"{counted(len(ranks), 'rank')} of {scanned.dump.root}: new to the store, or in it from this dump"
    )
    return Check("dump in store", ok=True, detail=detail)


_SHOWN = 3


def check_configuration(root: Path) -> list[Check]:
    """Say what is wrong in the configuration that a dump has of itself; nothing without one."""
    copies = sorted(root.glob(COPIES))
    if not copies:
        return []
    path = copies[0]
    about = _about(path.with_name("config.json"))
    version, device = str(about.get("ms_version", "")), str(about.get("device_target", ""))
    name = "dump configuration"
    try:
        checked = check_dump_config(path, version=version, device=device if device != "Davinci" else "Ascend")
    except UsageError as exc:
        return [Check(name, ok=False, detail=exc.message, hint=exc.hint)]
    if not checked.findings:
        return [Check(name, ok=True, detail=f"{path}: nothing is wrong with it")]
    shown = "; ".join(str(finding) for finding in worst_first(checked.findings)[:_SHOWN])
    hint = f"`dump-ingest check {path}` shows everything, with the sources."
    return [Check(name, ok=not checked.refused, detail=f"{path}: {shown}", hint=hint)]


def _about(path: Path) -> dict[str, Any]:
    """Read MindSpore's description of itself next to the configuration; {} if there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a process is, as the file system sees it."""

    uid: int
    groups: frozenset[int]

    @classmethod
    def of_this_process(cls) -> Identity:
        """Return the effective user and groups of this process."""
        return cls(os.geteuid(), frozenset({os.getegid(), *os.getgroups()}))

    def __str__(self) -> str:
        groups = ", ".join(_group(gid) for gid in sorted(self.groups))
        return f"uid {_user(self.uid)}, groups {groups}"


@dataclass(frozen=True, slots=True)
class Barrier:
    """The first file or directory on the way to a path that a process may not pass."""

    path: Path
    mode: int
    uid: int
    gid: int
    is_directory: bool

    def explain(self, me: Identity) -> str:
        """Return who owns the file or directory, what its mode is, and who asks, as one sentence."""
        what = "directory" if self.is_directory else "file"
        return (
            f"{self.path}: permission denied; the {what} has mode {stat.S_IMODE(self.mode):04o}, owner "
            f"{_user(self.uid)} and group {_group(self.gid)}, and this process is {me}"
        )

    def advice(self, me: Identity, dump: Path) -> str:
        """Return advice on how to let this process read the whole dump."""
        if self._admits(me):
            return (
                "The mode would admit this process, so an access control list, a security module (SELinux, "
                "AppArmor) or the file server refuses it. Ask whoever runs the file system, or run as the "
                "owner of the dump."
            )
        if me.uid == self.uid:
            return f"The owner itself is locked out: chmod -R u+rX {dump}"
        run_as = (
            f"Run as uid {self.uid}: `User=` in a drop-in of the systemd unit, "
            f"`docker run --user {self.uid}`, `runAsUser: {self.uid}` in Kubernetes"
        )
        ways = [run_as]
        if self._grants(stat.S_IRGRP, stat.S_IXGRP):
            join = "`SupplementaryGroups=` in systemd, `supplementalGroups` in Kubernetes"
            ways.append(f"join group {self.gid}: {join}")
        ways.append(
            f"as the owner: setfacl -R -m u:{me.uid}:rX {dump} (and again with -d, for files that come later)"
        )
        return "; or ".join(ways) + "."

    def _admits(self, me: Identity) -> bool:
        # Root counts like anybody else: if it is refused, it runs without its privileges.
        if me.uid == self.uid:
            return self._grants(stat.S_IRUSR, stat.S_IXUSR)
        if self.gid in me.groups:
            return self._grants(stat.S_IRGRP, stat.S_IXGRP)
        return self._grants(stat.S_IROTH, stat.S_IXOTH)

    def _grants(self, read: int, enter: int) -> bool:
        needed = read | enter if self.is_directory else read
        return self.mode & needed == needed


def first_barrier(path: Path) -> Barrier | None:
    """Return the first file or directory that keeps this process from reading a path; None if none does.

    Links are followed. A path that does not exist has no barrier.

    Raises:
        UsageError: the path is relative, and the current directory was deleted.
    """
    path = Path(os.path.realpath(from_here(path)))
    for ancestor in (*reversed(path.parents), path):
        try:
            status = ancestor.stat()
        except OSError:
            return None
        is_directory = stat.S_ISDIR(status.st_mode)
        # Directories on the way only have to be entered; the path itself has to be read, too.
        needed = (os.X_OK if is_directory else 0) | (os.R_OK if ancestor == path else 0)
        if not os.access(ancestor, needed, effective_ids=True):
            return Barrier(ancestor, status.st_mode, status.st_uid, status.st_gid, is_directory)
    return None


def _user(uid: int) -> str:
    try:
        return f"{uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:  # a container knows only a few names
        return str(uid)


def _group(gid: int) -> str:
    try:
        return f"{gid} ({grp.getgrgid(gid).gr_name})"
    except KeyError:
        return str(gid)
