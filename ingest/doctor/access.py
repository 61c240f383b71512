"""Why this process may not read a file of a dump: whose it is, who this is, and what to set."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a process is to the file system."""

    uid: int
    groups: frozenset[int]

    @classmethod
    def of_this_process(cls) -> Identity:
        """Return the effective ids of this process."""
        return cls(os.geteuid(), frozenset({os.getegid(), *os.getgroups()}))

    def __str__(self) -> str:
        groups = ", ".join(_group(gid) for gid in sorted(self.groups))
        return f"uid {_user(self.uid)}, groups {groups}"


@dataclass(frozen=True, slots=True)
class Barrier:
    """The first file or directory on the way to a path that does not let a process through."""

    path: Path
    mode: int
    uid: int
    gid: int
    is_directory: bool

    def explain(self, me: Identity) -> str:
        """Say whose it is and who asks."""
        what = "directory" if self.is_directory else "file"
        return (
            f"{self.path}: permission denied; the {what} has mode {stat.S_IMODE(self.mode):04o}, owner "
            f"{_user(self.uid)} and group {_group(self.gid)}, and this process is {me}"
        )

    def advice(self, me: Identity, dump: Path) -> str:
        """Say what to set, so that the whole of a dump can be read."""
        if self._admits(me):
            return (
                "The mode would admit this process: an access control list, a security module or the file "
                "server does not. Ask who runs it, or run as the owner of the dump."
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
        ways.append(f"as the owner: setfacl -R -m u:{me.uid}:rX {dump} (and the same with -d for what comes)")
        return "; or ".join(ways) + "."

    def _admits(self, me: Identity) -> bool:
        # Root is like anybody else here: where it is refused, it is without its privileges.
        if me.uid == self.uid:
            return self._grants(stat.S_IRUSR, stat.S_IXUSR)
        if self.gid in me.groups:
            return self._grants(stat.S_IRGRP, stat.S_IXGRP)
        return self._grants(stat.S_IROTH, stat.S_IXOTH)

    def _grants(self, read: int, enter: int) -> bool:
        needed = read | enter if self.is_directory else read
        return self.mode & needed == needed


def first_barrier(path: Path) -> Barrier | None:
    """Return what stands between this process and the content of a path; None where it can be read.

    A link leads on to what it points to. What does not exist is no barrier.
    """
    path = Path(os.path.realpath(path))
    for place in (*reversed(path.parents), path):
        try:
            found = place.stat()
        except OSError:
            return None
        is_directory = stat.S_ISDIR(found.st_mode)
        # On the way to the path it is enough to pass; the path itself must be read, too.
        needed = (os.X_OK if is_directory else 0) | (os.R_OK if place == path else 0)
        if not os.access(place, needed, effective_ids=True):
            return Barrier(place, found.st_mode, found.st_uid, found.st_gid, is_directory)
    return None


def _user(uid: int) -> str:
    try:
        return f"{uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:  # a container knows few names
        return str(uid)


def _group(gid: int) -> str:
    try:
        return f"{gid} ({grp.getgrgid(gid).gr_name})"
    except KeyError:
        return str(gid)
