"""What the first bytes of the files of a step say, and which errors stop a step or only one of its files."""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from ingest.layouts.base import Listing
from ingest.layouts.detect import find_dump
from ingest.planning.inspection import HEAD_BYTES, Inspected, inspect
from tests.npy_files import MadeDump, npy_bytes, tensor_name
from workers.errors import SourceChanged
from workers.model import SourceFile, StepKey

RECORD = {"AI Core": {"model_id": 1, "stream_id": 2, "task_id": 3, "status": 8}}


def listing_of(made: MadeDump) -> Listing:
    listings = {listing.key: listing for listing in find_dump(made.root).scan({}).listings}
    return listings[StepKey(0, 0)]


def inspected(
    made: MadeDump, *, unreadable: set[str] | None = None, poison: Mapping[SourceFile, bool] | None = None
) -> Inspected:
    listing = listing_of(made)
    description = find_dump(made.root).describe(listing)
    return inspect(made.root, listing, description, unreadable or set(), poison or {})


def test_header_and_sample_of_each_tensor_are_read(made: MadeDump) -> None:
    """Copies have the same sample; a file that holds no tensor is not opened."""
    for slot, value in enumerate((1.0, 1.0, 2.0)):
        made.add(np.full(5000, value), tensor_name(slot=slot))
    made.add(b"text", "notes.txt")
    result = inspected(made)
    assert len(result.inspections) == 3
    shapes = {header.shape for inspection in result.inspections.values() for header in inspection.headers}
    assert shapes == {(5000,)}
    samples = sorted(inspection.samples for inspection in result.inspections.values())
    assert len(set(samples)) == 2
    assert (result.unreadable, result.undecoded, result.poison, result.unfinished) == ([], [], (), "")


@pytest.mark.parametrize("header_nbytes", [128, 1024, 1088, HEAD_BYTES, 2 * HEAD_BYTES])
def test_header_of_any_length_gives_the_same_shape_and_sample(header_nbytes: int, made: MadeDump) -> None:
    """A long one leaves no room for the sample in the bytes that are read first."""
    values = np.arange(5000.0)
    text = repr({"descr": "<f8", "fortran_order": False, "shape": values.shape}).encode()
    padded = text.ljust(header_nbytes - 11) + b"\n"
    head = b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded
    made.add(head + values.tobytes(), tensor_name(slot=0))
    made.add(values, tensor_name(slot=1))
    long, usual = inspected(made).inspections.values()
    assert [header.shape for header in long.headers] == [(5000,)]
    assert len(long.headers[0].lead) == header_nbytes
    assert long.samples == usual.samples


@pytest.mark.parametrize("writable", [True, False])
def test_short_file_may_grow_unless_its_writer_has_closed_it(writable: bool, made: MadeDump) -> None:
    """MindSpore takes the permission to write away when it closes a file."""
    path = made.add(npy_bytes(np.zeros(10))[:-1])
    path.chmod(0o600 if writable else 0o400)
    result = inspected(made)
    (inspection,) = result.inspections.values()
    assert inspection.may_grow == writable
    assert "header announces" in inspection.problem
    assert result.unfinished == (str(path.relative_to(made.root)) if writable else "")


def test_overflow_record_in_json_is_read_and_other_json_is_not(made: MadeDump) -> None:
    made.add(json.dumps(RECORD).encode(), "Opdebug.Node_OpDebug.1.2.3.output.0.json")
    made.add(b"{}", "kernel.json")
    (inspection,) = inspected(made).inspections.values()
    assert inspection.overflow is not None
    assert [failure.task_id for failure in inspection.overflow.failures()] == [3]


def failing(error: OSError, path: Path) -> object:
    def fail(opened: str, flags: int) -> int:
        if opened.endswith(path.name):
            raise error
        return open_(opened, flags)

    open_ = os.open
    return fail


@pytest.mark.parametrize("code", [errno.EIO, errno.EUCLEAN, errno.EBADMSG], ids=errno.errorcode.get)
def test_disk_that_does_not_return_a_file_quarantines_this_file(
    code: int, made: MadeDump, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the device fails, or the file system finds that what it returned is damaged."""
    bad, good = made.add(np.zeros(2)), made.add(np.zeros(2), tensor_name(slot=1))
    monkeypatch.setattr("os.open", failing(OSError(code, os.strerror(code)), bad))
    result = inspected(made)
    assert result.unreadable == [str(bad.relative_to(made.root))]
    assert result.inspections[str(good.relative_to(made.root))].readable


def test_trouble_that_passes_stops_the_step_for_now(made: MadeDump, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files, or a stale handle, say nothing about the file."""
    bad = made.add(np.zeros(2))
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    monkeypatch.setattr("os.open", failing(error, bad))
    with pytest.raises(SourceChanged, match=r"rank 0 step 0: .* cannot be read now: Too many open files"):
        inspected(made)
