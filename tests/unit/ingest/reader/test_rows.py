"""Rows of `ls --json`: plain values, under documented names."""

from pathlib import Path

import numpy as np

from ingest.api import open_store
from ingest.reader.step import file_rows, step_row
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly


def test_problems_are_what_is_quarantined_and_what_was_skipped(made: MadeDump, store: Path) -> None:
    made.add(np.zeros(3), tensor_name("A.a"))
    bad = made.add(b"not an npy file", tensor_name("B.b"))
    link = bad.with_name("link.npy")
    link.symlink_to(bad)
    ingest_directly(made.root, store)
    step = open_store(store).step(0, 0)
    skipped, quarantined = file_rows(step, problems=True)
    assert step_row(step)["problems"] == 2
    assert (skipped["kind"], skipped["source"], skipped["digest"]) == (
        "skipped", str(link.relative_to(made.root)), "",
    )  # fmt: skip
    assert (quarantined["kind"], quarantined["source"]) == ("quarantined", str(bad.relative_to(made.root)))
    assert skipped["problem"]
    assert quarantined["problem"]
