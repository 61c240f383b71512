"""What is lost, late, wrong or left is told apart, and what is late says what its step waits for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import checker
from tests.faults.campaign import where_steps_are
from tests.faults.judge import StoredFile, Verdict, _compare_files
from tests.faults.writer import Writer, digest

SOURCE, OTHER = "rank_0/LeNet/0/7/a.npy", "rank_0/LeNet/0/7/b.npy"
WAITING = where_steps_are([{"rank": 0, "step": 7, "phase": "kept", "reason": "1 of its files are gone"}])


def compared(
    dump: Path, *, final: bytes, present: bytes | None, stored: bytes | None, deletes: bool = False
) -> Verdict:
    """Return the verdict on one file: the job left `final`, after it had written `early`."""
    if present is not None:
        path = dump / SOURCE
        path.parent.mkdir(parents=True)
        path.write_bytes(present)
    leaf = checker.Leaf(0, 7, {}, {})
    files = {SOURCE: stored, OTHER: b"other" if deletes else None}
    writer: Any = SimpleNamespace(
        dump=dump,
        final={SOURCE: digest(final)},
        written={SOURCE: {digest(final), digest(b"early")}},
        torn=set(),
        forged=set(),
    )
    verdict = Verdict()
    _compare_files(
        verdict,
        cast("Writer", writer),
        {
            source: (leaf, StoredFile(source, "tensor", "", digest(content)))
            for source, content in files.items()
            if content is not None
        },
        WAITING,
        deletes=deletes,
    )
    return verdict


def test_a_file_that_is_stored_is_counted(tmp_path: Path) -> None:
    verdict = compared(tmp_path, final=b"new", present=b"new", stored=b"new")
    assert verdict.is_good
    assert verdict.tensors == 1


@pytest.mark.parametrize(("stored", "words"), [(None, ""), (b"early", "an earlier content is stored; ")])
def test_a_file_that_is_only_in_the_dump_is_late(tmp_path: Path, stored: bytes | None, words: str) -> None:
    verdict = compared(tmp_path, final=b"new", present=b"new", stored=stored)
    assert verdict.late == [f"{SOURCE}: {words}rank 0 step 7 is kept: 1 of its files are gone"]
    assert not verdict.lost
    assert not verdict.wrong
    assert not verdict.is_good


@pytest.mark.parametrize("stored", [None, b"early"])
def test_a_file_that_is_nowhere_is_lost(tmp_path: Path, stored: bytes | None) -> None:
    verdict = compared(tmp_path, final=b"new", present=None, stored=stored, deletes=True)
    assert verdict.lost == [SOURCE]
    assert not verdict.late


def test_bytes_that_nobody_wrote_are_wrong(tmp_path: Path) -> None:
    verdict = compared(tmp_path, final=b"new", present=b"new", stored=b"nonsense")
    assert verdict.wrong == [f"{SOURCE} differs from all that was dumped"]


def test_a_late_file_next_to_deleted_ones_is_left(tmp_path: Path) -> None:
    verdict = compared(tmp_path, final=b"new", present=b"new", stored=None, deletes=True)
    assert verdict.left == 1
    assert verdict.is_good


def test_without_a_watcher_nothing_is_known_of_steps() -> None:
    assert where_steps_are(None) == {}
