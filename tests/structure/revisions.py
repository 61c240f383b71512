"""Extract the sources of a revision into a directory."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: The name of the working tree among revisions.
WORKING_TREE = "."
REPOSITORY = Path(__file__).parents[2]


@contextmanager
def sources_of(revision: str, repository: Path = REPOSITORY) -> Iterator[Path]:
    """Yield the root of the sources at a revision, which are removed at the end of the `with` block.

    Raises:
        subprocess.CalledProcessError: git cannot read the revision.
    """
    if revision == WORKING_TREE:
        yield repository
        return
    with tempfile.TemporaryDirectory(prefix="structure-") as directory:
        command = ["git", "archive", "--format=tar", "--end-of-options", revision]
        archive = subprocess.run(command, cwd=repository, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x", "-C", directory], input=archive, check=True)
        yield Path(directory)
