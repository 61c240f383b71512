"""What keeps a process from a dump, and what it is told to set."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.doctor.checks import Barrier, Identity
from tests.cli import run
from tests.dumps import DumpLibrary

TRAINER = 4321


def barrier(mode: int, *, is_directory: bool = False) -> Barrier:
    kind = stat.S_IFDIR if is_directory else stat.S_IFREG
    return Barrier(Path("/d/f"), kind | mode, TRAINER, 500, is_directory)


@given(mode=st.integers(0, 0o777), member=st.booleans(), is_directory=st.booleans())
def test_mode_is_not_blamed_where_it_admits(mode: int, member: bool, is_directory: bool) -> None:
    me = Identity(7, frozenset({500} if member else set()))
    bits = (mode >> 3 if member else mode) & 0o7
    admits = bits & (0o5 if is_directory else 0o4) == (0o5 if is_directory else 0o4)
    advice = barrier(mode, is_directory=is_directory).advice(me, Path("/d"))
    assert ("would admit" in advice) is admits


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_doctor_explains_the_dump_of_a_training_user(
    dumps: DumpLibrary, tmp_path: Path, unprivileged: tuple[str, ...]
) -> None:
    """The directories of MindSpore are 0700 of that user; the parent alone shows it."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "dump").symlink_to(dumps["nan-log-2rank"] / "dump")
    os.chown(home, TRAINER, TRAINER)
    done = run("doctor", home / "dump", code=1, prefix=unprivileged)
    assert f"{home}: permission denied; the directory has mode 0700, owner {TRAINER}" in done.stdout
    assert f"runAsUser: {TRAINER}" in done.stdout
    assert "identity" in done.stdout
    refused = run("ingest", home / "dump", "--store", tmp_path / "run.zarr", code=1, prefix=unprivileged)
    assert "permission denied" in refused.stderr
