"""A pattern is proposed for trees that people make."""

import os
from pathlib import Path
from typing import Any

import pytest

from ingest.layouts.detect import find_dump
from ingest.layouts.proposal import propose
from workers.errors import UsageError

EXAMPLE = "rank{rank}/step{step}/{module}.{io}.{slot}.pt"


@pytest.mark.parametrize(
    ("paths", "pattern"),
    [
        (
            ["rank0/step1/fc.input.0.pt", "rank1/step2/a.b.output.1.pt"],
            "rank{rank}/step{step}/{module}.{io}.{slot}.pt",
        ),
        (["r/iter_5/x.npy", "r/iter_6/y.npy"], "{net}/iter_{step}/{module}.npy"),
        (["step3_rank1_logits.pt", "step4_rank0_loss.pt"], "step{step}_rank{rank}_{module}.pt"),
        (["rank0/step1/grad.fc.weight.safetensors"], "rank{rank}/step{step}/{io}.{module}.safetensors"),
    ],
)
def test_patterns_of_trees(paths: list[str], pattern: str, tmp_path: Path) -> None:
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert propose(tmp_path) == (pattern, len(paths), len(paths))
    with pytest.raises(UsageError) as error:
        find_dump(tmp_path)
    assert f"--layout '{pattern}'" in str(error.value.hint)
    assert {listing.layout for listing in find_dump(tmp_path, layout=pattern).scan({}).listings} == {
        "declared"
    }


def test_nothing_is_proposed_for_a_tree_without_rank_and_step(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").touch()
    assert propose(tmp_path) is None


def test_other_files_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk is bounded by what it looks at, not by what it is looking for."""
    monkeypatch.setattr("ingest.layouts.proposal._MAX_ENTRIES", 50)
    for number in range(60):
        (tmp_path / f"a{number}.txt").touch()
    (tmp_path / "rank0" / "step1").mkdir(parents=True)
    (tmp_path / "rank0" / "step1" / "fc.pt").touch()
    looked_at = 0
    scandir = os.scandir

    def counted(path: str) -> Any:
        class Entries:
            def __enter__(self) -> Any:
                self.entries = scandir(path)
                return self

            def __exit__(self, *_: object) -> None:
                self.entries.close()

            def __iter__(self) -> Any:
                nonlocal looked_at
                for entry in self.entries:
                    looked_at += 1
                    yield entry

        return Entries()

    monkeypatch.setattr("os.scandir", counted)
    propose(tmp_path)
    assert looked_at <= 50
