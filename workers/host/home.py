"""Home directories in paths, as users type them."""

from __future__ import annotations

from pathlib import Path

from workers.errors import UsageError


def absolute(path: Path) -> Path:
    """Return an absolute path, with `~` and `~user` replaced by home directories.

    Raises:
        UsageError: there is no such user, or no home directory.
    """
    try:
        return path.expanduser().absolute()
    except RuntimeError as exc:
        user = path.parts[0]
        raise UsageError(
            f"{path}: {user} is no home directory",
            hint=f"If a directory has that name, write its absolute path, such as $PWD/{user}.",
        ) from exc
