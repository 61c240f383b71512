"""Devices and processes that would be one rank: nothing of that rank is ingested."""

from pathlib import Path

import pytest

from ingest.layouts.base import Listing
from ingest.layouts.detect import find_dump
from workers.model import StepKey

_BIN = "Add.a.1.1.1722484800151657"
_SGLANG = "step=0___rank=0___dump_index=1___name=x.pt"


def _make(root: Path, *paths: str) -> dict[StepKey, Listing]:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    return {listing.key: listing for listing in find_dump(root).scan({}).listings}


def test_two_devices_are_not_one_rank(tmp_path: Path) -> None:
    """A map that names only some devices may give one of them the number of another."""
    _make(tmp_path, *(f"20260101000000/{device}/Net/1/1/{_BIN}" for device in (0, 1, 8)))
    listings = {listing.key: listing for listing in find_dump(tmp_path, rank_map={0: 8}).scan({}).listings}
    (problem,) = listings[StepKey(8, 1)].problems
    assert problem.denied
    assert problem.reason == "devices 0 and 8 would both be rank 8"
    assert not listings[StepKey(1, 1)].problems


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (f"dump_20260101_000000_000000/{_SGLANG}", f"dump_20260102_000000_000000/{_SGLANG}"),
        (
            "sglang_dump_1.5/forward_pass_id=1___rank=0___name=x___dump_index=1.pt",
            "sglang_dump_2.5/forward_pass_id=1___rank=0___name=x___dump_index=1.pt",
        ),
        ("TP0_PP0_Rank0_pid8/Pass00000.pt", "TP0_PP0_Rank0_pid9/Pass00000.pt"),
    ],
)
def test_two_runs_are_not_mixed(first: str, second: str, tmp_path: Path) -> None:
    """Their steps have the same numbers: a job that is started again counts from the beginning."""
    listings = _make(tmp_path, first, second, second.replace("ank=0", "ank=1").replace("Rank0", "Rank1"))
    for key, listing in listings.items():
        assert [problem.denied for problem in listing.problems] == [True] * (key.rank == 0)
    alone = find_dump((tmp_path / second).parent).scan({})
    assert [problem for listing in alone.listings for problem in listing.problems] == []


def test_job_that_starts_again_from_a_checkpoint_continues(tmp_path: Path) -> None:
    """Its steps go on counting: each of its times is a part of one dump."""
    listings = _make(tmp_path, f"20260101000000/0/Net/1/3/{_BIN}", f"20260101990000/0/Net/1/4/{_BIN}")
    assert not any(listing.problems for listing in listings.values())
