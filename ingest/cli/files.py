"""Files that commands write for people: plots, pages, tables and plans."""

from __future__ import annotations

from pathlib import Path

from ingest.cli.printing import say
from ingest.reader.files.output_file import output_file
from workers.errors import UsageError


def check_writable(path: Path, option: str) -> None:
    """Check that a file can be made, before work begins that takes long.

    Raises:
        UsageError: its directory does not exist, or the path is a directory itself.
    """
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise UsageError(
            f"{path} cannot be written", hint=f"{option} takes the name of a file in an existing directory."
        )


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file, and replace an older one. Characters that UTF-8 cannot encode are escaped.

    Raises:
        UsageError: the directory does not exist, or may not be written.
        DumpIngestError: the disk is full, or reports an error.
    """
    with output_file(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))


def write_and_say(path: Path, content: str | bytes) -> None:
    """Write a file as `write_file` does, and say so on stderr."""
    write_file(path, content)
    say(f"wrote {path}")
