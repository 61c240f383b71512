"""A pattern is proposed for trees that people make."""

from pathlib import Path

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
