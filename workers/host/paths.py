"""Places on a host with several users: home directories, directories for temporary files, our own modules.

What is in a directory for temporary files is trusted: compiled kernels are executed, and Dask has Python
look for modules in the directory of a worker. Any user may create any name in `/tmp`, so a name that can be
guessed may belong to somebody else.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from workers.errors import ClusterError, UsageError


def absolute(path: Path) -> Path:
    """Return an absolute path, with `~` and `~user` replaced by home directories.

    Raises:
        UsageError: the user has no home directory, or the current directory was deleted.
    """
    try:
        expanded = path.expanduser()
    except RuntimeError as exc:
        user = path.parts[0]
        raise UsageError(
            f"{path}: the home directory {user} does not exist",
            hint=f"If a directory has that name, write its absolute path, such as $PWD/{user}.",
        ) from exc
    return from_here(expanded)


def from_here(path: Path) -> Path:
    """Return an absolute path.

    Raises:
        UsageError: the current directory was deleted.
    """
    try:
        return path.absolute()
    except FileNotFoundError as exc:
        raise UsageError(
            f"{path}: the current directory was deleted", hint="Change to it again: cd $PWD."
        ) from exc


_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def own_directory() -> Path | None:
    """Return the directory of this user among temporary files; create it if it is missing.

    Its name does not change, so it serves as a cache. Return None if it cannot be written, or is not private:
    somebody else has created it.
    """
    directory = Path(tempfile.gettempdir(), f"dump-ingest-{os.getuid()}")
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
        return directory if is_private(directory) else None
    except OSError:
        return None


def is_private(directory: Path) -> bool:
    """Return whether only this user can enter a directory, and nobody else can put another in its place.

    Raises:
        OSError: the directory does not exist.
    """
    status = directory.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & _OTHERS
    return is_ours and not _may_be_replaced(directory)


def check_scratch(directory: Path) -> None:
    """Check a directory in which Python looks for modules: only this user and root may write to it.

    Raises:
        ClusterError: somebody else may.
    """
    status = directory.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid in {0, os.getuid()}
    if not is_ours or status.st_mode & _OTHERS_WRITE:
        raise ClusterError(
            f"{directory} belongs to another user, or others may write to it: they could plant code there",
            hint="Give the worker a --local-directory that is this user's own.",
        )


def _may_be_replaced(directory: Path) -> bool:
    """Return whether other users may rename or delete an entry of the directory above."""
    above = directory.absolute().parent.stat()
    if above.st_uid not in {0, os.getuid()}:
        return True
    return bool(above.st_mode & _OTHERS_WRITE) and not above.st_mode & stat.S_ISVTX


_ROOT = str(Path(__file__).parents[2])


def environment() -> dict[str, str]:
    """Return the environment of this process, with `workers` and `ingest` on the path of modules.

    Start the interpreter with `-P`: the working directory may hold anything.
    """
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), _ROOT]))
    return {**os.environ, "PYTHONPATH": path}
