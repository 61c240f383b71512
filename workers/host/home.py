"""From paths as users type them to absolute ones."""

from __future__ import annotations

from pathlib import Path

from workers.errors import UsageError


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
