"""Why this process may not read a file of a dump: who owns it, who this process is, and what to change."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from workers.host.paths import from_here


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
